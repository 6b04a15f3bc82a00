//! The runtime shim with a low-level runtime that only writes down what it is given.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Output;

use support::{code, program, stderr, stdout, Tree};

const CONFIG_DIR: &str = "host/etc/oci-decorator/oci-decorator.d";
const VENDOR: &str = r#"{
    "version": "1.2",
    "log_level": "LOG_DEBUG",
    "activation_flag": "OCI_X",
    "driver_feature": ["run"],
    "root": "/store/current",
    "inventory": {
        "run": {
            "devices": ["null", "absent[0-9]"],
            "libraries": ["/opt/x/lib/libx.so.1", "/opt/x/lib/libx.so.1.2", "/opt/x/lib/libgone.so"],
            "directories": ["/opt/x/lib", "/opt/x/empty"]
        },
        "more": {"binaries": ["/usr/bin/x-smi"]}
    }
}"#;
const SPEC: &str = r#"{"ociVersion":"1.0.2","process":{"env":["PATH=/bin","OCI_X=run"]},"root":{"path":"rootfs"},"mounts":[{"destination":"/proc","type":"proc"}],"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}},"x-unknown":1.50}"#;

/// A host with a driver and a bundle whose image has a glibc loader.
fn setup() -> Tree {
    let tree = Tree::new();
    tree.file(&format!("{CONFIG_DIR}/x.json"), VENDOR);
    tree.library("host/store/v1/opt/x/lib/libx.so.1.2", "libx.so.1", &[]);
    tree.link("host/store/v1/opt/x/lib/libx.so.1", "libx.so.1.2");
    tree.file("host/store/v1/usr/bin/x-smi", "");
    tree.link("host/store/current", "v1");
    tree.folder("host/dev");
    tree.link("host/dev/null", "zero");
    if rustix::process::geteuid().is_root() {
        node(&tree);
    }
    tree.file("bundle/config.json", SPEC);
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file(
        "bundle/rootfs/etc/ld.so.conf",
        "include /etc/ld.so.conf.d/*.conf\n",
    );
    tree.script(
        "bin/low",
        &format!(
            "echo \"low: $*\"; printf '%s' \"$0\" > {}/ran",
            tree.shown()
        ),
    );
    tree.file(
        "config.toml",
        format!(
            "root = \"{0}/host\"\nruntimes = [\"absent\", \"low\"]\nlog-file = \"{0}/log\"\nlog-level = \"debug\"\n",
            tree.shown()
        ),
    );
    tree
}

fn node(tree: &Tree) {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    let path = tree.path("host/dev/zero");
    let mode = Mode::from_raw_mode(0o620);
    mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(1, 5)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o620)).unwrap();
}

fn shim(tree: &Tree, words: &[&str]) -> Output {
    let path = format!("{}/bin:/usr/bin:/bin", tree.shown());
    program("/usr/bin/oci-decorator-runtime")
        .args(words)
        .env("PATH", path)
        .env("OCI_DECORATOR_CONFIG", tree.path("config.toml"))
        .current_dir(tree.path("bundle"))
        .output()
        .unwrap()
}

#[test]
fn create_edits_the_bundle_and_becomes_the_runtime() {
    let tree = setup();
    let bundle = tree.path("bundle").display().to_string();
    let output = shim(
        &tree,
        &["--root", "/r", "create", "--bundle", &bundle, "c1"],
    );
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let expected = format!("low: --root /r create --bundle {bundle} c1\n");
    assert_eq!(stdout(&output), expected);
    let spec = tree.text("bundle/config.json");
    let source = format!("{}/host/store/v1/opt/x/lib/libx.so.1.2", tree.shown());
    for target in ["libx.so.1", "libx.so.1.2"] {
        let mount = format!(
            r#"{{"destination":"/opt/x/lib/{target}","type":"bind","source":"{source}","options":["bind","ro","nosuid","nodev","rprivate"]}}"#
        );
        assert!(spec.contains(&mount), "{spec}");
    }
    assert!(spec.ends_with(r#","x-unknown":1.50}"#), "{spec}");
    assert!(tree.path("bundle/rootfs/opt/x/empty").is_dir());
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/opt/x/lib/libx.so.1\0"));
    let drop_in = tree.text("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf");
    assert_eq!(drop_in.lines().nth(1), Some("/opt/x/lib"));
    let log = tree.text("log");
    assert!(log.contains("absent[0-9] is left out: no device of this host matches"));
    assert!(log.contains("/opt/x/lib/libgone.so is left out: the host has no such file"));
    assert!(log.contains("[vendor=x feature=run container=c1]"), "{log}");
}

#[test]
fn a_device_node_and_its_rule_are_added() {
    if !support::is_root("mknod") {
        return;
    }
    let tree = setup();
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let spec = tree.text("bundle/config.json");
    let node = r#""devices":[{"path":"/dev/null","type":"c","major":1,"minor":5,"fileMode":400,"uid":0,"gid":0}]"#;
    assert!(spec.contains(node), "{spec}");
    let rules = r#"[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":5,"access":"rwm"}]"#;
    assert!(spec.contains(rules), "{spec}");
}

#[test]
fn a_second_start_changes_nothing() {
    let tree = setup();
    shim(&tree, &["create", "c1"]);
    let (spec, listing) = (tree.text("bundle/config.json"), tree.listing());
    let inode = fs::metadata(tree.path("bundle/config.json")).unwrap().ino();
    shim(&tree, &["run", "-b=.", "c1"]);
    assert_eq!(tree.text("bundle/config.json"), spec);
    assert_eq!(
        fs::metadata(tree.path("bundle/config.json")).unwrap().ino(),
        inode
    );
    assert_eq!(tree.listing(), listing);
}

#[test]
fn nothing_is_touched_when_nobody_asks() {
    for value in ["none", "void"] {
        let tree = setup();
        let spec = SPEC.replace("OCI_X=run", &format!("OCI_X={value}"));
        tree.file("bundle/config.json", &spec);
        tree.file(
            &format!("{CONFIG_DIR}/bad.json"),
            "{\"activation_flag\": \"OCI_BAD\",",
        );
        let listing = tree.listing();
        assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
        assert_eq!(tree.text("bundle/config.json"), spec);
        fs::remove_file(tree.path("ran")).unwrap();
        assert!(tree
            .text("log")
            .contains("bad.json can't be used and is ignored"));
        fs::remove_file(tree.path("log")).unwrap();
        assert_eq!(tree.listing(), listing);
    }
}

/// Starts with another environment; the refusal must name these parts.
fn refused(tree: &Tree, env: &str, parts: &[&str]) {
    tree.file("bundle/config.json", SPEC.replace("OCI_X=run", env));
    let log = tree.path("runtime-log").display().to_string();
    let output = shim(
        tree,
        &["--log", &log, "--log-format", "json", "create", "c1"],
    );
    assert_eq!(code(&output), 1);
    assert_eq!(stdout(&output), "");
    let line = tree.text("runtime-log");
    fs::remove_file(&log).unwrap();
    let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(entry["level"], "error");
    let message = entry["msg"].as_str().unwrap();
    for part in parts {
        assert!(message.contains(part), "{part}\n{message}");
    }
    assert_eq!(stderr(&output), format!("{message}\n"));
    assert!(!tree.path("ran").exists(), "the runtime was started");
    assert!(!tree.text("bundle/config.json").contains("libx.so"));
}

#[test]
fn refusals_say_what_and_where() {
    let tree = setup();
    refused(
        &tree,
        "OCI_X=run,fly",
        &["\"fly\"", "OCI_X", "x.json", "run, more"],
    );
    tree.file(
        &format!("{CONFIG_DIR}/bad.json"),
        "{\"activation_flag\": \"OCI_BAD\",",
    );
    refused(
        &tree,
        "OCI_BAD=all",
        &["OCI_BAD", "bad.json", "oci-decorator check"],
    );
    fs::remove_file(tree.path("host/store/current")).unwrap();
    refused(
        &tree,
        "OCI_X=all",
        &["OCI_X", "not installed", "/store/current", "install it"],
    );
}

#[test]
fn a_runtime_log_in_text_is_one_line() {
    let tree = setup();
    tree.file("bundle/config.json", SPEC.replace("=run", "=a\\nb"));
    let log = tree.path("runtime-log").display().to_string();
    assert_eq!(code(&shim(&tree, &["--log", &log, "create", "c1"])), 1);
    let line = tree.text("runtime-log");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("time=\""));
    assert!(line.contains("level=error msg=\"oci-decorator: OCI_X asks"));
}

#[test]
fn other_verbs_pass_through_even_with_broken_settings() {
    let tree = setup();
    let output = shim(&tree, &["--systemd-cgroup", "state", "create"]);
    assert_eq!(stdout(&output), "low: --systemd-cgroup state create\n");
    assert!(tree.text("bundle/config.json") == SPEC);
    tree.file("config.toml", "colour = 1\n");
    tree.script("bin/runc", "echo default");
    assert_eq!(stdout(&shim(&tree, &["delete", "c1"])), "default\n");
    let output = shim(&tree, &["create", "c1"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("config.toml: colour: unknown key"));
}

#[test]
fn odd_bundles() {
    let tree = setup();
    fs::remove_file(tree.path("bundle/config.json")).unwrap();
    let output = shim(&tree, &["create", "c1"]);
    assert_eq!(
        stdout(&output),
        "low: create c1\n",
        "the runtime says what is missing"
    );
    for (content, part) in [
        ("{\"process\":", "not a valid spec"),
        ("[]", "not a valid spec"),
    ] {
        tree.file("bundle/config.json", content);
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
    tree.file("bundle/config.json", SPEC);
    tree.file("config.toml", "runtimes = [\"absent\"]\n");
    let output = shim(&tree, &["state", "c1"]);
    assert!(stderr(&output).contains("no low-level runtime found: absent"));
}

/// A container that was committed to an image keeps what the runtime left in place of
/// mounted files: empty ones. The loader must not find those of a driver that is gone.
#[test]
fn an_image_made_of_a_decorated_container_takes_another_driver() {
    let tree = setup();
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    for stub in ["libx.so.1", "libx.so.1.2"] {
        tree.file(&format!("bundle/rootfs/opt/x/lib/{stub}"), "");
    }
    tree.library("bundle/rootfs/opt/x/lib/libown.so.1", "libown.so.1", &[]);
    tree.library("host/store/v2/opt/x/lib/liby.so.7", "liby.so.7", &[]);
    fs::remove_file(tree.path("host/store/current")).unwrap();
    tree.link("host/store/current", "v2");
    let other = VENDOR.replace("libgone.so", "liby.so.7");
    tree.file(&format!("{CONFIG_DIR}/x.json"), other);
    tree.file("bundle/config.json", SPEC);
    assert_eq!(code(&shim(&tree, &["create", "c2"])), 0);
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/opt/x/lib/liby.so.7\0"));
    assert!(!cache.contains("libx.so.1"), "{cache}");
    let drop_in = tree.text("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf");
    assert_eq!(drop_in.matches("/opt/x/lib\n").count(), 1);
}

#[test]
fn musl_images_get_their_path_file() {
    let tree = setup();
    tree.file("bundle/rootfs/lib/ld-musl-x86_64.so.1", "");
    shim(&tree, &["create", "c1"]);
    let path = "bundle/rootfs/etc/ld-musl-x86_64.path";
    let expected = "/lib\n/usr/local/lib\n/usr/lib\n/opt/x/lib\n";
    assert_eq!(tree.text(path), expected);
    shim(&tree, &["create", "c1"]);
    assert_eq!(tree.text(path), expected);
}

#[test]
fn an_unreadable_cache_is_replaced() {
    if !support::is_root("namespaces") {
        return;
    }
    let tree = setup();
    tree.folder("bundle/rootfs/proc");
    tree.file("bundle/rootfs/etc/ld.so.cache", "garbage");
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    assert!(tree
        .text("bundle/rootfs/etc/ld.so.cache")
        .contains("/opt/x/lib/libx.so.1\0"));
}

/// Makes the image hostile in one way; the host's canary must stay untouched
/// and the container must start or fail with one line.
#[test]
fn no_path_of_the_image_leads_to_the_host() {
    type Trap = fn(&Tree, &str);
    let traps: [(&str, Trap); 14] = [
        ("etc is an absolute link", |t, canary| {
            relink(t, "etc", canary);
        }),
        ("etc is a relative link", |t, _| {
            relink(t, "etc", "../../canary");
        }),
        ("etc leads through proc", |t, canary| {
            relink(t, "etc", &format!("/proc/self/root{canary}"));
        }),
        ("cache is an absolute link", |t, canary| {
            t.link(
                "bundle/rootfs/etc/ld.so.cache",
                &format!("{canary}/ld.so.cache"),
            );
        }),
        ("cache is a relative link", |t, _| {
            t.link(
                "bundle/rootfs/etc/ld.so.cache",
                "../../../canary/ld.so.cache",
            );
        }),
        ("cache is a folder", |t, _| {
            t.folder("bundle/rootfs/etc/ld.so.cache/x");
        }),
        ("cache is a fifo", |t, _| {
            fifo(t, "bundle/rootfs/etc/ld.so.cache");
        }),
        ("cache is huge", |t, _| {
            let file = t.file("bundle/rootfs/etc/ld.so.cache", "");
            fs::File::options()
                .write(true)
                .open(file)
                .unwrap()
                .set_len(1 << 40)
                .unwrap();
        }),
        ("drop-in folder is a link", |t, canary| {
            t.link("bundle/rootfs/etc/ld.so.conf.d", canary);
        }),
        ("drop-in is a link", |t, canary| {
            let target = format!("{canary}/ld.so.cache");
            t.link(
                "bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf",
                &target,
            );
        }),
        ("conf is a fifo", |t, _| {
            fs::remove_file(t.path("bundle/rootfs/etc/ld.so.conf")).unwrap();
            fifo(t, "bundle/rootfs/etc/ld.so.conf");
        }),
        ("the temporary is a link", |t, canary| {
            let target = format!("{canary}/ld.so.cache");
            t.link("bundle/rootfs/etc/.oci-decorator.tmp", &target);
        }),
        ("the temporary is a folder", |t, _| {
            t.folder("bundle/rootfs/etc/.oci-decorator.tmp/x");
        }),
        ("a bare folder leads out", |t, canary| {
            t.link("bundle/rootfs/opt", canary);
        }),
    ];
    for (name, trap) in traps {
        let tree = setup();
        tree.file("canary/ld.so.cache", "host");
        let canary = tree.path("canary").display().to_string();
        trap(&tree, &canary);
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
        assert_eq!(tree.text("canary/ld.so.cache"), "host", "{name}");
        let entries = fs::read_dir(tree.path("canary")).unwrap().count();
        assert_eq!(entries, 1, "{name}");
    }
}

fn relink(tree: &Tree, name: &str, target: &str) {
    let path = format!("bundle/rootfs/{name}");
    fs::remove_dir_all(tree.path(&path)).unwrap();
    tree.link(&path, target);
}

fn fifo(tree: &Tree, path: &str) {
    use rustix::fs::{mknodat, FileType, Mode, CWD};
    let path = tree.path(path);
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// To open a device can be an act by itself (a watchdog starts, a tape rewinds), and a
/// FIFO holds its reader up. Every file of the image that is read is tried as either.
#[test]
fn no_device_and_no_fifo_of_the_image_is_ever_opened() {
    use rustix::fs::{inotify, makedev, mknodat, FileType, Mode, CWD};
    if !support::is_root("mknod") {
        return;
    }
    let files = [
        "etc/ld.so.cache",
        "etc/ld.so.conf",
        "etc/ld.so.conf.d/00-oci-decorator.conf",
        "etc/ld.so.conf.d/x.conf",
        "etc/ld-musl-x86_64.path",
        "etc/.oci-decorator.tmp",
    ];
    for (file, kind) in files
        .iter()
        .flat_map(|f| [(f, FileType::CharacterDevice), (f, FileType::Fifo)])
    {
        let tree = setup();
        tree.file("bundle/rootfs/lib/ld-musl-x86_64.so.1", "");
        let path = tree.path(&format!("bundle/rootfs/{file}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        // What /dev/null is: to open it succeeds, and so would be noticed.
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), makedev(1, 3)).unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, &path, inotify::WatchFlags::OPEN).unwrap();
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(code(&output), 0, "{file}: {}", stderr(&output));
        let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        while let Ok(event) = events.next() {
            // Others say that the file was replaced.
            let opened = event.events().contains(inotify::ReadFlags::OPEN);
            assert!(!opened, "{file} was opened");
        }
    }
}
