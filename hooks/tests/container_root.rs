//! What the front ends do in a container's root: what the user mounted stays, volumes are
//! not written to, the host's own root is refused, and owners and modes are right.

use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::process::{Command, Output};

use serde_json::{json, Value};

use crate::support::{code, need, program, run, runtime, stderr, stdout, Tree};

const VENDOR: &str = r#"{
    "activation_flag": "OCI_X", "driver_feature": ["run"], "root": "/store",
    "inventory": {"run": {
        "libraries": ["/opt/x/lib/libx.so.1"],
        "miscellaneous": ["/opt/x/data", "/run/x/socket"],
        "directories": ["/opt/x/empty"]
    }}
}"#;

#[derive(Debug, Clone, Copy, PartialEq)]
enum FrontEnd {
    Runtime,
    Hook,
    Precreate,
}

const ALL: [FrontEnd; 3] = [FrontEnd::Runtime, FrontEnd::Hook, FrontEnd::Precreate];

/// A host with a driver, an image, and a volume of the user's.
fn setup() -> Tree {
    let tree = Tree::new();
    tree.file("host/etc/oci-decorator/oci-decorator.d/x.json", VENDOR);
    tree.library("host/store/opt/x/lib/libx.so.1", "libx.so.1", &[]);
    tree.file("host/store/opt/x/data/file", "driver");
    tree.file("host/store/run/x/socket", "driver");
    tree.file("bundle/rootfs/usr/lib64/ld-linux-x86-64.so.2", "");
    tree.link("bundle/rootfs/lib64", "usr/lib64");
    tree.folder("bundle/rootfs/run");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
    tree.file("volume/file", "user");
    let root = tree.path("host").display().to_string();
    let log = tree.path("log").display().to_string();
    tree.file(
        "config.toml",
        format!("root = {root:?}\nlog-file = {log:?}\nruntimes = [\"runc\"]\n"),
    );
    tree.file("log", "");
    tree
}

fn bind(tree: &Tree, destination: &str, source: &str) -> Value {
    json!({"destination": destination, "type": "bind", "source": tree.path(source),
           "options": ["rbind", "rprivate"]})
}

fn own_hook(tree: &Tree) -> Value {
    let config = format!("-config={}", tree.path("config.toml").display());
    let all = ["oci-decorator", &config, "createRuntime"];
    json!({"path": env!("CARGO_BIN_EXE_oci-decorator"), "args": all, "env": ["PATH=/bin"]})
}

/// A hook that runs a script in the container's mount namespace, before its root is entered.
fn script(tree: &Tree, name: &str, text: &str) -> Value {
    let inner = tree.script(&format!("{name}.inner"), text);
    let pid = r#"sed -n 's/.*"pid":\([0-9]*\).*/\1/p'"#;
    let outer = format!("exec nsenter --mount=/proc/$({pid})/ns/mnt {}", inner.display());
    let path = tree.script(name, &outer);
    json!({"path": path, "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]})
}

/// Starts a container. Returns what it reads from the listed files, one line each.
fn start(tree: &Tree, front_end: FrontEnd, mounts: Vec<Value>, show: &[&str]) -> String {
    let show = show.iter().map(|path| {
        let seen = tree.path(&format!("bundle/rootfs{path}"));
        format!("head -c 6 {} 2>&- || echo -n none; echo", seen.display())
    });
    let text = show.collect::<Vec<_>>().join("\n");
    let out = tree.path("seen");
    let look = script(tree, "look", &format!("exec >{}\n{text}\ntrue", out.display()));
    let mut spec = runtime::bundle(tree, &["OCI_X="]);
    spec["mounts"].as_array_mut().unwrap().extend(mounts);
    spec["root"]["path"] = json!(tree.path("bundle/rootfs"));
    let mut hooks = vec![look];
    if front_end == FrontEnd::Hook {
        hooks.insert(0, own_hook(tree));
    }
    spec["hooks"] = json!({"createRuntime": hooks});
    let output = run_with(tree, front_end, &spec.to_string());
    assert_eq!(code(&output), 0, "{front_end:?}: {}", stderr(&output));
    fs::read_to_string(out).unwrap()
}

fn run_with(tree: &Tree, front_end: FrontEnd, spec: &str) -> Output {
    let mut spec = spec.to_owned();
    if front_end == FrontEnd::Precreate {
        let config = tree.path("config.toml").display().to_string();
        let output = run(&["--config", &config, "precreate"], &spec);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        spec = stdout(&output);
    }
    tree.file("bundle/config.json", spec);
    // A host as systemd sets it up: mounts show everywhere, unless they are made private.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "shared"]);
    if front_end == FrontEnd::Runtime {
        let program = tree.path("oci-decorator-runtime");
        let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_oci-decorator"), &program);
        command.arg(program);
    } else {
        command.arg("runc");
    }
    command.env("OCI_DECORATOR_CONFIG", tree.path("config.toml"));
    runtime::run(&mut command, tree)
}

const LIBRARY: &str = "/opt/x/lib/libx.so.1";
const DATA: &str = "/opt/x/data/file";

type Case = (&'static str, &'static str, [&'static str; 3], &'static str);

/// With every front end, the container finds the user's mount at, in and around a path of ours,
/// under any name, and nothing is made in that mount.
#[test]
fn what_the_user_mounted_stays() {
    if runtime::find("runc").is_none() {
        return;
    }
    // What the user mounts where; then, what the library, the data and the user's file are.
    let cases: [Case; 9] = [
        (LIBRARY, "volume/file", ["user", "driver", "user"], LIBRARY),
        ("/opt/x/lib/../lib//libx.so.1/", "volume/file", ["user", "driver", "user"], LIBRARY),
        ("/way/lib/libx.so.1", "volume/file", ["user", "driver", "user"], LIBRARY),
        ("/opt/x/data", "volume", ["\u{7f}ELF\u{2}\u{1}", "user", "user"], DATA),
        (
            "/opt/x/data/mine",
            "volume",
            ["\u{7f}ELF\u{2}\u{1}", "none", "user"],
            "/opt/x/data/mine/file",
        ),
        ("/opt/x/lib", "volume", ["none", "driver", "user"], "/opt/x/lib/file"),
        ("/opt/x/", "volume", ["none", "none", "user"], "/opt/x/file"),
        ("/way", "volume", ["none", "none", "user"], "/opt/x/file"),
        ("/elsewhere", "volume", ["\u{7f}ELF\u{2}\u{1}", "driver", "user"], "/elsewhere/file"),
    ];
    for front_end in ALL {
        for (destination, source, expected, file) in cases {
            let tree = setup();
            tree.folder("bundle/rootfs/opt/x");
            tree.link("bundle/rootfs/way", "opt/x");
            let mounts = vec![bind(&tree, destination, source)];
            let seen = start(&tree, front_end, mounts, &[LIBRARY, DATA, file]);
            let seen: Vec<&str> = seen.lines().collect();
            let case = format!("{front_end:?} {destination}");
            assert_eq!(seen, expected, "{case}");
            assert_eq!(fs::read_dir(tree.path("volume")).unwrap().count(), 1, "{case}");
            let noted = tree.text("log").contains("stays as it is: ");
            assert_eq!(noted, destination != "/elsewhere", "{case}: {}", tree.text("log"));
        }
    }
}

/// A file system that was made for the container contains no files of the user.
#[test]
fn files_of_ours_lie_in_a_new_tmpfs() {
    if runtime::find("runc").is_none() {
        return;
    }
    for front_end in ALL {
        let tree = setup();
        let tmpfs = json!({"destination": "/run", "type": "tmpfs", "source": "tmpfs"});
        let seen = start(&tree, front_end, vec![tmpfs], &["/run/x/socket"]);
        assert_eq!(seen, "driver\n", "{front_end:?}");
        let beneath = tree.path("bundle/rootfs/run/x");
        assert!(!beneath.exists(), "{front_end:?}");
    }
}

fn entries(tree: &Tree, path: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(tree.path(path))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Every way in which a volume can lie where the library cache is written, for the runtime
/// and the hook.
#[test]
fn nothing_is_written_into_a_volume() {
    if runtime::find("runc").is_none() {
        return;
    }
    let drop_in = "bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf";
    for how in [FrontEnd::Runtime, FrontEnd::Hook] {
        for (destination, beneath) in [("/etc", false), ("/etc/ld.so.conf.d", true)] {
            let tree = setup();
            tree.folder("bundle/rootfs/etc/ld.so.conf.d");
            tree.file("volume/ld.so.conf", "include ld.so.conf.d/*.conf\n");
            let before = entries(&tree, "volume");
            let mut spec = runtime::bundle(&tree, &["OCI_X="]);
            let volume = bind(&tree, destination, "volume");
            spec["mounts"].as_array_mut().unwrap().push(volume);
            if how == FrontEnd::Hook {
                spec["hooks"] = json!({"createRuntime": [own_hook(&tree)]});
            }
            let output = run_with(&tree, how, &spec.to_string());
            let case = format!("{how:?} {destination}: {}", stderr(&output));
            assert_eq!(code(&output), 0, "{case}");
            assert_eq!(entries(&tree, "volume"), before, "{case}");
            assert_eq!(tree.path(drop_in).exists(), beneath, "{case}");
            let noted = tree.text("log").contains("has the library cache");
            assert_eq!(noted, !beneath, "{case}: {}", tree.text("log"));
        }
    }
}

/// Mounts that the spec doesn't have (another hook made them) are respected as well.
#[test]
fn a_mount_of_another_hook_is_left_alone() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    tree.folder("bundle/rootfs/opt/x/lib");
    tree.folder("volume/lib");
    tree.folder("bundle/rootfs/opt/x/data");
    tree.file("volume/data/file", "user");
    let script_text = format!(
        "cd {} && mount --bind volume bundle/rootfs/etc && mount --bind volume/lib bundle/rootfs/opt/x/lib \
         && mount --bind volume/data bundle/rootfs/opt/x/data",
        tree.shown()
    );
    let mut spec = runtime::bundle(&tree, &["OCI_X="]);
    let other = script(&tree, "other", &script_text);
    let list = format!("cat /proc/self/mountinfo >{}/mounts", tree.shown());
    let list = script(&tree, "list", &list);
    spec["hooks"] = json!({"createRuntime": [other, own_hook(&tree), list]});
    let output = run_with(&tree, FrontEnd::Hook, &spec.to_string());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(entries(&tree, "volume"), ["data", "file", "lib"]);
    assert_eq!(entries(&tree, "volume/lib"), [""; 0]);
    let (log, mounts) = (tree.text("log"), tree.text("mounts"));
    for path in ["/opt/x/lib/libx.so.1", "/opt/x/data"] {
        let expected = format!("the mount at {path} in the container stays");
        assert!(log.contains(&expected), "{log}");
    }
    assert!(!mounts.contains("/host/store/opt/x"), "{mounts}");
    let hidden = "a mount in the container hides /etc/ld.so.cache";
    assert_eq!(log.matches(hidden).count(), 1, "{log}");
    // What can be made beneath the mount is made.
    assert!(tree.text("bundle/rootfs/etc/ld.so.cache").contains("libx.so.1"));
}

#[test]
fn a_file_in_anothers_mount_is_left_alone() {
    if runtime::find("runc").is_none() {
        return;
    }
    // The other mount has nothing at our path, or a file of its own.
    for theirs in [&[][..], &["libx.so.1"]] {
        let tree = setup();
        tree.folder("bundle/rootfs/opt/x/lib");
        tree.folder("volume/lib");
        for name in theirs {
            tree.file(&format!("volume/lib/{name}"), "theirs");
        }
        let script_text = format!(
            "cd {} && mount --bind volume bundle/rootfs/etc && mount --bind volume/lib bundle/rootfs/opt/x/lib",
            tree.shown()
        );
        let mut spec = runtime::bundle(&tree, &["OCI_X="]);
        let other = script(&tree, "other", &script_text);
        spec["hooks"] = json!({"createRuntime": [other, own_hook(&tree)]});
        let output = run_with(&tree, FrontEnd::Hook, &spec.to_string());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(entries(&tree, "volume"), ["file", "lib"]);
        assert_eq!(entries(&tree, "volume/lib"), theirs);
        let log = tree.text("log");
        assert!(log.contains("the mount at /opt/x/lib/libx.so.1 in the container stays"), "{log}");
        // What can be made beneath the mount is made.
        assert!(tree.text("bundle/rootfs/etc/ld.so.cache").contains("libx.so.1"));
    }
}

/// Before the container exists, its root may contain mounts of the admin. Without the right to
/// clone mounts, paths that lead there stay unchanged, with a warning.
#[test]
fn mounts_in_a_bundles_root_are_not_written_to() {
    if !need::root("mounts") {
        return;
    }
    for (prefix, beneath) in [("", true), ("setpriv --bounding-set=-sys_admin", false)] {
        let tree = setup();
        let spec = json!({"process": {"env": ["OCI_X="]}, "root": {"path": "rootfs"}});
        tree.file("bundle/config.json", spec.to_string());
        tree.script("bin/runc", "");
        let text = format!(
            "mount --bind volume bundle/rootfs/etc; cd bundle; export PATH={0}/bin:$PATH \
             OCI_DECORATOR_CONFIG={0}/config.toml; exec {prefix} ../oci-decorator-runtime create c",
            tree.shown()
        );
        let program = tree.path("oci-decorator-runtime");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_oci-decorator"), program).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &text]);
        let output = runtime::finish(command.current_dir(tree.0.path()));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(entries(&tree, "volume"), ["file"], "{prefix}");
        let cache = tree.path("bundle/rootfs/etc/ld.so.cache");
        assert_eq!(cache.exists(), beneath, "{prefix}");
        let warned = tree.text("log").contains("can't update the image's library cache");
        assert_eq!(warned, !beneath, "{prefix}: {}", tree.text("log"));
    }
}

/// The vendor gives a folder that can only be made in the host's root.
#[test]
fn the_hosts_own_root_is_refused_by_every_front_end() {
    let tree = setup();
    let canary = tree.path("canary").display().to_string();
    let vendor = format!(
        r#"{{"activation_flag": "OCI_X", "driver_feature": ["run"], "inventory": {{"run": {{"directories": [{canary:?}]}}}}}}"#
    );
    tree.file("host/etc/oci-decorator/oci-decorator.d/x.json", vendor);
    tree.script("bin/runc", "");
    tree.link("link", "/");
    let up = format!("rootfs/{}", "../".repeat(16));
    let link = tree.path("link").display().to_string();
    let config = tree.path("config.toml").display().to_string();
    for path in ["/", "//", "/./", &up, &link, "/proc/self/root"] {
        for readonly in [false, true] {
            let spec = json!({"process": {"env": ["OCI_X="]}, "root": {"path": path, "readonly": readonly}});
            tree.file("bundle/config.json", spec.to_string());
            let mut shim = program("oci-decorator-runtime");
            shim.env("OCI_DECORATOR_CONFIG", &config);
            shim.env("PATH", tree.path("bin"));
            shim.args(["create", "c"]).current_dir(tree.path("bundle"));
            refused(&runtime::finish(&mut shim), path);
            assert_eq!(tree.text("bundle/config.json"), spec.to_string());
            if path.starts_with('/') {
                let filter = run(&["--config", &config, "precreate"], &spec.to_string());
                refused(&filter, path);
            }
            refuse_as_hook(&tree, path);
        }
    }
    assert!(!tree.path("canary").exists());
    // A container that asks for nothing may have any root.
    let spec = json!({"process": {"env": []}, "root": {"path": "/"}}).to_string();
    let filter = run(&["--config", &config, "precreate"], &spec);
    assert_eq!((code(&filter), stdout(&filter)), (0, spec));
}

fn refused(output: &Output, path: &str) {
    let message = stderr(output);
    assert_eq!(code(output), 1, "{path}: {message}");
    assert!(message.contains("nothing is done to it"), "{path}: {message}");
}

/// Calls the hook with a process in a mount namespace of its own.
fn refuse_as_hook(tree: &Tree, path: &str) {
    if !need::root("namespaces") {
        return;
    }
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo; exec sleep 60"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut line).unwrap();
    let state = json!({"id": "c", "pid": other.id(), "bundle": tree.path("bundle")});
    let config = tree.path("config.toml").display().to_string();
    let output = run(&["--config", &config, "prestart"], &state.to_string());
    other.kill().unwrap();
    other.wait().unwrap();
    refused(&output, path);
}

/// With userns-remap, the host's root owns nothing in an image. Engines start us with any umask.
#[test]
fn folders_have_their_parents_owner_and_a_mode_of_their_own() {
    if runtime::find("runc").is_none() {
        return;
    }
    for how in [FrontEnd::Runtime, FrontEnd::Hook] {
        let tree = setup();
        let mut spec = runtime::bundle(&tree, &["OCI_X="]);
        if how == FrontEnd::Hook {
            spec["hooks"] = json!({"createRuntime": [own_hook(&tree)]});
        }
        tree.file("bundle/config.json", spec.to_string());
        chown(tree.path("bundle/rootfs"), Some(100_000), Some(100_001)).unwrap();
        let etc = tree.path("bundle/rootfs/etc");
        chown(etc, Some(100_002), Some(100_003)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$@\"", "sh"]);
        command.env("OCI_DECORATOR_CONFIG", tree.path("config.toml"));
        if how == FrontEnd::Runtime {
            tree.link("oci-decorator-runtime", env!("CARGO_BIN_EXE_oci-decorator"));
            command.arg(tree.path("oci-decorator-runtime"));
        } else {
            command.arg("runc");
        }
        let output = runtime::run(&mut command, &tree);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        for (path, owner, mode) in [
            ("opt/x/empty", (100_000, 100_001), 0o40_755),
            ("etc/ld.so.conf.d", (100_002, 100_003), 0o40_755),
            ("etc/ld.so.cache", (100_002, 100_003), 0o100_644),
            ("etc/ld.so.conf.d/00-oci-decorator.conf", (100_002, 100_003), 0o100_644),
        ] {
            let about = fs::metadata(tree.path(&format!("bundle/rootfs/{path}"))).unwrap();
            let found = ((about.uid(), about.gid()), about.mode());
            assert_eq!(found, (owner, mode), "{how:?} {path}");
        }
        if how == FrontEnd::Hook {
            let file = fs::metadata(tree.path(&format!("bundle/rootfs{LIBRARY}"))).unwrap();
            assert_eq!((file.uid(), file.mode()), (100_000, 0o100_644));
        }
    }
}

/// A container can't change what it is given, gain rights by it, or pass it on.
#[test]
fn mounts_of_every_front_end_have_the_same_attributes() {
    if runtime::find("runc").is_none() {
        return;
    }
    for front_end in ALL {
        let tree = setup();
        let out = tree.path("mounts");
        let text = format!("cat /proc/self/mountinfo >{}", out.display());
        let mut spec = runtime::bundle(&tree, &["OCI_X="]);
        let mut hooks = vec![script(&tree, "list", &text)];
        if front_end == FrontEnd::Hook {
            hooks.insert(0, own_hook(&tree));
        }
        spec["hooks"] = json!({"createRuntime": hooks});
        let output = run_with(&tree, front_end, &spec.to_string());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let mounts = fs::read_to_string(out).unwrap();
        for target in ["/opt/x/lib/libx.so.1", "/opt/x/data", "/run/x/socket"] {
            assert_attributes(&mounts, target, &["ro", "nosuid", "nodev"]);
        }
    }
}

/// Checks that a mount has its options and is private (proc(5), `/proc/PID/mountinfo`).
fn assert_attributes(mounts: &str, target: &str, expected: &[&str]) {
    let at_target = |line: &&str| line.split(' ').nth(4).is_some_and(|p| p.ends_with(target));
    let line = mounts.lines().find(at_target);
    let line = line.unwrap_or_else(|| panic!("{target} is not mounted: {mounts}"));
    let fields: Vec<&str> = line.split(' ').collect();
    for option in expected {
        assert!(fields[5].split(',').any(|o| o == *option), "{option}: {line}");
    }
    assert_eq!(fields[6], "-", "not private: {line}");
}

/// In a user namespace, nodes are mounted, and bring neither programs nor rights.
#[test]
fn nodes_that_are_mounted_are_only_devices() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    let vendor = VENDOR.replace("\"libraries\"", "\"devices\": [\"x0\"], \"libraries\"");
    tree.file("host/etc/oci-decorator/oci-decorator.d/x.json", vendor);
    let (kind, numbers) = (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    let node = tree.folder("host/dev").join("x0");
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, node, kind, mode, numbers).unwrap();
    let out = tree.path("mounts");
    let text = format!("cat /proc/self/mountinfo >{}", out.display());
    let mut spec = runtime::bundle(&tree, &["OCI_X="]);
    let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.push(json!({"type": "user"}));
    for map in ["uidMappings", "gidMappings"] {
        spec["linux"][map] = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
    }
    let hooks = [own_hook(&tree), script(&tree, "list", &text)];
    spec["hooks"] = json!({"createRuntime": hooks});
    tree.file("bundle/config.json", spec.to_string());
    let mut owner = Command::new("chown");
    owner.args(["-R", "100000:100000"]);
    assert!(owner.arg(tree.path("bundle/rootfs")).status().unwrap().success());
    let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    fs::set_permissions(tree.0.path(), open).unwrap();
    let output = runtime::run(&mut Command::new("runc"), &tree);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let mounts = fs::read_to_string(out).unwrap();
    assert_attributes(&mounts, "/dev/x0", &["nosuid", "noexec"]);
    assert_attributes(&mounts, "/opt/x/data", &["ro", "nosuid", "nodev"]);
}

#[test]
fn an_image_that_leads_into_the_kernels_file_systems_is_refused() {
    if runtime::find("runc").is_none() {
        return;
    }
    for front_end in ALL {
        let tree = setup();
        tree.link("bundle/rootfs/opt/x/data", "/proc/sys");
        let mut spec = runtime::bundle(&tree, &["OCI_X="]);
        if front_end == FrontEnd::Hook {
            spec["hooks"] = json!({"createRuntime": [own_hook(&tree)]});
        }
        let output = run_with(&tree, front_end, &spec.to_string());
        let message = stderr(&output);
        assert_ne!(code(&output), 0, "{front_end:?}");
        // In the other cases, the message is runc's.
        let own = front_end != FrontEnd::Hook || message.contains("leads it into /proc or /sys");
        assert!(own && message.contains("/proc"), "{front_end:?}: {message}");
    }
}

/// Mounts are counted in a namespace of this test's own: others run at the same time.
#[test]
fn starts_leave_no_mount_behind() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    let mut spec = runtime::bundle(&tree, &["OCI_X="]);
    let hook = own_hook(&tree);
    spec["hooks"] = json!({"createRuntime": [hook, hook]});
    spec["mounts"].as_array_mut().unwrap().push(bind(&tree, "/etc/ld.so.conf.d", "volume"));
    tree.file("bundle/config.json", spec.to_string());
    let shown = tree.shown();
    // Of this tree only: mounts of other tests go when their folders are removed. The name is
    // the tree's, as process numbers repeat between namespaces and cgroups don't.
    let name = shown.rsplit(['/', '.']).next().unwrap();
    let count = format!("grep -c {shown} /proc/self/mountinfo || true");
    let text = format!(
        "mount --make-rprivate / ; cd {shown}/bundle; {count}; \
         for i in 1 2 3 4 5; do runc --root {shown}/state run mounts-{name} >&2; done; \
         {count}"
    );
    let mut command = Command::new("unshare");
    let output = runtime::finish(command.args(["--mount", "sh", "-ec", &text]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let counts: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(counts.len(), 2);
    assert_eq!(counts[0], counts[1]);
    // The second hook of a start finds the mounts of the first one, and does not mention them.
    let log = tree.text("log");
    assert!(!log.contains("stays"), "{log}");
}
