//! `oci-decorator cdi generate`: its document, compared with the rules of CDI.

use crate::support::{code, need, program, run, stderr, stdout, Tree};
use oci_decorator::config::cdi::{parse, Syntax};
use serde_json::Value;

const DIRECTORY: &str = "etc/oci-decorator/oci-decorator.d";
const VENDOR: &str = r#"{
    "activation_flag": "OCI_X", "driver_feature": ["run"],
    "inventory": {
        "run": {"devices": ["x0", "x1", "xctl"], "libraries": ["/opt/x/libx.so.1"], "directories": ["/opt/x"]},
        "more": {"devices": ["x1"], "binaries": ["/usr/bin/x-smi"]}
    }
}"#;

fn host() -> Option<Tree> {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    if !need::root("mknod") {
        return None;
    }
    let tree = Tree::new();
    tree.file(&format!("{DIRECTORY}/xpu.json"), VENDOR);
    tree.library("opt/x/libx.so.1", "libx.so.1", &[]);
    tree.file("usr/bin/x-smi", "");
    let mode = Mode::from_raw_mode(0o600);
    for (minor, name) in ["x0", "x1", "xctl"].iter().enumerate() {
        let node = tree.folder("dev").join(name);
        let numbers = makedev(240, u32::try_from(minor).unwrap());
        mknodat(CWD, node, FileType::CharacterDevice, mode, numbers).unwrap();
    }
    Some(tree)
}

fn generate(tree: &Tree, words: &[&str]) -> Value {
    let root = tree.shown();
    let output = run(&[&["cdi", "generate", "--root", &root], words].concat(), "");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn names(spec: &Value) -> Vec<&str> {
    let devices = spec["devices"].as_array().unwrap().iter();
    devices.map(|d| d["name"].as_str().unwrap()).collect()
}

/// An engine refuses a whole document for one device that gives nothing.
#[test]
fn what_gives_nothing_is_left_out() {
    let Some(tree) = host() else { return };
    std::fs::remove_file(tree.path("dev/x1")).unwrap();
    std::fs::remove_file(tree.path("usr/bin/x-smi")).unwrap();
    assert_eq!(names(&generate(&tree, &[])), ["x0", "xctl", "feature-run", "all"]);
    let nothing = r#"{"activation_flag":"A","driver_feature":[],"inventory":{"a":{"devices":["y*"],"binaries":["/y"]}}}"#;
    tree.file(&format!("{DIRECTORY}/ypu.json"), nothing);
    let root = tree.shown();
    let output = run(&["cdi", "generate", "--vendor", "ypu", "--root", &root], "");
    assert_eq!((code(&output), stdout(&output)), (3, String::new()));
    assert!(stderr(&output).contains("has nothing that the vendor files list"));
}

/// Boots and activations run this. The folder then has the files of these vendors only.
#[test]
fn a_folder_has_a_file_for_each_vendor_that_can_have_one() {
    let Some(tree) = host() else { return };
    let vendor = |name: &str, text: &str| tree.file(&format!("{DIRECTORY}/{name}.json"), text);
    vendor("ypu", &VENDOR.replace("OCI_X", "OCI_Y"));
    vendor("gone", &VENDOR.replace("\"inventory\"", "\"root\": \"/gone\", \"inventory\""));
    for others in ["nvidia.json", "oci-decorator-nvidia.yaml", "oci-decorator.json"] {
        tree.file(&format!("run/cdi/{others}"), "another's");
    }
    let generate = |expected: i32| {
        let (root, folder) = (tree.shown(), format!("{}/run/cdi", tree.shown()));
        let words = ["cdi", "generate", "--root", &root, "--output-dir", &folder];
        let output = run(&words, "");
        assert_eq!((code(&output), stdout(&output)), (expected, String::new()));
        let listing = tree.listing();
        let found = listing.iter().filter_map(|p| p.strip_prefix("run/cdi/"));
        let ours =
            found.filter(|name| !tree.text(&format!("run/cdi/{name}")).contains("another's"));
        (ours.map(str::to_owned).collect::<Vec<_>>(), stderr(&output))
    };
    let (found, message) = generate(3);
    assert_eq!(found, ["oci-decorator-xpu.json", "oci-decorator-ypu.json"]);
    assert!(message.contains("the driver is not installed"), "{message}");
    // The same as for each vendor by itself: names don't change when a vendor is added.
    let spec: Value = serde_json::from_str(&tree.text("run/cdi/oci-decorator-ypu.json")).unwrap();
    assert_eq!(spec["kind"], "oci-decorator/ypu");
    assert!(names(&spec).contains(&"x0"));
    std::fs::remove_file(tree.path(&format!("{DIRECTORY}/gone.json"))).unwrap();
    std::fs::remove_file(tree.path(&format!("{DIRECTORY}/xpu.json"))).unwrap();
    assert_eq!(generate(0).0, ["oci-decorator-ypu.json"]);
    // A file that can't be read is worse than a missing driver.
    vendor("bad", "{");
    vendor("gone", &VENDOR.replace("\"inventory\"", "\"root\": \"/gone\", \"inventory\""));
    let (found, message) = generate(2);
    assert_eq!(found, ["oci-decorator-ypu.json"]);
    assert!(message.contains("bad.json can't be used") && message.contains("not installed"));
    assert_eq!(tree.listing().iter().filter(|p| p.starts_with("run/cdi/")).count(), 4);
}

const NVIDIA: &str = r#"{"activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"], "interfaces": ["nvidia"],
    "units": "x[0-9]*", "inventory": {"compute": {"devices": ["x[0-9]*", "xctl"]}}}"#;

/// Without NVIDIA's own service at boot, `--device nvidia.com/gpu=0` still finds its devices.
#[test]
fn devices_have_the_names_that_nvidias_users_know_unless_others_give_them() {
    let Some(tree) = host() else { return };
    let (root, folder) = (tree.shown(), tree.path("run/cdi").display().to_string());
    tree.folder("var");
    tree.link("var/run", "../run");
    let ours = "run/cdi/nvidia.yaml";
    let generate = || {
        let words = ["cdi", "generate", "--root", &root, "--output-dir", &folder];
        let output = run(&words, "");
        (code(&output), stderr(&output))
    };
    assert_eq!(generate(), (0, String::new()));
    assert!(!tree.path(ours).exists(), "no vendor file answers NVIDIA's interface");
    let vendor = |more: &str| {
        let text = NVIDIA.replace("\"units\"", &format!("{more}\"units\""));
        tree.file(&format!("{DIRECTORY}/gpus.json"), text);
    };
    vendor("");
    let names = || -> Vec<String> {
        let spec = parse(&tree.text(ours), Syntax::Yaml).unwrap();
        assert_eq!(spec.kind, "nvidia.com/gpu");
        spec.devices.into_iter().map(|device| device.name).collect()
    };
    assert_eq!(generate(), (0, String::new()));
    assert_eq!(names(), ["0", "1", "all"]);
    // A second run does not notify programs that watch the folder.
    let changed = || std::fs::metadata(tree.path(ours)).unwrap().modified().unwrap();
    let before = changed();
    assert_eq!(generate().0, 0);
    assert_eq!(changed(), before);
    // Its own specification, of the same kind, has a device "all".
    vendor("\"cdi_kind\": \"nvidia.com/gpu\", ");
    assert_eq!(generate().0, 0);
    assert_eq!(names(), ["0", "1"]);
    vendor("");
    let theirs = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"env":["A=1"]}}]}"#;
    for (path, text) in [
        ("etc/cdi/theirs.json", theirs),
        ("run/cdi/theirs.json", theirs),
        ("run/cdi/broken.yaml", "kind: nvidia.com/gpu\n\t"),
    ] {
        tree.file(path, text);
        let (code, message) = generate();
        let left = "nvidia.com/gpu and is not ours";
        assert!(
            code == 0
                && message.contains(left)
                && message.contains(path.split('/').next_back().unwrap()),
            "{message}"
        );
        assert!(!tree.path(ours).exists(), "{path}");
        std::fs::remove_file(tree.path(path)).unwrap();
        assert_eq!(generate(), (0, String::new()));
        assert_eq!(names(), ["0", "1", "all"]);
    }
    tree.file(ours, "kind: nvidia.com/gpu\n");
    assert!(generate().1.contains("run/cdi/nvidia.yaml has the kind"));
    assert_eq!(tree.text(ours), "kind: nvidia.com/gpu\n");
    std::fs::remove_file(tree.path(ours)).unwrap();
    assert_eq!(generate().0, 0);
    std::fs::remove_file(tree.path(&format!("{DIRECTORY}/gpus.json"))).unwrap();
    assert_eq!(generate().0, 0);
    assert!(!tree.path(ours).exists(), "it goes with its vendor");
}

/// Engines resolve a relative path of a specification in their own working folder.
#[test]
fn a_relative_root_is_absolute_in_what_is_written() {
    let Some(tree) = host() else { return };
    let vendor = VENDOR
        .replace("\"inventory\"", "\"interfaces\":[\"nvidia\"],\"units\":\"x[0-9]\",\"inventory\"");
    tree.file(&format!("{DIRECTORY}/xpu.json"), vendor);
    let spec = r#"{"process":{"env":["OCI_X=all"]},"mounts":[]}"#;
    for (name, words) in [
        ("oci-decorator", &["cdi", "generate", "--root"][..]),
        ("oci-decorator", &["precreate", "--root"]),
        ("nvidia-ctk", &["cdi", "generate", "--format=json", "--root"]),
    ] {
        let (root, folder) = (tree.0.path(), tree.0.path().parent().unwrap());
        let relative = root.file_name().unwrap();
        let made = |root: &std::ffi::OsStr| {
            let mut child = program(name)
                .args(words)
                .arg(root)
                .current_dir(folder)
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), spec.as_bytes());
            stdout(&child.wait_with_output().unwrap())
        };
        let absolute = made(root.as_os_str());
        assert!(absolute.contains(&format!("{}/opt/x", tree.shown())), "{absolute}");
        assert_eq!(made(relative), absolute, "{name} {words:?}");
    }
}

/// Every command that writes what a user names: the same bytes as on standard output, and the
/// target stays what it is.
#[test]
fn an_output_that_is_no_file_is_written_to() {
    use std::io::{Read, Write};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let Some(tree) = host() else { return };
    let root = tree.shown();
    let commands: [(&str, Vec<&str>); 3] = [
        ("oci-decorator", vec!["cdi", "generate", "--root", &root]),
        ("nvidia-ctk", vec!["config"]),
        ("nvidia-ctk", vec!["config", "default"]),
    ];
    let (fifo, null) = (tree.path("fifo"), tree.path("null"));
    let pipe = rustix::fs::FileType::Fifo;
    let node = rustix::fs::FileType::CharacterDevice;
    for (path, kind, numbers) in [(&fifo, pipe, 0), (&null, node, rustix::fs::makedev(1, 3))] {
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, 0o600.into(), numbers).unwrap();
    }
    tree.link("link", "fifo");
    let socket = std::os::unix::net::UnixListener::bind(tree.path("socket")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let names = ["fifo", "null", "link", "socket"];
    let state = || {
        let about = |name: &str| std::fs::symlink_metadata(tree.path(name)).unwrap().ino();
        let device = std::fs::symlink_metadata("/dev/stdout").unwrap().ino();
        (names.map(about), device, tree.listing())
    };
    for (name, words) in &commands {
        let call = |output: Option<&str>| {
            let mut command = program(name);
            command.args(words).stdin(std::process::Stdio::null());
            if let Some(output) = output {
                let at = |o: &str| {
                    if o.starts_with('/') {
                        o.into()
                    } else {
                        tree.path(o)
                    }
                };
                command.arg("--output").arg(at(output));
            }
            command
        };
        let plain = call(None).output().unwrap();
        assert!(code(&plain) == 0 && !plain.stdout.is_empty(), "{}", stderr(&plain));
        let before = state();
        let done = call(Some("null")).output().unwrap();
        assert_eq!((code(&done), stdout(&done)), (0, String::new()));
        for output in ["fifo", "link", "socket"] {
            // Both ends are open here, so that neither this test nor the program waits.
            let mut reader = options.open(&fifo).unwrap();
            let done = call(Some(output)).output().unwrap();
            assert_eq!(code(&done), 0, "{name} {words:?} {output}: {}", stderr(&done));
            let mut bytes = Vec::new();
            let read = match output {
                "socket" => socket.accept().and_then(|mut it| it.0.read_to_end(&mut bytes)),
                _ => reader.read_to_end(&mut bytes),
            };
            assert!(read.is_ok() || output != "socket", "{read:?}");
            assert_eq!(bytes, plain.stdout, "{name} {words:?} {output}");
        }
        assert_eq!(state(), before, "{name} {words:?}");
        for output in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert_eq!(call(Some(output)).output().unwrap().stdout, plain.stdout);
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"before ").unwrap();
            let status = call(Some(output)).stdout(file.try_clone().unwrap()).status();
            assert!(status.unwrap().success());
            let mut bytes = Vec::new();
            std::io::Seek::rewind(&mut file).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, [b"before ", &*plain.stdout].concat());
        }
        assert_eq!(state(), before, "{name} {words:?}");
    }
}

/// An engine that runs as a user also looks there.
#[test]
fn folders_that_are_made_can_be_read_by_everyone() {
    use std::os::unix::fs::PermissionsExt;
    let Some(tree) = host() else { return };
    let (root, folder) = (tree.shown(), tree.path("a/b/cdi"));
    let program = env!("CARGO_BIN_EXE_oci-decorator");
    let script = format!(
        "umask 077; exec {program} cdi generate --root {root} --output-dir {}",
        folder.display()
    );
    let status = std::process::Command::new("sh").args(["-c", &script]).status();
    assert!(status.unwrap().success());
    for folder in ["a", "a/b", "a/b/cdi"] {
        let mode = std::fs::metadata(tree.path(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{folder}");
    }
}
