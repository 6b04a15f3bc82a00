//! Which device nodes a container gets: by a flag, by another program's variable, by a device of
//! either CDI specification, and as `check` foresees it.

use std::collections::BTreeSet;

use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::{code, make_folders_above, need, program, run, stderr, Tree};

const FOLDER: &str = "etc/oci-decorator/oci-decorator.d";
const NVIDIA: &str = r#"{"activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"], "interfaces": ["nvidia"],
    "units": "nvidia[0-9]*", "inventory": {
        "compute": {"devices": ["nvidiactl", "nvidia-uvm", "nvidia[0-9]*", "nvidia-caps/*"]},
        "graphics": {"devices": ["nvidiactl", "nvidia[0-9]*", "dri/card*", "dri/renderD*"]}}}"#;
/// `nvidia-cap1` is the right to partition every GPU.
const FACTS: &str = r#"{"devices": [
    {"index": 0, "minor": 0, "uuid": "GPU-a", "pci": "0000:01:00.0", "mig": [
        {"index": 0, "uuid": "MIG-a", "nodes": ["nvidia-caps/nvidia-cap3", "nvidia-caps/nvidia-cap4"]},
        {"index": 1, "uuid": "MIG-b", "nodes": ["nvidia-caps/nvidia-cap3", "nvidia-caps/nvidia-cap5"]}]},
    {"index": 1, "minor": 1, "uuid": "GPU-b", "pci": "0000:02:00.0", "mig": []}]}"#;
const NODES: [&str; 23] = [
    "gdrdrv",
    "nvidia-fs0",
    "nvidia-nvswitchctl",
    "nvidia-nvswitch0",
    "infiniband/uverbs0",
    "infiniband/rdma_cm",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia0",
    "nvidia1",
    "nvidia-caps/nvidia-cap1",
    "nvidia-caps/nvidia-cap3",
    "nvidia-caps/nvidia-cap4",
    "nvidia-caps/nvidia-cap5",
    "nvidia-caps-imex-channels/channel0",
    "kfd",
    "dri/card0",
    "dri/card1",
    "dri/card2",
    "dri/renderD128",
    "dri/renderD129",
    "dri/renderD130",
    "dri/renderD131",
];
/// PCI addresses and vendors, with their graphics nodes.
const GRAPHICS: [(&str, &str, &[&str]); 4] = [
    ("0000:01:00.0", "0x10de", &["card1", "renderD129"]),
    ("0000:03:00.0", "0x1002", &["card0", "renderD130"]),
    ("0000:00:02.0", "0x8086", &["card2", "renderD131"]),
    ("0000:04:00.0", "0x1002", &["renderD128"]),
];

/// A host with two GPUs of NVIDIA, two of AMD, and a display of Intel.
fn host() -> Option<Tree> {
    if !need::root("mknod") {
        return None;
    }
    let tree = Tree::new();
    tree.file(&format!("{FOLDER}/nvidia.json"), NVIDIA);
    for (name, text) in [
        ("amd", include_str!("../vendors/oci-amd.json")),
        ("intel", include_str!("../vendors/oci-intel.json")),
    ] {
        tree.file(&format!("{FOLDER}/{name}.json"), text);
    }
    tree.file("run/oci-decorator/devices/nvidia.json", FACTS);
    let nameless = r#"{"activation_flag": "OCI_NAMELESS", "driver_feature": ["graphics"],
        "units": "dri/renderD[0-9]*", "inventory": {"graphics": {"devices": ["dri/renderD*", "dri/card*"]}}}"#;
    tree.file(&format!("{FOLDER}/nameless.json"), nameless);
    tree.file(
        "run/oci-decorator/devices/nameless.json",
        r#"{"source": "sysfs", "devices": [{"index": 0, "minor": 131, "pci": "0000:00:02.0"}]}"#,
    );
    for (minor, name) in (0..).zip(NODES) {
        let path = tree.path("dev").join(name);
        make_folders_above(&path);
        let mode = Mode::from_raw_mode(0o666);
        let kind = FileType::CharacterDevice;
        mknodat(CWD, path, kind, mode, makedev(240, minor)).unwrap();
    }
    for (pci, vendor, names) in GRAPHICS {
        let device = format!("sys/devices/{pci}");
        tree.file(&format!("{device}/vendor"), format!("{vendor}\n"));
        tree.link(&format!("sys/bus/pci/devices/{pci}"), &format!("../../../devices/{pci}"));
        for name in names {
            tree.folder(&format!("{device}/drm/{name}"));
            tree.link(&format!("{device}/drm/{name}/device"), "../..");
            tree.link(&format!("sys/class/drm/{name}"), &format!("../../devices/{pci}/drm/{name}"));
        }
    }
    let settings = format!("root = {:?}\ninterfaces = [\"nvidia\", \"amd\"]\n", tree.shown());
    tree.file("config.toml", settings);
    Some(tree)
}

fn paths<'v>(list: impl IntoIterator<Item = &'v Value>) -> BTreeSet<String> {
    let list = list.into_iter();
    let names = list.map(|node| node["path"].as_str().unwrap().trim_start_matches("/dev/"));
    names.map(str::to_owned).collect()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What a container with these variables gets, by its start and by `check`.
fn started(tree: &Tree, variables: &str) -> BTreeSet<String> {
    let config = tree.path("config.toml").display().to_string();
    let environment: Vec<&str> = variables.split_whitespace().collect();
    let spec =
        json!({"ociVersion": "1.0.2", "process": {"env": environment}, "root": {"path": "rootfs"}});
    let output = run(&["--config", &config, "precreate"], &spec.to_string());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let edited: Value = serde_json::from_slice(&output.stdout).unwrap();
    let given = paths(items(&edited["linux"]["devices"]));
    let mut words = vec!["--config", &config, "check", "--json"];
    words.extend(environment.iter().flat_map(|variable| ["--env", variable]));
    let output = run(&words, "");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let by_flag = items(&report["vendors"]).iter().flat_map(|it| items(&it["items"]));
    let by_flag = by_flag.filter(|it| it["kind"] == "device" && it["present"] == true);
    let foreign = items(&report["names"]).iter().take(1);
    let foreign = foreign.flat_map(|it| items(&it["gets"]["device"]));
    let mut foreseen = paths(by_flag);
    let names = foreign.map(|it| it.as_str().unwrap().trim_start_matches("/dev/").to_owned());
    foreseen.extend(names);
    assert_eq!(foreseen, given, "check, {variables}");
    given
}

/// What a device of a specification gives, without and with the edits that all devices share.
fn described(tree: &Tree, name: &str) -> BTreeSet<String> {
    let (vendor, device) = name.split_once('=').unwrap();
    let root = tree.shown();
    let output = if vendor == "nvidia.com/gpu" {
        let words = ["cdi", "generate", "--root", &root, "--format=json"];
        program("nvidia-ctk").args(words).output().unwrap()
    } else {
        run(&["cdi", "generate", "--root", &root, "--vendor", vendor], "")
    };
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let spec: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = items(&spec["devices"]).iter().find(|it| it["name"] == device);
    let Some(found) = found else {
        return BTreeSet::new();
    };
    let own = items(&found["containerEdits"]["deviceNodes"]);
    let shared = items(&spec["containerEdits"]["deviceNodes"]);
    paths(own.iter().chain(shared))
}

/// A container gets control nodes, and the chosen units and parts. Nothing gets a right.
#[test]
fn every_way_gives_the_nodes_of_the_same_classes() {
    let Some(tree) = host() else { return };
    let control = "nvidiactl nvidia-uvm";
    let parts = "nvidia-caps/nvidia-cap3 nvidia-caps/nvidia-cap4 nvidia-caps/nvidia-cap5";
    let graphics = "dri/card1 dri/renderD129";
    let compute = format!("{control} nvidia0 {parts} nvidia1");
    let every = format!("{compute} {graphics}");
    // A GPU that is named comes without its parts.
    let gpu = format!("{control} nvidia0 {graphics}");
    let amd = "dri/card0 dri/renderD130 dri/renderD128";
    for (asks, expected) in [
        ("OCI_NVIDIA=compute", compute.as_str()),
        ("OCI_NVIDIA=all", &every),
        ("OCI_AMD=compute", "kfd dri/renderD130 dri/renderD128"),
        ("OCI_AMD=all", &format!("kfd {amd}")),
        ("OCI_INTEL=graphics", "dri/card2 dri/renderD131"),
        ("NVIDIA_VISIBLE_DEVICES=all", &every),
        ("NVIDIA_VISIBLE_DEVICES=0", &gpu),
        (
            "NVIDIA_VISIBLE_DEVICES=GPU-b",
            &format!("{control} nvidia1"),
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=MIG-b",
            &format!("{gpu} nvidia-caps/nvidia-cap3 nvidia-caps/nvidia-cap5"),
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=GPU-b",
            &format!("{control} nvidia1"),
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=0,runtime.nvidia.com/gpu=1",
            &format!("{gpu} nvidia1"),
        ),
        ("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=all", &every),
        ("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=none", control),
        (
            "NVIDIA_VISIBLE_DEVICES=1 NVIDIA_GDRCOPY=enabled NVIDIA_GDS=enabled",
            &format!("{control} nvidia1 gdrdrv nvidia-fs0"),
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=1 NVIDIA_MOFED=enabled NVIDIA_NVSWITCH=enabled",
            &format!("{control} nvidia1 infiniband/uverbs0 infiniband/rdma_cm nvidia-nvswitchctl nvidia-nvswitch0"),
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=1 NVIDIA_GDRCOPY=1 NVIDIA_GDS=disabled",
            &format!("{control} nvidia1"),
        ),
        ("NVIDIA_GDRCOPY=enabled", ""),
        ("ROCR_VISIBLE_DEVICES=0", "kfd dri/renderD128"),
        (
            "ROCR_VISIBLE_DEVICES=all",
            "kfd dri/renderD128 dri/renderD130",
        ),
        ("nvidia=nvidia0", &gpu),
        ("nvidia=nvidia1", &format!("{control} nvidia1")),
        ("nvidia=nvidia-uvm", control),
        ("nvidia=nvidia-caps-nvidia-cap1", ""),
        ("nvidia=nvidia-caps-nvidia-cap3", ""),
        ("nvidia=feature-compute", &compute),
        ("nvidia=all", &every),
        // It is no device of a specification of all devices, as it can't be used.
        ("nvidia.com/gpu=0", ""),
        ("nvidia.com/gpu=GPU-b", &format!("{control} nvidia1")),
        (
            "nvidia.com/gpu=MIG-a",
            &format!("{gpu} nvidia-caps/nvidia-cap3 nvidia-caps/nvidia-cap4"),
        ),
        ("nvidia.com/gpu=all", &every),
        ("amd=dri-renderD130", "kfd dri/renderD130 dri/card0"),
        ("amd=dri-renderD128", "kfd dri/renderD128"),
        ("amd=dri-card2", ""),
        ("amd=all", &format!("kfd {amd}")),
        ("intel=all", "dri/card2 dri/renderD131"),
        // As a recipe has it: only the device facts say whose these devices are.
        ("OCI_NAMELESS=all", "dri/card2 dri/renderD131"),
        ("nameless=all", "dri/card2 dri/renderD131"),
    ] {
        let given = if asks.starts_with(|c: char| c.is_ascii_uppercase()) {
            started(&tree, asks)
        } else {
            described(&tree, asks)
        };
        let expected: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
        assert_eq!(given, expected, "{asks}");
    }
}

/// How the kernel describes GPUs, each with its address, minor number and UUID.
fn gpus(tree: &Tree, gpus: &[(&str, u32, &str)]) {
    for (pci, minor, uuid) in gpus {
        let text = format!("Model: \t\t X\nGPU UUID: \t {uuid}\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n");
        tree.file(&format!("proc/driver/nvidia/gpus/{pci}/information"), text);
    }
}

/// How the kernel describes partitions, each with the number of its node.
fn parts(tree: &Tree, parts: &[(&str, u32)]) {
    for (path, number) in parts {
        let text = format!("DeviceFileMinor: {number}\nDeviceFileMode: 292\n");
        tree.file(&format!("proc/driver/nvidia/capabilities/gpu0/mig/{path}/access"), text);
    }
}

/// Facts from before a GPU was divided, or its driver loaded again, would give another device.
#[test]
fn a_name_is_refused_if_the_kernel_contradicts_the_facts() {
    const FACTS: &str = r#"{"source": "nvml", "devices": [
        {"index": 0, "minor": 0, "uuid": "GPU-a", "pci": "0000:01:00.0", "mig": [
            {"index": 0, "uuid": "MIG-a", "gpu_instance": 1, "compute_instance": 0,
             "nodes": ["nvidia-caps/nvidia-cap3", "nvidia-caps/nvidia-cap4"]}]},
        {"index": 1, "minor": 1, "uuid": "GPU-b", "pci": "0000:02:00.0"}]}"#;
    let (first, second) = ("0000:01:00.0", "0000:02:00.0");
    let usual = [(first, 0, "GPU-a"), (second, 1, "GPU-b")];
    let divided = [("gi1", 3), ("gi1/ci0", 4)];
    let more = [("gi1", 3), ("gi1/ci0", 4), ("gi1/ci1", 5)];
    let incomplete = FACTS.replace("{\"source\"", "{\"problems\": [\"x\"], \"source\"");
    let by_proc = FACTS.replace("nvml", "proc");
    for (facts, now, capabilities, is_believed) in [
        (FACTS, &usual[..], &divided[..], true),
        (FACTS, &[], &[], true), // The driver is not loaded.
        (FACTS, &[(first, 0, "GPU-????????-????"), usual[1]], &divided, true),
        (FACTS, &[(first, 1, "GPU-a"), (second, 0, "GPU-b")], &divided, false),
        (FACTS, &[(first, 0, "GPU-c"), usual[1]], &divided, false),
        (FACTS, &[usual[0], ("0000:03:00.0", 1, "GPU-b")], &divided, false),
        (FACTS, &usual, &[], false),
        (FACTS, &usual, &[("gi1", 3), ("gi1/ci0", 5)], false),
        (FACTS, &usual, &[("gi2", 3), ("gi2/ci0", 4)], false),
        (FACTS, &usual, &more, false),
        (&incomplete, &usual, &more, true),
        (&incomplete, &usual, &[], false),
        (&by_proc, &usual, &more, true),
    ] {
        let Some(tree) = host() else { return };
        tree.file("run/oci-decorator/devices/nvidia.json", facts);
        gpus(&tree, now);
        parts(&tree, capabilities);
        let config = tree.path("config.toml").display().to_string();
        let start = |variable: &str| {
            let spec = json!({"process": {"env": [variable]}, "root": {"path": "rootfs"}});
            run(&["--config", &config, "precreate"], &spec.to_string())
        };
        for name in ["0", "GPU-b", "MIG-a"] {
            let output = start(&format!("NVIDIA_VISIBLE_DEVICES={name}"));
            let said = stderr(&output);
            assert_eq!(code(&output) == 0, is_believed, "{now:?} {capabilities:?} {said}");
            assert!(is_believed || said.contains("provision devices --rescan"), "{said}");
        }
        // Every device needs no name, and no partition is guessed.
        for all in ["NVIDIA_VISIBLE_DEVICES=all", "OCI_NVIDIA=all"] {
            let output = start(all);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            let edited: Value = serde_json::from_slice(&output.stdout).unwrap();
            let given = paths(items(&edited["linux"]["devices"]));
            assert!(given.contains("nvidia1"), "{given:?}");
            assert_eq!(given.contains("nvidia-caps/nvidia-cap4"), is_believed);
        }
        let (root, refresh) = (tree.shown(), tree.path("run/oci-decorator/refresh"));
        let words = ["cdi", "generate", "--root", &root];
        let generated = program("nvidia-ctk").args(words).output().unwrap();
        assert_eq!(code(&generated) == 0, is_believed, "{}", stderr(&generated));
        assert_eq!(refresh.exists(), !is_believed, "what starts provision-devices.service");
        std::fs::write(&refresh, "x").unwrap();
        program("nvidia-ctk").args(words).output().unwrap();
        let size = std::fs::metadata(&refresh).unwrap().len();
        assert_eq!(size == 0, !is_believed, "what that service sees while it runs");
        let _ = std::fs::remove_file(&refresh);
        tree.link("run/oci-decorator/refresh", "elsewhere");
        program("nvidia-ctk").args(words).output().unwrap();
        assert!(!tree.path("run/oci-decorator/elsewhere").exists(), "made through a link");
    }
}

#[test]
fn facts_of_graphics_are_compared_with_the_kernel_too() {
    let Some(tree) = host() else { return };
    let config = tree.path("config.toml").display().to_string();
    for (pci, minor, expected) in
        [("0000:04:00.0", 128, 0), ("0000:03:00.0", 128, 2), ("0000:09:00.0", 128, 2)]
    {
        let facts =
            json!({"source": "sysfs", "devices": [{"index": 0, "minor": minor, "pci": pci}]});
        tree.file("run/oci-decorator/devices/amd.json", facts.to_string());
        let spec =
            json!({"process": {"env": ["ROCR_VISIBLE_DEVICES=0"]}, "root": {"path": "rootfs"}});
        let output = run(&["--config", &config, "precreate"], &spec.to_string());
        assert_eq!(code(&output), expected, "{pci} {}", stderr(&output));
    }
}
