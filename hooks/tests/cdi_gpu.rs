//! `nvidia-ctk cdi`: its documents, compared with those that NVIDIA's users know.

use std::ffi::OsString;

use oci_decorator::cli::nvidia_ctk::cdi;
use oci_decorator::config::cdi::{parse, Syntax};
use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::{need, Tree};

const VENDOR: &str = r#"{
    "activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"], "cdi_kind": "nvidia.com/gpu", "units": "nvidia[0-9]*",
    "inventory": {
        "compute": {"devices": ["nvidia[0-9]*", "nvidiactl", "nvidia-caps/*"], "libraries": ["/usr/lib/libcuda.so.1"]},
        "graphics": {"devices": ["dri/*"]}
    }
}"#;
const FACTS: &str = r#"{"driver_version":"535.261.03","cuda_version":"12.2","devices":[
    {"index":1,"minor":0,"uuid":"GPU-aaa","pci":"0000:01:00.0","mig":[
        {"index":2,"uuid":"MIG-x","nodes":["nvidia-caps/nvidia-cap3"]},{"uuid":"MIG-y","nodes":["nvidia-caps/nvidia-cap4"]}]},
    {"index":0,"minor":1,"uuid":"GPU-bbb","pci":"0000:02:00.0","mig":[]}]}"#;

fn host() -> Option<Tree> {
    if !need::root("mknod") {
        return None;
    }
    let tree = Tree::new();
    tree.file("etc/oci-decorator/oci-decorator.d/nvidia.json", VENDOR);
    tree.library("usr/lib/libcuda.so.1", "libcuda.so.1", &[]);
    tree.folder("dev/nvidia-caps");
    tree.folder("dev/dri");
    tree.folder("sys/bus/pci/devices/0000:02:00.0/drm/card5");
    tree.file("sys/class/drm/card0/device/vendor", "0x8086\n");
    let names = [
        "nvidia0",
        "nvidia1",
        "nvidiactl",
        "nvidia-caps/nvidia-cap3",
        "nvidia-caps/nvidia-cap4",
        "nvidia-caps/nvidia-cap1",
        "dri/card0",
        "dri/card5",
    ];
    for (minor, name) in names.iter().enumerate() {
        let mode = Mode::from_raw_mode(0o666);
        let numbers = makedev(240, u32::try_from(minor).unwrap());
        mknodat(
            CWD,
            tree.path("dev").join(name),
            FileType::CharacterDevice,
            mode,
            numbers,
        )
        .unwrap();
    }
    Some(tree)
}

fn ctk(words: &[&str]) -> oci_decorator::error::Result<u8> {
    cdi::run(&words.iter().map(OsString::from).collect::<Vec<_>>())
}

fn generate(tree: &Tree, words: &[&str]) -> Value {
    let file = tree.path("out/nvidia.json").display().to_string();
    let root = tree.shown();
    let fixed = [
        "generate",
        "--root",
        &root,
        "--output",
        &file,
        "--format=json",
    ];
    assert_eq!(ctk(&[&fixed, words].concat()), Ok(0));
    let text = tree.text("out/nvidia.json");
    // Our own reader accepts what we write.
    parse(&text, Syntax::Json).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn names(spec: &Value) -> Vec<&str> {
    let devices = spec["devices"].as_array().unwrap().iter();
    devices.map(|d| d["name"].as_str().unwrap()).collect()
}

fn nodes(edits: &Value) -> Vec<&str> {
    let nodes = edits["deviceNodes"].as_array().unwrap().iter();
    nodes.map(|n| n["path"].as_str().unwrap()).collect()
}

#[test]
fn a_device_for_each_unit_and_part_by_every_naming() {
    let Some(tree) = host() else { return };
    tree.file("run/oci-decorator/devices/nvidia.json", FACTS);
    let spec = generate(&tree, &[]);
    assert_eq!(spec["kind"], "nvidia.com/gpu");
    assert_eq!(spec["cdiVersion"], "0.5.0");
    let expected = [
        "1", "GPU-aaa", "1:2", "MIG-x", "1:1", "MIG-y", "0", "GPU-bbb", "all",
    ];
    assert_eq!(names(&spec), expected);
    let of = |name: &str| {
        let devices = spec["devices"].as_array().unwrap();
        let found = devices.iter().find(|d| d["name"] == name).unwrap();
        nodes(&found["containerEdits"])
    };
    let whole = [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap3",
        "/dev/nvidia-caps/nvidia-cap4",
    ];
    assert_eq!(of("1"), whole);
    assert_eq!(
        of("GPU-bbb"),
        ["/dev/dri/card5", "/dev/nvidia1"]
            .iter()
            .rev()
            .copied()
            .collect::<Vec<_>>()
    );
    assert_eq!(of("1:1"), ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap4"]);
    assert_eq!(of("all").len(), 5, "another vendor's display is not in it");
    let common = &spec["containerEdits"];
    // The node with which a container can partition every GPU is not listed, although the
    // inventory has it.
    assert_eq!(nodes(common), ["/dev/nvidiactl"]);
    assert_eq!(common["env"], json!(["NVIDIA_VISIBLE_DEVICES=void"]));
    assert_eq!(
        common["mounts"][0]["containerPath"],
        "/usr/lib/libcuda.so.1"
    );
    let hooks: Vec<_> = common["hooks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|h| h["args"].clone())
        .collect();
    let expected = [
        json!([
            "nvidia-cdi-hook",
            "enable-cuda-compat",
            "--host-driver-version=535.261.03",
            "--host-cuda-version=12.2"
        ]),
        json!(["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib"]),
        json!(["nvidia-cdi-hook", "disable-device-node-modification"]),
    ];
    assert_eq!(hooks, expected);
    assert!(common["hooks"][0]["env"].is_array());
    let spec = generate(
        &tree,
        &[
            "--device-name-strategy=type-index",
            "--vendor",
            "a.com",
            "--class=x",
            "--disable-hook=all",
            "--mode=nvml",
        ],
    );
    assert_eq!(names(&spec), ["gpu1", "mig1:2", "mig1:1", "gpu0", "all"]);
    assert_eq!(spec["kind"], "a.com/x");
    assert!(spec["containerEdits"]["hooks"].is_null());
}

#[test]
fn a_specification_has_the_devices_that_are_asked_for() {
    let Some(tree) = host() else { return };
    tree.file("run/oci-decorator/devices/nvidia.json", FACTS);
    let whole = [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap3",
        "/dev/nvidia-caps/nvidia-cap4",
    ];
    for (words, expected, of_all) in [
        (
            &["--device-id=0"][..],
            &["0", "GPU-bbb", "all"][..],
            &["/dev/nvidia1", "/dev/dri/card5"][..],
        ),
        (
            &["--device-id", "GPU-aaa"],
            &["1", "GPU-aaa", "all"],
            &whole,
        ),
        (&["--device-id=1:2"], &["1:2", "MIG-x", "all"], &whole[..2]),
        (
            &["--device-id=MIG-x", "--device-id=1", "--no-all-device"],
            &["1", "GPU-aaa", "1:2", "MIG-x"],
            &[],
        ),
        (
            &["--devices=1,MIG-y"],
            &["1", "GPU-aaa", "1:1", "MIG-y", "all"],
            &whole,
        ),
        (&["--device-id=none"], &["none"], &[]),
        (
            &["--no-all-device=true", "--device-id=0,all"],
            &[
                "1", "GPU-aaa", "1:2", "MIG-x", "1:1", "MIG-y", "0", "GPU-bbb",
            ],
            &[],
        ),
    ] {
        let spec = generate(&tree, words);
        assert_eq!(names(&spec), expected, "{words:?}");
        let devices = spec["devices"].as_array().unwrap();
        let all = devices.iter().find(|d| d["name"] == "all");
        let mut found = all.map_or(Vec::new(), |all| nodes(&all["containerEdits"]));
        let mut wanted = of_all.to_vec();
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{words:?}");
    }
    let root = tree.shown();
    for id in ["7", "GPU-", "1:7", "gpu"] {
        let error = ctk(&["generate", "--root", &root, "--device-id", id]).unwrap_err();
        assert_eq!(error.code, 3);
        let expected = format!("no device {id:?}; known are 1, GPU-aaa, gpu1, 1:2, MIG-x");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn hooks_are_left_out_and_kept_by_their_names() {
    let Some(tree) = host() else { return };
    let words = ["--disable-hook=all", "--enable-hook=update-ldcache"];
    let spec = generate(&tree, &words);
    let hooks = spec["containerEdits"]["hooks"].as_array().unwrap();
    assert_eq!(hooks.len(), 1);
    assert_eq!(hooks[0]["args"][1], "update-ldcache");
}

/// Modes whose nodes are not a GPU's never give a GPU.
#[test]
fn a_mode_gives_its_own_nodes() {
    let Some(tree) = host() else { return };
    let root = tree.shown();
    for (mode, pattern, module) in [
        ("gds", "no nvidia-fs* in", "modprobe nvidia-fs"),
        (
            "mofed",
            "no infiniband/uverbs* and no infiniband/rdma_cm in",
            "modprobe ib_uverbs",
        ),
        (
            "imex",
            "no nvidia-caps-imex-channels/channel* in",
            "modprobe nvidia",
        ),
        ("gdrcopy", "no gdrdrv in", "modprobe gdrdrv"),
        ("nvswitch", "no nvidia-nvswitch* in", "modprobe nvidia"),
        ("management", "is not supported", "leave --mode out"),
    ] {
        let error = ctk(&["generate", "--root", &root, "--mode", mode]).unwrap_err();
        let said = error.to_string();
        assert_eq!(error.code, 3, "{said}");
        assert!(said.contains(pattern) && said.contains(module), "{said}");
    }
    for name in [
        "gdrdrv",
        "nvidia-fs0",
        "nvidia-fs1",
        "nvidia-caps-imex-channels/channel0",
        "nvidia-caps-imex-channels/channel12",
    ] {
        let path = tree.path("dev").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(240, 20)).unwrap();
    }
    tree.file("etc/cufile.json", "{}");
    let spec = generate(&tree, &["--mode=gds", "--class=gds"]);
    assert_eq!(
        (names(&spec), &spec["kind"]),
        (vec!["all"], &json!("nvidia.com/gds"))
    );
    assert_eq!(
        nodes(&spec["devices"][0]["containerEdits"]),
        ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]
    );
    assert_eq!(
        spec["containerEdits"]["mounts"][0]["containerPath"],
        "/etc/cufile.json"
    );
    assert_eq!(
        spec["containerEdits"]["mounts"].as_array().unwrap().len(),
        1
    );
    let spec = generate(&tree, &["--mode=gdrcopy", "--class=gdrcopy"]);
    let all = &spec["devices"][0]["containerEdits"];
    assert_eq!(
        (names(&spec), nodes(all)),
        (vec!["all"], vec!["/dev/gdrdrv"])
    );
    let spec = generate(&tree, &["--mode=IMEX", "--device-id=12", "--no-all-device"]);
    assert_eq!(names(&spec), ["12"]);
    let spec = generate(&tree, &["--mode=imex"]);
    assert_eq!(names(&spec), ["0", "12", "all"]);
    let error = ctk(&["generate", "--root", &root, "--mode=imex", "--device-id=2"]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("--mode imex has no device \"2\""),
        "{error}"
    );
}

#[test]
fn a_host_without_gpus_has_no_empty_specification() {
    let Some(tree) = host() else { return };
    for name in ["nvidia0", "nvidia1"] {
        std::fs::remove_file(tree.path("dev").join(name)).unwrap();
    }
    let (root, out) = (tree.shown(), tree.path("out.yaml").display().to_string());
    for more in [
        &[][..],
        &["--mode=nvml"],
        &["--mode=csv"],
        &["--no-all-device"],
        &["--device-id=0"],
    ] {
        let words = ["generate", "--root", &root, "--output", &out];
        let error = ctk(&[&words, more].concat()).unwrap_err();
        assert_eq!(error.code, 3);
        let said = error.to_string();
        assert!(
            said.contains("that matches nvidia[0-9]*") && said.contains("nvidia.json"),
            "{said}"
        );
        assert!(said.contains("load the driver"), "{said}");
        assert!(!tree.path("out.yaml").exists());
    }
}

/// A vendor file may list the nodes of parts or not.
#[test]
fn a_part_has_its_two_rights_and_a_whole_device_has_those_of_all_its_parts() {
    const PARTS: &str = r#"{"driver_version":"535.261.03","devices":[
        {"index":0,"minor":0,"uuid":"GPU-aaa","mig":[]},
        {"index":1,"minor":1,"uuid":"GPU-bbb","mig":[
            {"index":0,"uuid":"MIG-x","nodes":["nvidia-caps/nvidia-cap3","nvidia-caps/nvidia-cap4"]},
            {"index":1,"uuid":"MIG-y","nodes":["nvidia-caps/nvidia-cap1"]}]}]}"#;
    for vendor in [VENDOR.to_owned(), VENDOR.replace(", \"nvidia-caps/*\"", "")] {
        let Some(tree) = host() else { return };
        tree.file("etc/oci-decorator/oci-decorator.d/nvidia.json", &vendor);
        tree.file("run/oci-decorator/devices/nvidia.json", PARTS);
        let spec = generate(&tree, &[]);
        let of = |name: &str| {
            let devices = spec["devices"].as_array().unwrap();
            let found = devices.iter().find(|d| d["name"] == name).unwrap();
            let mut nodes = nodes(&found["containerEdits"]);
            nodes.retain(|node| !node.contains("/dri/"));
            nodes.sort_unstable();
            nodes
        };
        let caps = [1, 3, 4].map(|n| format!("/dev/nvidia-caps/nvidia-cap{n}"));
        assert_eq!(of("0"), ["/dev/nvidia0"], "{vendor}");
        assert_eq!(of("1:0"), [&caps[1], &caps[2], "/dev/nvidia1"], "{vendor}");
        assert_eq!(of("MIG-y"), [&caps[0], "/dev/nvidia1"], "{vendor}");
        assert_eq!(
            of("1"),
            [&caps[0], &caps[1], &caps[2], "/dev/nvidia1"],
            "{vendor}"
        );
        assert_eq!(
            nodes(&spec["containerEdits"]),
            ["/dev/nvidiactl"],
            "{vendor}"
        );
    }
}

#[test]
fn without_facts_the_number_of_a_node_is_its_index() {
    let Some(tree) = host() else { return };
    assert_eq!(names(&generate(&tree, &[])), ["0", "1", "all"]);
    let path = tree.path("dev/nvidia0");
    std::os::unix::fs::chown(&path, None, Some(44)).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o660)).unwrap();
    let spec = generate(&tree, &[]);
    assert_eq!(spec["cdiVersion"], "0.7.0");
    assert_eq!(
        spec["devices"][0]["containerEdits"]["additionalGids"],
        json!([44])
    );
}

#[test]
fn yaml_is_written_by_the_name_of_the_output_and_can_be_transformed() {
    let Some(tree) = host() else { return };
    let (root, file) = (tree.shown(), tree.path("nvidia.yaml").display().to_string());
    assert_eq!(
        ctk(&["generate", "--root", &root, "--output", &file]),
        Ok(0)
    );
    let yaml = parse(&tree.text("nvidia.yaml"), Syntax::Yaml).unwrap();
    assert!(yaml.edits.mounts[0].source.starts_with(&root));
    let moved = tree.path("moved.json").display().to_string();
    let words = [
        "transform",
        "root",
        "--from",
        &root,
        "--to",
        "/",
        "--input",
        &file,
        "--output",
        &moved,
    ];
    assert_eq!(ctk(&words), Ok(0));
    let json = parse(&tree.text("moved.json"), Syntax::Json).unwrap();
    assert_eq!(json.edits.mounts[0].source, "/usr/lib/libcuda.so.1");
    assert_eq!(
        json.devices[0].edits.nodes[0].host_path.as_deref(),
        Some("/dev/nvidia0")
    );
}

#[test]
fn mistakes_are_reported() {
    let tree = Tree::new();
    let root = tree.shown();
    for (words, code, part) in [
        (&[][..], 2, "no command given"),
        (&["fly"], 2, "unknown command \"fly\""),
        (&["transform", "x"], 2, "the only known command is root"),
        (&["transform", "root", "--from", "/"], 2, "--from and --to"),
        (
            &["generate", "--format", "xml"],
            2,
            "known are yaml and json",
        ),
        (&["generate", "--mode", "fast"], 2, "known are auto"),
        (
            &["generate", "--device-name-strategy", "x"],
            2,
            "known are index",
        ),
        (&["generate", "--fly=1"], 2, "unknown option --fly"),
        (&["generate", "--root", ""], 2, "--root is empty"),
        (
            &["generate", "--root", &root, "--vendor", "1"],
            2,
            "is not a kind of CDI",
        ),
        (
            &["generate", "--root", &root],
            3,
            "no vendor file for nvidia.com/gpu",
        ),
    ] {
        let error = ctk(words).unwrap_err();
        assert_eq!(error.code, code, "{words:?} {error}");
        assert!(error.to_string().contains(part), "{words:?} {error}");
    }
}

#[test]
fn the_vendor_file_that_answers_nvidias_interface_comes_first() {
    let Some(tree) = host() else { return };
    let own = VENDOR.replace(
        "\"activation_flag\": \"OCI_NVIDIA\"",
        "\"activation_flag\": \"OCI_SITE\"",
    );
    let own = own.replace(
        "\"cdi_kind\": \"nvidia.com/gpu\"",
        "\"interfaces\": [\"nvidia\"]",
    );
    // Its units are only control nodes, so its answer differs.
    let own = own.replace("\"units\": \"nvidia[0-9]*\"", "\"units\": \"nvidia[1-9]*\"");
    tree.file("etc/oci-decorator/oci-decorator.d/site.json", &own);
    let spec = generate(&tree, &[]);
    assert_eq!(names(&spec), ["1", "all"]);
}

#[test]
fn facts_that_others_may_have_written_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(tree) = host() else { return };
    let file = "run/oci-decorator/devices/nvidia.json";
    tree.file(file, FACTS);
    let permissions = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(tree.path(file), permissions).unwrap();
    let error = ctk(&["generate", "--root", &tree.shown()]).unwrap_err();
    assert!(
        error.to_string().contains("the device facts can't be used"),
        "{error}"
    );
    assert!(
        error.to_string().contains("provision devices refresh"),
        "{error}"
    );
}
