//! The mount-namespace hook: its input, and what a container of a real runtime gets from it.

use std::process::{Command, Output};

use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::{code, in_users, is_quick, need, run, runtime, stderr, stdout, Tree};

const INVENTORY: &str = r#""inventory": {"run": {
    "devices": ["xnull"],
    "libraries": ["/opt/x/lib/libx.so.1", "/opt/x/lib/libx.so.1.2"],
    "miscellaneous": ["/opt/x/data"],
    "directories": ["/opt/x/empty"]
}}"#;

fn setup() -> Tree {
    let tree = Tree::new();
    let vendor = |root: &str| {
        format!(r#"{{"activation_flag": "OCI_X", "driver_feature": ["run"], {root} {INVENTORY}}}"#)
    };
    tree.file("host/etc/oci-decorator/oci-decorator.d/x.json", vendor("\"root\": \"/store\","));
    // The program in the container checks the same inventory there.
    tree.file("bundle/rootfs/vendors/x.json", vendor(""));
    tree.library("host/store/opt/x/lib/libx.so.1.2", "libx.so.1", &[]);
    tree.link("host/store/opt/x/lib/libx.so.1", "libx.so.1.2");
    tree.file("host/store/opt/x/data/a", "");
    tree.folder("host/dev");
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
    let root = tree.path("host").display().to_string();
    tree.file("config.toml", format!("root = {root:?}\n"));
    tree
}

fn node(tree: &Tree) {
    let mode = Mode::from_raw_mode(0o666);
    let node = tree.path("host/dev/xnull");
    let result = mknodat(CWD, node, FileType::CharacterDevice, mode, makedev(1, 3));
    assert!(matches!(result, Ok(()) | Err(rustix::io::Errno::EXIST)));
}

/// Starts a container whose program says what it finds.
fn start(tree: &Tree, stage: &str, absolute: bool, environment: &[&str], hooks: usize) -> Output {
    node(tree);
    let mut spec = runtime::bundle(tree, environment);
    let words = ["/bin/probe", "check", "--config-dir", "/vendors", "--json"];
    spec["process"]["args"] = json!(words);
    if absolute {
        spec["root"]["path"] = json!(tree.path("bundle/rootfs"));
    }
    let config = format!("-config={}", tree.path("config.toml").display());
    let hook = json!({
        "path": env!("CARGO_BIN_EXE_oci-decorator"),
        "args": ["oci-decorator", config, stage],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    });
    spec["hooks"] = json!({stage: vec![hook; hooks]});
    tree.file("bundle/config.json", spec.to_string());
    runtime::run(&mut Command::new("runc"), tree)
}

fn present(output: &Output) -> Vec<String> {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}\n{}{}", stdout(output), stderr(output)));
    let items = report["vendors"][0]["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["present"] == true && item["kind"] != "directory")
        .map(|item| format!("{} {}", item["path"].as_str().unwrap(), item["detail"]))
        .collect()
}

#[test]
fn a_container_gets_everything_at_both_stages() {
    if runtime::find("runc").is_none() {
        return;
    }
    for stage in ["prestart", "createRuntime"] {
        for absolute in [false, true] {
            let tree = setup();
            let output = start(&tree, stage, absolute, &["OCI_X="], 1);
            let expected = [
                "/dev/xnull \"c 1:3\"",
                "/opt/x/lib/libx.so.1 \"/opt/x/lib/libx.so.1\"",
                "/opt/x/lib/libx.so.1.2 \"/opt/x/lib/libx.so.1.2\"",
                "/opt/x/data \"/opt/x/data\"",
            ];
            assert_eq!(present(&output), expected, "{stage} {absolute}");
            assert!(tree.path("bundle/rootfs/opt/x/empty").is_dir());
            let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
            assert!(cache.contains("/opt/x/lib/libx.so.1\0"), "{stage}");
        }
    }
}

/// Runtimes, with what starts them and their options. crun refuses a mixed hierarchy of cgroups.
const IN_USER_NAMESPACE: [(&str, &str, &[&str]); 2] = [
    ("runc", "exec \"$@\"", &[]),
    ("crun", "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"", &["--cgroup-manager=disabled"]),
];

/// Starts a container with a user namespace and a device, for which crun hands hooks a wrong bundle.
/// The bundle lies in a folder with this mode.
fn start_in_user_namespace(
    tree: &Tree,
    (name, script, options): (&str, &str, &[&str]),
    (stage, flag, mode): (&str, &str, u32),
) -> Output {
    // The devices of the container are the runtime's own: its cgroups are not as on a host.
    for file in ["host/etc/oci-decorator/oci-decorator.d/x.json", "bundle/rootfs/vendors/x.json"] {
        let text = tree.text(file).replace("\"devices\": [\"xnull\"],", "");
        tree.file(file, text);
    }
    let [root, log] = ["host", "log"].map(|name| tree.path(name).display().to_string());
    tree.file("config.toml", format!("root = {root:?}\nlog-file = {log:?}\n"));
    let mut spec = runtime::bundle(tree, &[flag]);
    let words = ["/bin/probe", "check", "--config-dir", "/vendors", "--json"];
    spec["process"]["args"] = json!(words);
    let linux = spec["linux"].as_object_mut().unwrap();
    linux["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
    for map in ["uidMappings", "gidMappings"] {
        linux
            .insert(map.to_owned(), json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]));
    }
    let device = json!([{"path": "/dev/full", "type": "c", "major": 1, "minor": 7}]);
    linux.insert("devices".to_owned(), device);
    if name == "crun" {
        linux.remove("resources");
    }
    let config = format!("-config={}", tree.path("config.toml").display());
    let args = ["oci-decorator", &config, stage];
    let path = env!("CARGO_BIN_EXE_oci-decorator");
    spec["hooks"] = json!({stage: [{"path": path, "args": args, "env": ["PATH=/usr/bin:/bin"]}]});
    tree.file("bundle/config.json", spec.to_string());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(tree.0.path(), mode).unwrap();
    let mut owner = Command::new("chown");
    owner.args(["-h", "-R", "100000:100000"]).arg(tree.path("bundle/rootfs"));
    assert!(owner.status().unwrap().success());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", name]).args(options);
    command.arg("--root").arg(tree.folder("state")).args(["run", "--bundle"]);
    runtime::finish(command.arg(tree.path("bundle")).arg(runtime::name(tree)))
}

/// Closed to the container's root, as the storage in a user's home is, for a runtime that can enter it
/// then: runc opens the image as that root itself, and so do newer releases of crun.
fn strictest_mode(one: (&str, &str, &[&str])) -> u32 {
    let tree = setup();
    let output = start_in_user_namespace(&tree, one, ("poststop", "OTHER=", 0o700));
    if output.status.success() {
        0o700
    } else {
        0o711
    }
}

#[test]
fn a_container_in_a_user_namespace_gets_what_it_asks_for_and_starts_if_that_is_nothing() {
    for one in IN_USER_NAMESPACE.iter().filter(|(name, ..)| runtime::find(name).is_some()) {
        let mode = strictest_mode(*one);
        for stage in ["prestart", "createRuntime"] {
            for (flag, expected) in [("OCI_X=", 3), ("OTHER=", 0)] {
                let tree = setup();
                let output = start_in_user_namespace(&tree, *one, (stage, flag, mode));
                let about = format!("{} {stage} {flag}: {}", one.0, stderr(&output));
                assert!(output.stdout.starts_with(b"{"), "{about}");
                assert_eq!(present(&output).len(), expected, "{about}");
                let is_cached = tree.path("bundle/rootfs/etc/ld.so.cache").exists();
                assert_eq!(is_cached, expected > 0, "{about}");
            }
        }
    }
}

/// The log's file belongs to the host's root, whose rights are given up by then.
#[test]
fn why_a_container_in_a_user_namespace_is_refused_is_logged() {
    for one in IN_USER_NAMESPACE.iter().filter(|(name, ..)| runtime::find(name).is_some()) {
        let tree = setup();
        tree.link("bundle/rootfs/opt/x/data", "/proc/sys");
        let request = ("createRuntime", "OCI_X=", strictest_mode(*one));
        let output = start_in_user_namespace(&tree, *one, request);
        assert_ne!(code(&output), 0, "{}: {}", one.0, stdout(&output));
        let log = tree.text("log");
        assert!(log.contains(" error start refused: "), "{}: {log}", one.0);
    }
}

#[test]
fn twice_is_once_and_nothing_is_left_on_the_host() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    let once = start(&tree, "createRuntime", false, &["OCI_X=all"], 1);
    let listing = tree.listing();
    for _ in 0..if is_quick() { 1 } else { 10 } {
        let twice = start(&tree, "createRuntime", false, &["OCI_X=all"], 2);
        assert_eq!(stdout(&twice), stdout(&once), "{}", stderr(&twice));
    }
    assert_eq!(tree.listing(), listing);
    let after = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!after.contains(&tree.shown()), "{after}");
}

#[test]
fn nothing_is_given_to_those_who_do_not_ask() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    let output = start(&tree, "prestart", false, &["OCI_X=none"], 1);
    assert!(present(&output).is_empty());
    assert!(!tree.path("bundle/rootfs/opt").exists());
}

#[test]
fn a_refusal_is_shown_by_the_runtime() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    let output = start(&tree, "prestart", false, &["OCI_X=fly"], 1);
    assert_ne!(code(&output), 0);
    assert!(stderr(&output).contains("OCI_X asks for the unknown feature"));
}

#[test]
fn a_state_that_can_not_be_used_is_one_line() {
    let tree = setup();
    let config = tree.path("config.toml").display().to_string();
    let spec = json!({"process": {"env": ["OCI_X="]}, "root": {"path": "rootfs"}});
    tree.file("bundle/config.json", spec.to_string());
    let bundle = tree.path("bundle").display().to_string();
    let state = |pid: Value| json!({"id": "c", "bundle": bundle, "pid": pid}).to_string();
    let cases = [
        (String::new(), "not valid JSON"),
        (json!({"id": "c", "pid": 5}).to_string(), "\"bundle\""),
        (state(Value::Null), "\"pid\": expected a number, found null"),
        (state(json!(0)), "0 is not the container's process"),
        (state(json!(i32::MAX)), "is gone"),
        (state(json!(std::process::id())), "no mount namespace of its own"),
        ("x".repeat(2 << 20), "larger than 1048576 bytes"),
    ];
    for (input, reason) in cases {
        let output = run(&["--config", &config, "prestart"], &input);
        let message = stderr(&output);
        assert_eq!(code(&output), 1, "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(reason), "{reason}\n{message}");
    }
    // What this container asks for is not known: it starts.
    let lost = json!({"id": "c", "bundle": "/nowhere", "pid": 5}).to_string();
    let output = run(&["--config", &config, "prestart"], &lost);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    // A container that asks for nothing gets nothing, whatever process it is.
    let spec = json!({"process": {"env": ["A=1"]}, "root": {"path": "rootfs"}});
    tree.file("bundle/config.json", spec.to_string());
    let output = run(&["--config", &config, "prestart"], &state(json!(i32::MAX)));
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
}

#[test]
fn other_stages_do_nothing() {
    for stage in ["createContainer", "startContainer", "poststart", "poststop"] {
        let output = run(&["-config=/nowhere", stage], "");
        assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{stage}");
    }
    assert_eq!(code(&run(&["prestart", "--json"], "")), 2);
}

/// At some stages runc hands the container's environment to a hook that has none of its
/// own, with the image as working folder. Ours have one, and need none: they are static.
#[test]
fn code_of_the_image_never_runs_on_the_host() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    let owned = tree.path("owned").display().to_string();
    let source = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void evil(void) {{ open(\"{owned}\", O_CREAT | O_WRONLY, 0600); }}\n"
    );
    let source = tree.file("evil.c", source);
    let library = tree.path("bundle/rootfs/evil.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status().unwrap().success());
    let mut spec = runtime::bundle(
        &tree,
        &["OCI_X=", "LD_PRELOAD=/proc/self/cwd/evil.so", "LD_LIBRARY_PATH=/"],
    );
    let config = format!("-config={}", tree.path("config.toml").display());
    let program = env!("CARGO_BIN_EXE_oci-decorator");
    let stages = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    for stage in stages {
        let words = ["oci-decorator", &config, stage];
        let with = json!({"path": program, "args": words, "env": ["PATH=/bin"]});
        let without = json!({"path": program, "args": words});
        spec["hooks"][stage] = json!([with, without]);
    }
    tree.file("bundle/config.json", spec.to_string());
    let output = runtime::run(&mut Command::new("runc"), &tree);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!tree.path("owned").exists());
    // The trap works: a dynamic program falls into it.
    let mut dynamic = Command::new("/bin/true");
    dynamic.current_dir(tree.path("bundle/rootfs"));
    dynamic.env("LD_PRELOAD", "/proc/self/cwd/evil.so");
    assert!(dynamic.status().unwrap().success());
    assert!(tree.path("owned").exists());
}

/// The host's root has no rights in the file systems of such a container, and a device node
/// that was made there would open nothing.
#[test]
fn a_container_with_users_of_its_own_gets_everything() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    start(&tree, "prestart", false, &["OCI_X=none"], 1);
    let mut spec: Value = serde_json::from_str(&tree.text("bundle/config.json")).unwrap();
    let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.push(json!({"type": "user"}));
    for map in ["uidMappings", "gidMappings"] {
        spec["linux"][map] = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
    }
    let config = spec.to_string().replace("OCI_X=none", "OCI_X=all");
    tree.file("bundle/config.json", config);
    let mut owner = Command::new("chown");
    owner.args(["-R", "100000:100000"]).arg(tree.path("bundle/rootfs"));
    assert!(owner.status().unwrap().success());
    // Such a root has to reach its own files.
    let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(tree.0.path(), open).unwrap();
    let output = runtime::run(&mut Command::new("runc"), &tree);
    assert_eq!(present(&output).len(), 4, "{}", stdout(&output));
    let made = std::fs::metadata(tree.path("bundle/rootfs/opt/x/lib/libx.so.1")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), 100_000);
}

/// A container that asks through NVIDIA's variables gets the devices that it chose from a hook too.
#[test]
fn the_devices_that_a_variable_names_are_given() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (value, expected) in [("0", "c 1:3"), ("1", "c 1:5")] {
        let tree = setup();
        let vendor = r#"{"activation_flag": "OCI_G", "driver_feature": ["run"], "interfaces": ["nvidia"],
            "units": "g[0-9]*", "inventory": {"compute": {"devices": ["g0", "g1"]}, "run": {}}}"#;
        tree.file("host/etc/oci-decorator/oci-decorator.d/g.json", vendor);
        std::fs::remove_file(tree.path("bundle/rootfs/vendors/x.json")).unwrap();
        tree.file("bundle/rootfs/vendors/g.json", vendor);
        let settings = tree.text("config.toml");
        tree.file("config.toml", format!("{settings}interfaces = [\"nvidia\"]\n"));
        for (name, minor) in [("g0", 3), ("g1", 5)] {
            let node = tree.path(&format!("host/dev/{name}"));
            let mode = Mode::from_raw_mode(0o666);
            mknodat(CWD, node, FileType::CharacterDevice, mode, makedev(1, minor)).unwrap();
        }
        let asks = format!("NVIDIA_VISIBLE_DEVICES={value}");
        let output = start(&tree, "prestart", false, &[&asks], 1);
        let expected = format!("/dev/g{value} {expected:?}");
        assert_eq!(present(&output), [expected], "{}", stderr(&output));
    }
}

/// In a user namespace, the kernel makes no device node, whichever users the namespace maps: nodes
/// are mounted, and cgroups are left alone.
#[test]
fn a_user_namespace_of_our_own_is_known_by_itself() {
    if !need::root("to map users") {
        return;
    }
    for map in ["0 0 4294967295", "0 0 65536", "0 0 1\n1 1 4294967294"] {
        let tree = setup();
        node(&tree);
        let spec = json!({"process": {"env": ["OCI_X="]}, "root": {"path": "rootfs"}});
        tree.file("bundle/config.json", spec.to_string());
        let script = tree.script(
            "within",
            &format!(
                "unshare --mount sleep 60 & pid=$!
                until [ \"$(readlink /proc/$pid/ns/mnt)\" != \"$(readlink /proc/$$/ns/mnt)\" ]; do sleep 0.02; done
                printf '{{\"id\":\"c\",\"pid\":%s,\"bundle\":\"{0}/bundle\"}}' $pid |
                    {1} --config {0}/config.toml createRuntime
                code=$?
                cat /proc/$pid/mountinfo
                kill $pid
                exit $code",
                tree.shown(),
                env!("CARGO_BIN_EXE_oci-decorator"),
            ),
        );
        let output = in_users(map, &script);
        assert_eq!(code(&output), 0, "{map}: {}", stderr(&output));
        let mounts = stdout(&output);
        assert!(mounts.contains("/bundle/rootfs/dev/xnull "), "{mounts}");
    }
}

/// A device that no driver has ("local use"): opening its node touches nothing, and shows whether
/// the cgroup lets it through.
const LOCAL: (u32, u32) = (120, 125);
const LET_THROUGH: &str = "No such device or address";

/// The words before a program that is to see cgroups of version 2 only, as most hosts have them.
const VERSION_TWO: [&str; 5] = [
    "--mount",
    "sh",
    "-c",
    "umount --all --lazy --types cgroup,cgroup2; mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$@\"",
    "sh",
];

fn in_version_two(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(VERSION_TWO).arg(program);
    command
}

/// A runtime may set the device rules of one cgroup and start the process in one below, as crun does
/// since 1.23. Cgroups above the container's own are not changed, and what they forbid is an error.
#[test]
fn device_rules_hold_wherever_the_runtime_has_put_them() {
    if runtime::find("runc").is_none() || !has_version_two() {
        return;
    }
    for (above, scope, below, opens) in [
        (None, "own", "", true),
        (None, "own", "/container", true),
        (None, "own", "/deep/container", true),
        (None, "other", "", true),
        (None, "other", "/container", false),
        (Some(false), "own", "", false),
        (Some(false), "own", "/container", false),
        (Some(true), "own", "/container", true),
    ] {
        let case = format!("{above:?} {scope} {below}");
        let outer = Tree::new();
        let parent = match above {
            Some(_) => format!("/{}-outer", runtime::name(&outer)),
            None => String::new(),
        };
        let created = above.map(|allowed| around(&outer, &parent, allowed));
        let tree = setup();
        local_node(&tree);
        let mut spec = local_bundle(&tree);
        let id = match scope {
            "own" => runtime::name(&tree),
            _ => format!("{}-other", runtime::name(&tree)),
        };
        spec["linux"]["cgroupsPath"] = json!(format!("{parent}/t-{id}.scope"));
        let script = tree.script(
            "move",
            &format!(
                "pid=$(sed -n 's/.*\"pid\":\\([0-9]*\\).*/\\1/p')
                cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$pid/cgroup){below}
                mkdir -p \"$cgroup\" && echo $pid >\"$cgroup/cgroup.procs\""
            ),
        );
        let environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"];
        // A runtime may ignore that its children end, and hand that on.
        let line = format!(
            "exec env --ignore-signal=CHLD {} -config={}/config.toml createRuntime",
            env!("CARGO_BIN_EXE_oci-decorator"),
            tree.shown()
        );
        let hook = tree.script("hook", &line);
        let hooks = [script, hook].map(|path| json!({"path": path, "env": environment}));
        spec["hooks"] = json!({"createRuntime": hooks});
        tree.file("bundle/config.json", spec.to_string());
        let output = runtime::run(&mut in_version_two("runc"), &tree);
        let said = stderr(&output);
        let expected = if opens { LET_THROUGH } else { "a cgroup above " };
        assert!(said.contains(expected), "{case}: {said}");
        if let Some(created) = &created {
            let opened = created.may_open(&[tree.path("host/dev/xnull")]);
            assert_eq!(opened.is_empty(), above == Some(false), "{case}");
        }
        drop(created);
        let left = format!("/sys/fs/cgroup{parent}");
        let _ = in_version_two("rmdir").arg(left).output();
    }
}

/// What the container's configuration lists has the rights that are given there.
#[test]
fn a_listed_device_gets_no_more_rights() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    local_node(&tree);
    let mut spec = local_bundle(&tree);
    let listed = json!({"path": "/dev/xnull", "type": "c", "major": LOCAL.0, "minor": LOCAL.1});
    for (devices, expected) in
        [(json!([]), LET_THROUGH), (json!([listed]), "Operation not permitted")]
    {
        spec["linux"]["devices"] = devices;
        let config = format!("-config={}", tree.path("config.toml").display());
        spec["hooks"] = json!({"createRuntime": [{
            "path": env!("CARGO_BIN_EXE_oci-decorator"),
            "args": ["oci-decorator", config, "createRuntime"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        }]});
        tree.file("bundle/config.json", spec.to_string());
        let output = runtime::run(&mut Command::new("runc"), &tree);
        assert!(stderr(&output).contains(expected), "{expected}: {}", stderr(&output));
    }
}

fn has_version_two() -> bool {
    let script = "mkdir /sys/fs/cgroup/t-oci && rmdir /sys/fs/cgroup/t-oci";
    let made = in_version_two("sh").args(["-c", script]).status();
    let made = made.is_ok_and(|made| made.success());
    need::need(made, "cgroups of version 2 that can be mounted")
}

fn local_node(tree: &Tree) {
    let (mode, numbers) = (Mode::from_raw_mode(0o666), makedev(LOCAL.0, LOCAL.1));
    let path = tree.folder("host/dev").join("xnull");
    mknodat(CWD, path, FileType::CharacterDevice, mode, numbers).unwrap();
}

/// A container that opens the node with the host's shell.
fn local_bundle(tree: &Tree) -> Value {
    let mut spec = runtime::bundle(tree, &["OCI_X="]);
    spec["process"]["args"] = json!(["/usr/bin/sh", "-c", ": </dev/xnull"]);
    for folder in ["bin", "lib", "lib64"] {
        let _ = std::fs::remove_dir_all(tree.path(&format!("bundle/rootfs/{folder}")));
        tree.link(&format!("bundle/rootfs/{folder}"), &format!("usr/{folder}"));
    }
    let usr = json!({"destination": "/usr", "source": "/usr", "type": "bind", "options": ["rbind", "ro"]});
    spec["mounts"].as_array_mut().unwrap().push(usr);
    spec
}

/// A container whose cgroup lies around that of another, and lets the device through or not.
fn around<'t>(tree: &'t Tree, path: &str, allowed: bool) -> runtime::Created<'t> {
    let mut spec = runtime::bundle(tree, &[]);
    spec["linux"]["cgroupsPath"] = json!(path);
    if allowed {
        let rule = json!({"allow": true, "type": "c", "major": LOCAL.0, "minor": LOCAL.1, "access": "rwm"});
        let rules = spec["linux"]["resources"]["devices"].as_array_mut();
        rules.unwrap().push(rule);
    }
    tree.file("bundle/config.json", spec.to_string());
    runtime::create(&mut in_version_two("runc"), tree).unwrap()
}
