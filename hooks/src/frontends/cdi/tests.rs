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
    scene.spec("etc/cdi/a.json", "", &[("d", &env("etc")), ("e", &env("etc"))]);
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
    let names: Vec<_> = listed.iter().map(|l| (l.name.as_str(), l.conflicts.len())).collect();
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
    std::fs::copy(scene.0.path().join("run/cdi/a.json"), outside.path().join("cdi/a.json"))
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
    let mounts: Vec<_> =
        edits.described.iter().map(|m| (m.target.as_str(), m.source.clone())).collect();
    assert_eq!(
        mounts,
        [
            ("/opt", format!("{root}/usr")),
            ("/usr/lib/libx.so", format!("{root}/usr/lib/libx.so.2"))
        ]
    );
    assert_eq!(edits.described[1].options, ["bind", "ro"]);
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
    mknodat(CWD, node, FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(240, 7))
        .unwrap();
    let of = |fields: &str| format!(r#""deviceNodes":[{{"path":"/dev/x"{fields}}}]"#);
    let cases = [
        ("plain", of(""), ('c', 240, 7), Access::ALL),
        (
            "full",
            of(r#","type":"b","major":8,"minor":1,"permissions":"r""#),
            ('b', 8, 1),
            Access { read: true, ..Access::NONE },
        ),
        ("u", of(r#","type":"u""#), ('c', 240, 7), Access::ALL),
        ("none", of(r#","permissions":"none""#), ('c', 240, 7), Access::NONE),
        ("pipe", of(r#","type":"p""#), ('p', 0, 0), Access::ALL),
    ];
    let devices: Vec<_> = cases.iter().map(|(name, edits, ..)| (*name, edits.as_str())).collect();
    scene.spec("etc/cdi/a.json", "", &devices);
    for (name, _, numbers, access) in &cases {
        let (edits, _) = scene.edits(&[&format!("v.com/c={name}")]).unwrap();
        let [device] = edits.devices.as_slice() else { panic!("{name}") };
        assert_eq!((device.kind, device.major, device.minor), *numbers, "{name}");
        assert_eq!((device.access, device.mode, device.uid), (*access, 0o666, None), "{name}");
        assert!(Path::new(&device.source).starts_with(scene.0.path()));
    }
    scene.spec("etc/cdi/a.json", "", &[("d", &of(r#","type":"b""#))]);
    assert!(scene.fails(&["v.com/c=d"]).contains("of the type b, and it is of the type c"));
}
