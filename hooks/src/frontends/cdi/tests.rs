use super::*;
use crate::model::edits::Access;
use std::path::Path;

/// A host with two folders of specifications.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        for folder in ["etc/cdi", "run/cdi", "dev", "usr/lib"] {
            std::fs::create_dir_all(scene.0.path().join(folder)).unwrap();
        }
        scene.file("usr/lib/libx.so.1", "");
        scene.file("usr/lib/libx.so.2", "");
        scene
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(path, mode).unwrap();
    }

    /// Devices with these edits, of the kind `v.com/c`.
    fn spec(&self, path: &str, common: &str, devices: &[(&str, &str)]) {
        let devices: Vec<String> = devices
            .iter()
            .map(|(name, edits)| format!(r#"{{"name":"{name}","containerEdits":{{{edits}}}}}"#))
            .collect();
        let text = format!(
            r#"{{"cdiVersion":"1.1.0","kind":"v.com/c","containerEdits":{{{common}}},"devices":[{}]}}"#,
            devices.join(",")
        );
        self.file(path, &text);
    }

    fn edits(&self, names: &[&str]) -> Result<(Edits, Vec<Note>)> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let folders = ["/etc/cdi", "/run/cdi"].map(PathBuf::from);
        edits(&names, &folders, &Host::open(self.0.path()).unwrap())
    }

    fn fails(&self, names: &[&str]) -> String {
        self.edits(names).unwrap_err().to_string()
    }
}

fn env(value: &str) -> String {
    format!(r#""env":["A={value}"]"#)
}

#[test]
fn a_later_folder_counts_more_and_two_files_of_one_are_a_conflict() {
    let scene = Scene::new();
    scene.spec(
        "etc/cdi/a.json",
        "",
        &[("d", &env("etc")), ("e", &env("etc"))],
    );
    scene.spec("run/cdi/b.json", "", &[("d", &env("run"))]);
    let of = |name: &str| scene.edits(&[name]).unwrap().0.environment;
    assert_eq!(of("v.com/c=d"), ["A=run"]);
    assert_eq!(of("v.com/c=e"), ["A=etc"]);
    scene.spec("etc/cdi/c.json", "", &[("e", &env("other"))]);
    let error = scene.fails(&["v.com/c=e"]);
    assert!(
        error.contains("etc/cdi/a.json and in ") && error.contains("neither counts"),
        "{error}"
    );
    assert_eq!(of("v.com/c=d"), ["A=run"]);
    // A file of a later folder decides.
    scene.spec("run/cdi/d.json", "", &[("e", &env("late"))]);
    assert_eq!(of("v.com/c=e"), ["A=late"]);
    let host = Host::open(scene.0.path()).unwrap();
    let folders = ["/etc/cdi", "/run/cdi"].map(PathBuf::from);
    let files = read(&folders, &host).unwrap();
    let listed = Registry::new(&files, &folders).list();
    let names: Vec<_> = listed
        .iter()
        .map(|l| (l.name.as_str(), l.conflicts.len()))
        .collect();
    assert_eq!(names, [("v.com/c=d", 0), ("v.com/c=e", 0)]);
}

/// `/var/run` is a link on most hosts.
#[test]
fn links_of_the_host_lead_within_its_root() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(outside.path().join("cdi")).unwrap();
    std::os::unix::fs::symlink("/run", scene.0.path().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path(), scene.0.path().join("out")).unwrap();
    scene.spec("run/cdi/a.json", "", &[("d", &env("1"))]);
    let host = Host::open(scene.0.path()).unwrap();
    let count = |folder: &str| read(&[folder.into()], &host).unwrap().len();
    assert_eq!(count("/link/cdi"), 1);
    std::fs::copy(
        scene.0.path().join("run/cdi/a.json"),
        outside.path().join("cdi/a.json"),
    )
    .unwrap();
    assert_eq!(count("/out/cdi"), 0);
}

#[test]
fn common_edits_come_once_and_later_values_count() {
    let scene = Scene::new();
    let common = r#""env":["A=common","B=1"],"additionalGids":[0,44]"#;
    let of = |lib: &str, a: &str| {
        format!(
            r#""env":["A={a}"],"additionalGids":[44,105],"mounts":[{{"hostPath":"/usr/lib/{lib}","containerPath":"/usr/lib/../lib/libx.so","options":["ro"]}},{{"hostPath":"/usr","containerPath":"/opt"}}]"#
        )
    };
    scene.spec(
        "etc/cdi/a.json",
        common,
        &[("d", &of("libx.so.1", "d")), ("e", &of("libx.so.2", "e"))],
    );
    let names = ["v.com/c=d", "v.com/c=e", "v.com/c=d"];
    let (edits, _) = scene.edits(&names).unwrap();
    assert_eq!(edits.environment, ["A=e", "B=1"]);
    assert_eq!(edits.groups, [44, 105]);
    let root = scene.0.path().display();
    let mounts: Vec<_> = edits
        .described
        .iter()
        .map(|m| (m.target.as_str(), m.source.clone()))
        .collect();
    assert_eq!(
        mounts,
        [
            ("/opt", format!("{root}/usr")),
            ("/usr/lib/libx.so", format!("{root}/usr/lib/libx.so.2"))
        ]
    );
    assert_eq!(edits.described[1].options, ["bind", "ro"]);
}

#[test]
fn a_file_or_node_that_is_gone_is_named_with_its_device() {
    let scene = Scene::new();
    let gone = r#""mounts":[{"hostPath":"/usr/lib/gone.so","containerPath":"/x"}]"#;
    let node = r#""deviceNodes":[{"path":"/dev/gone"}]"#;
    scene.spec("etc/cdi/a.json", "", &[("d", gone), ("e", node)]);
    for (name, part) in [
        ("v.com/c=d", "/usr/lib/gone.so"),
        ("v.com/c=e", "/dev/gone"),
    ] {
        let error = scene.fails(&[name]);
        for part in [
            name,
            "etc/cdi/a.json",
            part,
            "the host has no such",
            "generate",
        ] {
            assert!(error.contains(part), "{part}\n{error}");
        }
    }
}

/// The files of a specification are opened by path later, so no link may lead out of the root.
#[test]
fn files_and_nodes_lie_within_the_hosts_root() {
    use std::os::unix::fs::symlink;
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path().display();
    std::fs::write(outside.path().join("libout.so"), "").unwrap();
    let path = |name: &str| scene.0.path().join(name);
    let root = scene.0.path().display();
    symlink(outside.path(), path("out")).unwrap();
    symlink(outside.path().join("libout.so"), path("usr/lib/libout.so")).unwrap();
    symlink("/usr/lib/libx.so.1", path("usr/lib/inner.so")).unwrap();
    symlink("../../../../../../../../usr", path("up")).unwrap();
    symlink("/dev/null", path("dev/null")).unwrap();
    let mount =
        |source: &str| format!(r#""mounts":[{{"hostPath":"{source}","containerPath":"/x"}}]"#);
    let stated =
        r#""deviceNodes":[{"path":"/dev/null","type":"c","major":1,"minor":3}]"#.to_owned();
    let free = r#""deviceNodes":[{"path":"/dev/free","type":"c","major":1,"minor":3}]"#.to_owned();
    let beside = format!("{root}x/libout.so");
    let cases = [
        ("folder", mount("/out/libout.so")),
        ("file", mount("/usr/lib/libout.so")),
        ("root", mount(&format!("{root}/out/libout.so"))),
        ("beside", mount(&beside)),
        ("stated", stated),
    ];
    let good = [
        ("inner", mount("/usr/lib/inner.so"), "usr/lib/libx.so.1"),
        ("up", mount("/up/lib/libx.so.1"), "usr/lib/libx.so.1"),
    ];
    let all = cases.iter().map(|(name, edits)| (*name, edits.as_str()));
    let all = all.chain(good.iter().map(|(name, edits, _)| (*name, edits.as_str())));
    let all: Vec<_> = all.chain([("free", free.as_str())]).collect();
    scene.spec("etc/cdi/a.json", "", &all);
    for (name, _) in &cases {
        let error = scene.fails(&[&format!("v.com/c={name}")]);
        assert!(!error.contains(&format!("{out} ")), "{error}");
        assert!(error.contains(&format!("v.com/c={name}")), "{error}");
    }
    for (name, _, expected) in &good {
        let (edits, _) = scene.edits(&[&format!("v.com/c={name}")]).unwrap();
        assert_eq!(edits.described[0].source, format!("{root}/{expected}"));
    }
    // The numbers are stated, so the host needs no node.
    let (edits, _) = scene.edits(&["v.com/c=free"]).unwrap();
    assert_eq!(edits.devices[0].source, format!("{root}/dev/free"));
}

#[test]
fn nodes_are_what_the_specification_or_the_host_says() {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    if !crate::need::root("mknod") {
        return;
    }
    let scene = Scene::new();
    let node = scene.0.path().join("dev/x");
    mknodat(
        CWD,
        node,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o600),
        makedev(240, 7),
    )
    .unwrap();
    let of = |fields: &str| format!(r#""deviceNodes":[{{"path":"/dev/x"{fields}}}]"#);
    let cases = [
        ("plain", of(""), ('c', 240, 7), Access::ALL),
        (
            "full",
            of(r#","type":"b","major":8,"minor":1,"permissions":"r""#),
            ('b', 8, 1),
            Access {
                read: true,
                ..Access::NONE
            },
        ),
        ("u", of(r#","type":"u""#), ('c', 240, 7), Access::ALL),
        (
            "none",
            of(r#","permissions":"none""#),
            ('c', 240, 7),
            Access::NONE,
        ),
        ("pipe", of(r#","type":"p""#), ('p', 0, 0), Access::ALL),
    ];
    let devices: Vec<_> = cases
        .iter()
        .map(|(name, edits, ..)| (*name, edits.as_str()))
        .collect();
    scene.spec("etc/cdi/a.json", "", &devices);
    for (name, _, numbers, access) in &cases {
        let (edits, _) = scene.edits(&[&format!("v.com/c={name}")]).unwrap();
        let [device] = edits.devices.as_slice() else {
            panic!("{name}")
        };
        assert_eq!(
            (device.kind, device.major, device.minor),
            *numbers,
            "{name}"
        );
        assert_eq!(
            (device.access, device.mode, device.uid),
            (*access, 0o666, None),
            "{name}"
        );
        assert!(Path::new(&device.source).starts_with(scene.0.path()));
    }
    scene.spec("etc/cdi/a.json", "", &[("d", &of(r#","type":"b""#))]);
    assert!(scene
        .fails(&["v.com/c=d"])
        .contains("of the type b, and it is of the type c"));
}

#[test]
fn hooks_that_are_known_become_edits_and_others_stay() {
    let scene = Scene::new();
    let hook = |path: &str, args: &str| {
        format!(r#"{{"hookName":"createContainer","path":"{path}","args":["x",{args}]}}"#)
    };
    let hooks = [
        hook(
            "/usr/bin/nvidia-cdi-hook",
            r#""create-symlinks","--link","libx.so.1::/usr/lib/libx.so""#,
        ),
        hook(
            "/usr/bin/nvidia-ctk",
            r#""hook","update-ldcache","--folder","/usr/lib","--ldconfig-path","@/sbin/ldconfig""#,
        ),
        hook(
            "/usr/bin/nvidia-cdi-hook",
            r#""enable-cuda-compat","--host-driver-version=535.1""#,
        ),
        hook(
            "/usr/bin/nvidia-cdi-hook",
            r#""disable-device-node-modification""#,
        ),
        hook(
            "/usr/bin/nvidia-cdi-hook",
            r#""create-symlinks","--new-option""#,
        ),
        hook(
            "/usr/bin/nvidia-cdi-hook",
            r#""chmod","--mode","755","--path","/dev/dri""#,
        ),
        r#"{"hookName":"prestart","path":"/bin/own","env":["X=1"],"timeout":2}"#.to_owned(),
    ];
    scene.spec(
        "etc/cdi/a.json",
        "",
        &[("d", &format!(r#""hooks":[{}]"#, hooks.join(",")))],
    );
    let (edits, _) = scene.edits(&["v.com/c=d"]).unwrap();
    assert_eq!(
        (&*edits.links[0].path, &*edits.links[0].target),
        ("/usr/lib/libx.so", "libx.so.1")
    );
    assert_eq!(edits.library_folders, ["/usr/lib"]);
    assert_eq!(edits.compat[0].driver.as_deref(), Some("535.1"));
    let args: Vec<_> = edits
        .hooks
        .iter()
        .map(|h| h.args.get(1).map(String::as_str))
        .collect();
    assert_eq!(args, [Some("create-symlinks"), Some("chmod"), None]);
    let own = &edits.hooks[2];
    assert_eq!(
        (own.timeout, own.env.as_slice()),
        (Some(2), &["X=1".to_owned()][..])
    );
    assert!(edits.hooks[1].env[0].starts_with("PATH="));
}

/// An algorithm that is quadratic in the devices would take minutes.
#[test]
fn many_devices_are_found_in_no_time() {
    let scene = Scene::new();
    let all: Vec<String> = (0..6_000).map(|at| format!("d{at}")).collect();
    for (number, some) in all.chunks(2_000).enumerate() {
        let edits: Vec<String> = some
            .iter()
            .map(|name| {
                let node = format!(r#"{{"path":"/dev/{name}","type":"c","major":9,"minor":1}}"#);
                format!(r#""deviceNodes":[{node}],"env":["{name}=1"]"#)
            })
            .collect();
        let devices: Vec<(&str, &str)> = some
            .iter()
            .zip(&edits)
            .map(|(name, edits)| (name.as_str(), edits.as_str()))
            .collect();
        scene.spec(&format!("etc/cdi/{number}.json"), "", &devices);
    }
    let started = std::time::Instant::now();
    let names: Vec<String> = all.iter().map(|name| format!("v.com/c={name}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (edits, _) = scene.edits(&names).unwrap();
    assert_eq!(
        (edits.devices.len(), edits.environment.len()),
        (6_000, 6_000)
    );
    let unknown: Vec<String> = (0..6_000).map(|at| format!("v.com/c=x{at}")).collect();
    let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
    let error = scene.fails(&unknown);
    assert!(error.contains("(and 5995 more)"), "{error}");
    let host = Host::open(scene.0.path()).unwrap();
    let folders = ["/etc/cdi", "/run/cdi"].map(PathBuf::from);
    let files = read(&folders, &host).unwrap();
    let listed = Registry::new(&files, &folders).list();
    assert_eq!(listed.len(), 6_000);
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}
