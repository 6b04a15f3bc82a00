//! `oci-decorator cdi generate`: its document, held against the rules of CDI.

mod support;

use serde_json::Value;
use support::{code, run, stderr, stdout, Tree};

const DIRECTORY: &str = "etc/oci-decorator/oci-decorator.d";
const VENDOR: &str = r#"{
    "activation_flag": "OCI_X", "driver_feature": ["run"],
    "inventory": {
        "run": {"devices": ["x0", "x1"], "libraries": ["/opt/x/libx.so.1"], "directories": ["/opt/x"]},
        "more": {"devices": ["x1"], "binaries": ["/usr/bin/x-smi"]}
    }
}"#;

fn host() -> Option<Tree> {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    if !support::is_root("mknod") {
        return None;
    }
    let tree = Tree::new();
    tree.file(&format!("{DIRECTORY}/xpu.json"), VENDOR);
    tree.library("opt/x/libx.so.1", "libx.so.1", &[]);
    tree.file("usr/bin/x-smi", "");
    for minor in 0..2 {
        let node = tree.folder("dev").join(format!("x{minor}"));
        let mode = Mode::from_raw_mode(0o600);
        mknodat(
            CWD,
            node,
            FileType::CharacterDevice,
            mode,
            makedev(240, minor),
        )
        .unwrap();
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

fn edits<'a>(spec: &'a Value, name: &str) -> &'a Value {
    let devices = spec["devices"].as_array().unwrap();
    &devices.iter().find(|d| d["name"] == name).unwrap()["containerEdits"]
}

#[test]
fn a_device_for_each_node_each_feature_and_all() {
    let Some(tree) = host() else { return };
    let spec = generate(&tree, &[]);
    assert_eq!(spec["cdiVersion"], "0.5.0");
    assert_eq!(spec["kind"], "oci-decorator/xpu");
    assert_eq!(
        names(&spec),
        ["x0", "x1", "feature-run", "feature-more", "all"]
    );
    let node = &edits(&spec, "x1")["deviceNodes"][0];
    assert_eq!(node["path"], "/dev/x1");
    assert_eq!(node["hostPath"], format!("{}/dev/x1", tree.shown()));
    assert_eq!((&node["major"], &node["minor"]), (&240.into(), &1.into()));
    assert_eq!(
        (&node["fileMode"], &node["permissions"]),
        (&0o600.into(), &"rwm".into())
    );
    let count = |name: &str, member: &str| {
        let edits = edits(&spec, name);
        edits[member].as_array().map_or(0, Vec::len)
    };
    for (name, nodes, mounts, hooks) in [
        ("x0", 1, 1, 1),
        ("x1", 1, 2, 1),
        ("feature-run", 2, 1, 1),
        ("feature-more", 1, 1, 0),
        ("all", 2, 2, 1),
    ] {
        let found = ["deviceNodes", "mounts", "hooks"].map(|member| count(name, member));
        assert_eq!(found, [nodes, mounts, hooks], "{name}");
    }
}

#[test]
fn hooks_carry_their_own_environment_and_say_what_they_are_for() {
    let Some(tree) = host() else { return };
    let spec = generate(&tree, &[]);
    let hook = &edits(&spec, "x1")["hooks"][0];
    assert_eq!(hook["hookName"], "createRuntime");
    assert_eq!(hook["env"][0], "PATH=/usr/sbin:/usr/bin:/sbin:/bin");
    let words: Vec<_> = hook["args"].as_array().unwrap().iter().collect();
    let root = tree.shown();
    let expected = [
        "oci-decorator",
        "createRuntime",
        "--root",
        &root,
        "--library-cache",
        "OCI_X=run,more",
    ];
    assert_eq!(words, expected);
}

#[test]
fn several_vendors_share_a_document_or_have_one_each() {
    let Some(tree) = host() else { return };
    let other = VENDOR.replace("OCI_X", "OCI_Y").replace(
        "\"inventory\"",
        "\"cdi_kind\": \"y.com/npu\", \"inventory\"",
    );
    tree.file(&format!("{DIRECTORY}/ypu.json"), other);
    let both = generate(&tree, &[]);
    assert_eq!(both["kind"], "oci-decorator/driver");
    assert_eq!(
        names(&both)[..5],
        [
            "xpu-x0",
            "xpu-x1",
            "xpu-feature-run",
            "xpu-feature-more",
            "xpu-all"
        ]
    );
    assert_eq!(names(&both)[10], "all");
    let one = generate(&tree, &["--vendor", "ypu"]);
    assert_eq!(one["kind"], "y.com/npu");
}

#[test]
fn a_file_is_written_whole_and_again_and_its_folder_made() {
    let Some(tree) = host() else { return };
    let file = tree.path("cdi").join("x.json").display().to_string();
    let root = tree.shown();
    for _ in 0..2 {
        let output = run(&["cdi", "generate", "--root", &root, "--output", &file], "");
        assert_eq!((code(&output), stdout(&output)), (0, String::new()));
    }
    assert!(tree
        .text("cdi/x.json")
        .contains("\"kind\": \"oci-decorator/xpu\""));
    assert_eq!(std::fs::read_dir(tree.path("cdi")).unwrap().count(), 1);
}

#[test]
fn what_is_wrong_is_said() {
    let tree = Tree::new();
    let root = tree.shown();
    let fails = |words: &[&str], expected: i32, part: &str| {
        let output = run(&[&["cdi"], words, &["--root", &root]].concat(), "");
        assert_eq!(code(&output), expected, "{words:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    };
    fails(&[], 2, "known is generate");
    fails(&["list"], 2, "list");
    fails(&["generate"], 3, "has no vendor files");
    tree.file(&format!("{DIRECTORY}/x.json"), VENDOR);
    // Of one letter: some readers of CDI panic.
    fails(&["generate"], 2, "\"oci-decorator/x\" is not a kind of CDI");
    fails(&["generate", "--vendor", "y"], 3, "has no y.json");
    tree.file(
        &format!("{DIRECTORY}/x.json"),
        VENDOR.replace("devices", "devises"),
    );
    fails(&["generate"], 2, "x.json can't be used");
}
