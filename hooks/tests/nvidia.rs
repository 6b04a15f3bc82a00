//! NVIDIA's runtime: the program under its names, on a host with two GPUs, device facts and
//! a vendor file that answers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::{json, Value};

use crate::support::{code, need, program, stderr, stdout, Tree};

const FOLDER: &str = "host/etc/oci-decorator/oci-decorator.d";
const VENDOR: &str = r#"{
    "version": "535.261.03",
    "activation_flag": "OCI_NVIDIA",
    "driver_feature": ["compute"],
    "units": "nvidia[0-9]*",
    "interfaces": ["nvidia"],
    "aliases": {"graphics": ["gl"]},
    "inventory": {
        "compute": {"devices": ["nvidiactl", "nvidia[0-9]*"], "miscellaneous": ["/opt/x/compute"]},
        "utility": {"devices": ["nvidiactl", "nvidia[0-9]*"], "binaries": ["/usr/bin/nvidia-smi"]},
        "gl": {"devices": ["nvidiactl", "nvidia[0-9]*", "dri/*"], "miscellaneous": ["/opt/x/gl"]}
    }
}"#;
const FACTS: &str = r#"{"driver_version": "535.261.03", "cuda_version": "12.2", "devices": [
    {"index": 0, "minor": 1, "uuid": "GPU-aaaa", "pci": "0000:01:00.0", "brand": "Tesla", "arch": "8.0",
     "mig": [{"uuid": "MIG-xxxx", "gpu_instance": 1, "compute_instance": 0, "nodes": ["nvidia-caps/nvidia-cap3"]}]},
    {"index": 1, "minor": 0, "uuid": "GPU-bbbb", "pci": "0000:02:00.0", "brand": "Tesla", "arch": "8.0"}]}"#;
pub const RUNTIME: &str = "/usr/bin/nvidia-container-runtime";

/// Nodes of the host, with mode and group.
const NODES: [(&str, u32, u32); 6] = [
    ("nvidiactl", 0o666, 0),
    ("nvidia0", 0o666, 0),
    ("nvidia1", 0o660, 44),
    ("nvidia-caps/nvidia-cap3", 0o444, 0),
    ("dri/card0", 0o666, 0),
    ("dri/card1", 0o666, 0),
];

/// `None`: nodes can't be made here.
pub fn host() -> Option<Tree> {
    if !need::root("mknod") {
        return None;
    }
    let tree = Tree::new();
    tree.file(&format!("{FOLDER}/nvidia.json"), VENDOR);
    tree.file("host/run/oci-decorator/devices/nvidia.json", FACTS);
    for name in ["opt/x/compute", "opt/x/gl", "usr/bin/nvidia-smi"] {
        tree.file(&format!("host/{name}"), "");
    }
    for (at, (name, mode, group)) in (0..).zip(NODES) {
        node(&tree, name, mode, group, at);
    }
    for (pci, card) in [("0000:01:00.0", "card1"), ("0000:02:00.0", "card0")] {
        tree.folder(&format!("host/sys/bus/pci/devices/{pci}/drm/{card}"));
    }
    // Under NVIDIA's names its own config.toml says which: "runc" is first by default.
    let shown = tree.shown();
    tree.script("bin/runc", &format!("echo \"low: $*\"; touch {shown}/ran"));
    tree.script("bin/nvidia-container-runtime-hook", "exit 0");
    tree.file(
        "config.toml",
        format!("root = \"{shown}/host\"\nlog-file = \"{shown}/log\"\nlog-level = \"debug\"\n"),
    );
    tree.folder("bundle/rootfs");
    Some(tree)
}

/// Character devices of a number that no driver has.
pub fn node(tree: &Tree, name: &str, mode: u32, group: u32, minor: u32) {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    let path = tree.path(&format!("host/dev/{name}"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let kind = FileType::CharacterDevice;
    mknodat(
        CWD,
        &path,
        kind,
        Mode::from_raw_mode(0o600),
        makedev(240, minor),
    )
    .unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(&path, None, Some(group)).unwrap();
}

/// A config as Docker writes it, `--gpus` included where `hooks` are.
pub fn spec(environment: &[&str], hooks: &[&str]) -> Value {
    let prestart: Vec<Value> = hooks
        .iter()
        .map(|path| json!({"path": path, "args": ["nvidia-container-runtime-hook", "prestart"], "env": []}))
        .collect();
    json!({
        "ociVersion": "1.0.2",
        "process": {"env": environment, "user": {"uid": 0, "gid": 0}, "capabilities": {"bounding": ["CAP_KILL"]}},
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc"}],
        "hooks": {"prestart": prestart},
        "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}},
    })
}

pub fn create_as(tree: &Tree, name: &str, spec: &Value, variables: &[(&str, &str)]) -> Output {
    tree.file("bundle/config.json", spec.to_string());
    program(name)
        .args(["create", "c1"])
        .env_clear()
        .env("PATH", format!("{}/bin:/usr/bin:/bin", tree.shown()))
        .env("OCI_DECORATOR_CONFIG", tree.path("config.toml"))
        .envs(variables.iter().copied())
        .current_dir(tree.path("bundle"))
        .output()
        .unwrap()
}

fn create(tree: &Tree, environment: &[&str]) -> Value {
    let output = create_as(tree, RUNTIME, &spec(environment, &[]), &[]);
    assert_eq!(
        (code(&output), stderr(&output)),
        (0, String::new()),
        "{environment:?}"
    );
    assert_eq!(stdout(&output), "low: create c1\n");
    edited(tree)
}

pub fn edited(tree: &Tree) -> Value {
    serde_json::from_str(&tree.text("bundle/config.json")).unwrap()
}

fn names(spec: &Value, list: &str, key: &str) -> Vec<String> {
    let items = spec
        .pointer(list)
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let names = items
        .iter()
        .filter_map(|item| item[key].as_str().map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

pub fn nodes(spec: &Value) -> Vec<String> {
    let names = names(spec, "/linux/devices", "path");
    names
        .into_iter()
        .map(|path| path.replace("/dev/", ""))
        .collect()
}

#[test]
fn the_devices_that_are_asked_for_are_in_the_spec() {
    let Some(tree) = host() else { return };
    for (value, expected) in [
        (
            "0",
            &["nvidia-caps/nvidia-cap3", "nvidia1", "nvidiactl"][..],
        ),
        (
            "GPU-aaaa",
            &["nvidia-caps/nvidia-cap3", "nvidia1", "nvidiactl"],
        ),
        ("GPU-b", &["nvidia0", "nvidiactl"]),
        (
            "MIG-xxxx",
            &["nvidia-caps/nvidia-cap3", "nvidia1", "nvidiactl"],
        ),
        (
            "0,0,1",
            &["nvidia-caps/nvidia-cap3", "nvidia0", "nvidia1", "nvidiactl"],
        ),
        (
            "all",
            &["nvidia-caps/nvidia-cap3", "nvidia0", "nvidia1", "nvidiactl"],
        ),
        ("none", &["nvidiactl"]),
    ] {
        let spec = create(&tree, &[&format!("NVIDIA_VISIBLE_DEVICES={value}")]);
        assert_eq!(nodes(&spec), expected, "{value}");
        let mounts = names(&spec, "/mounts", "destination");
        assert_eq!(mounts, ["/opt/x/compute", "/proc", "/usr/bin/nvidia-smi"]);
        let groups = &spec["process"]["user"]["additionalGids"];
        let is_in = nodes(&spec).contains(&"nvidia1".to_owned());
        assert_eq!(
            *groups,
            if is_in { json!([44]) } else { Value::Null },
            "{value}"
        );
        // Programs that read it see what was asked for.
        assert_eq!(
            spec["process"]["env"][0],
            format!("NVIDIA_VISIBLE_DEVICES={value}")
        );
    }
}

#[test]
fn capabilities_are_features_of_the_vendor_file() {
    let Some(tree) = host() else { return };
    let asks = [
        "NVIDIA_VISIBLE_DEVICES=1",
        "NVIDIA_DRIVER_CAPABILITIES=graphics,video",
    ];
    let spec = create(&tree, &asks);
    assert_eq!(
        names(&spec, "/mounts", "destination"),
        ["/opt/x/gl", "/proc"]
    );
    assert_eq!(nodes(&spec), ["dri/card0", "nvidia0", "nvidiactl"]);
    let log = tree.text("log");
    assert!(
        log.contains("NVIDIA_VISIBLE_DEVICES asks for \"video\", which"),
        "{log}"
    );
}

#[test]
fn a_container_that_asks_for_nothing_costs_nothing() {
    let Some(tree) = host() else { return };
    for environment in [
        &["PATH=/bin"][..],
        &["NVIDIA_VISIBLE_DEVICES=void", "BARE"],
        &["NVIDIA_VISIBLE_DEVICES=", "NVIDIA_DRIVER_CAPABILITIES=fly"],
    ] {
        let spec = spec(environment, &["/usr/bin/nvidia-container-runtime-hook"]);
        let output = create_as(&tree, RUNTIME, &spec, &[]);
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
        assert_eq!(tree.text("bundle/config.json"), spec.to_string());
    }
    // Under our own names nothing of NVIDIA's is read.
    let asking = spec(&["NVIDIA_VISIBLE_DEVICES=all"], &[]);
    let output = create_as(&tree, "/usr/bin/oci-decorator-runtime", &asking, &[]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert_eq!(tree.text("bundle/config.json"), asking.to_string());
    let settings = tree.text("config.toml");
    tree.file(
        "config.toml",
        format!("{settings}interfaces = [\"nvidia\"]\n"),
    );
    let output = create_as(&tree, "/usr/bin/oci-decorator-runtime", &asking, &[]);
    assert_eq!(code(&output), 0);
    assert_eq!(nodes(&edited(&tree)).len(), 4);
}

#[test]
fn refusals_name_what_was_asked_for_and_what_there_is() {
    let Some(tree) = host() else { return };
    for (entries, parts) in [
        (
            &["NVIDIA_VISIBLE_DEVICES=7"][..],
            &[
                "NVIDIA_VISIBLE_DEVICES asks for the device \"7\"",
                "0 (GPU-aaaa; 0:0 MIG-xxxx), 1 (GPU-bbbb)",
            ][..],
        ),
        (
            &[
                "NVIDIA_VISIBLE_DEVICES=all",
                "NVIDIA_REQUIRE_CUDA=cuda>=12.9 brand=quadro",
            ],
            &[
                "NVIDIA_REQUIRE_CUDA=cuda>=12.9 brand=quadro",
                "cuda 12.2",
                "NVIDIA_DISABLE_REQUIRE",
            ],
        ),
        (
            &["CUDA_VERSION=13.0"],
            &["CUDA_VERSION=13.0 requires cuda>=13.0", "cuda 12.2"],
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=fly"],
            &[
                "\"fly\"",
                "compat32, compute, display, graphics, ngx, utility, video",
            ],
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=0", "BARE"],
            &["\"BARE\", which is not NAME=VALUE"],
        ),
    ] {
        let spec = spec(entries, &[]);
        let output = create_as(&tree, RUNTIME, &spec, &[]);
        assert_eq!(
            (code(&output), stdout(&output)),
            (1, String::new()),
            "{entries:?}"
        );
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        for part in parts {
            assert!(said.contains(part), "{part}\n{said}");
        }
        assert_eq!(tree.text("bundle/config.json"), spec.to_string());
        assert!(!tree.path("ran").exists());
    }
}

#[test]
fn one_vendor_file_answers() {
    let Some(tree) = host() else { return };
    let refused = |part: &str| {
        let output = create_as(
            &tree,
            RUNTIME,
            &spec(&["NVIDIA_VISIBLE_DEVICES=all"], &[]),
            &[],
        );
        let said = stderr(&output);
        assert_eq!(code(&output), 1, "{said}");
        assert!(said.contains(part), "{said}");
    };
    let other = format!("{FOLDER}/other.json");
    tree.file(&other, VENDOR.replace("OCI_NVIDIA", "OCI_OTHER"));
    refused("other.json answer \"nvidia\"");
    fs::remove_file(tree.path(&other)).unwrap();
    let own = format!("{FOLDER}/nvidia.json");
    tree.file(&own, VENDOR.replace("\"nvidia\"]", "\"nvidia\"],"));
    create(&tree, &["NVIDIA_VISIBLE_DEVICES=void"]);
    tree.file(&own, VENDOR.replace("\"version\"", "\"verson\""));
    refused("nvidia.json can't be used: verson: unknown field");
    tree.file(&own, VENDOR.replace("\"nvidia\"]", "]"));
    refused("no vendor file in ");
}

#[test]
fn the_policy_counts_under_every_name() {
    let Some(tree) = host() else { return };
    let settings = tree.text("config.toml");
    tree.file(
        "config.toml",
        format!("{settings}[policy]\nenvironment = \"privileged\"\n"),
    );
    let asking = spec(
        &[
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=fly",
        ],
        &[],
    );
    let output = create_as(&tree, RUNTIME, &asking, &[]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert_eq!(tree.text("bundle/config.json"), asking.to_string());
    let log = tree.text("log");
    assert!(
        log.contains("NVIDIA_VISIBLE_DEVICES of the container's environment does not count"),
        "{log}"
    );
    for settings_end in [
        "[policy]\nenvironment = \"none\"\non-refusal = \"fail\"\n",
        "colour = 1\n",
    ] {
        tree.file("config.toml", format!("{settings}{settings_end}"));
        let output = create_as(
            &tree,
            RUNTIME,
            &spec(&["NVIDIA_VISIBLE_DEVICES=all"], &[]),
            &[],
        );
        assert_eq!(code(&output), 1, "{settings_end}");
        let said = stderr(&output);
        assert!(said.contains("NVIDIA_VISIBLE_DEVICES"), "{said}");
        let quiet = create_as(&tree, RUNTIME, &spec(&["PATH=/"], &[]), &[]);
        assert_eq!(code(&quiet), 0);
    }
}

#[test]
fn facts_that_others_may_write_stop_those_who_need_them() {
    let Some(tree) = host() else { return };
    let facts = tree.path("host/run/oci-decorator/devices/nvidia.json");
    fs::set_permissions(&facts, PermissionsExt::from_mode(0o666)).unwrap();
    let spec = create(&tree, &["NVIDIA_VISIBLE_DEVICES=all"]);
    assert!(nodes(&spec).contains(&"nvidia0".to_owned()));
    assert!(tree
        .text("log")
        .contains("nvidia.json is writable by everyone; devices are known by"));
    let asking = self::spec(&["NVIDIA_VISIBLE_DEVICES=GPU-aaaa"], &[]);
    let output = create_as(&tree, RUNTIME, &asking, &[]);
    assert!(
        stderr(&output).contains("asks for the devices \"GPU-aaaa\", and "),
        "{}",
        stderr(&output)
    );
}

/// What Slurm sets for a job is the container's, in its own numbering.
#[test]
fn a_schedulers_devices_are_those_of_the_container() {
    let Some(tree) = host() else { return };
    let settings = tree.text("config.toml");
    tree.file(
        "config.toml",
        format!("{settings}scheduler = \"lenient\"\n"),
    );
    let image = spec(
        &["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=0,1"],
        &[],
    );
    let output = create_as(&tree, RUNTIME, &image, &[("CUDA_VISIBLE_DEVICES", "1")]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert_eq!(nodes(&edited(&tree)), ["dri/card0", "nvidia0", "nvidiactl"]);
    let environment = |spec: &Value| spec["process"]["env"].clone();
    let expected = json!([
        "NVIDIA_VISIBLE_DEVICES=1",
        "CUDA_VISIBLE_DEVICES=0",
        "NVIDIA_DRIVER_CAPABILITIES=all"
    ]);
    assert_eq!(environment(&edited(&tree)), expected);
    // Without devices, what the image asks for counts for nothing.
    for variables in [&[][..], &[("CUDA_VISIBLE_DEVICES", "NoDevFiles")]] {
        let output = create_as(&tree, RUNTIME, &image, variables);
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
        assert!(nodes(&edited(&tree)).is_empty());
        assert_eq!(environment(&edited(&tree)), json!([]));
    }
}

/// Docker adds the hook for `--gpus`, whatever the runtime.
#[test]
fn dockers_own_hook_is_taken_out_of_a_spec_that_is_edited() {
    let Some(tree) = host() else { return };
    let others = ["/usr/bin/other", "/usr/bin/nvidia-container-runtime-hook"];
    let docker = spec(&["NVIDIA_VISIBLE_DEVICES=1"], &others);
    let output = create_as(&tree, RUNTIME, &docker, &[]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let once = edited(&tree);
    assert_eq!(nodes(&once), ["nvidia0", "nvidiactl"]);
    assert_eq!(names(&once, "/hooks/prestart", "path"), ["/usr/bin/other"]);
    // A second start of the bundle changes nothing.
    assert_eq!(code(&create_as(&tree, RUNTIME, &once, &[])), 0);
    assert_eq!(edited(&tree), once);
}

/// NVIDIA's list counts if its file sets it, and otherwise ours.
#[test]
fn the_low_level_runtime_is_that_of_the_file_that_sets_it() {
    let Some(tree) = host() else { return };
    let (ours, theirs) = (tree.path("config.toml"), tree.path("nvidia.toml"));
    tree.script("bin/mine", "echo mine");
    tree.script("bin/other", "echo other");
    let settings = format!("runtimes = [\"mine\"]\n{}", tree.text("config.toml"));
    let shown = theirs.display().to_string();
    let asking = spec(
        &[
            "NVIDIA_VISIBLE_DEVICES=1",
            "NVIDIA_DRIVER_CAPABILITIES=graphics",
        ],
        &[],
    );
    for (own, nvidia, low) in [
        (&*settings, "", "mine"),
        (&settings, "runtimes = [\"other\"]\n", "other"),
        (&settings, "runtimes = [\"none\"]\n", &*shown),
        ("runtimes = [\"none\"]\n", "", &ours.display().to_string()),
    ] {
        tree.file("config.toml", own);
        tree.file(
            "nvidia.toml",
            format!("[nvidia-container-runtime]\n{nvidia}"),
        );
        let variables = [("NVIDIA_CTK_CONFIG_FILE_PATH", &*shown)];
        let asking = if own.len() < 30 {
            spec(&[], &[])
        } else {
            asking.clone()
        };
        let output = create_as(&tree, RUNTIME, &asking, &variables);
        if low.starts_with('/') {
            let expected = format!("under \"runtimes\" in {low}\n");
            assert!(stderr(&output).ends_with(&expected), "{}", stderr(&output));
        } else {
            assert_eq!(stdout(&output), format!("{low}\n"), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_name_of_the_program_means_a_mode() {
    let Some(tree) = host() else { return };
    let hook = tree
        .path("bin/nvidia-container-runtime-hook")
        .display()
        .to_string();
    let asking = spec(&["NVIDIA_VISIBLE_DEVICES=1"], &[]);
    for _ in 0..2 {
        let output = create_as(
            &tree,
            "/usr/bin/nvidia-container-runtime.legacy",
            &asking,
            &[],
        );
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
        let legacy = edited(&tree);
        let expected = json!([{
            "path": hook,
            "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        }]);
        assert_eq!(legacy["hooks"]["prestart"], expected);
        assert!(nodes(&legacy).is_empty());
    }
    let docker = spec(
        &["NVIDIA_VISIBLE_DEVICES=1"],
        &["/opt/nvidia-container-toolkit"],
    );
    let output = create_as(
        &tree,
        "/usr/bin/nvidia-container-runtime.legacy",
        &docker,
        &[],
    );
    assert_eq!(code(&output), 0);
    assert_eq!(tree.text("bundle/config.json"), docker.to_string());
}

/// Names of CDI are looked up in the host's specifications; bare ones have the default kind.
#[test]
fn devices_of_cdi_are_given_by_their_names() {
    let Some(tree) = host() else { return };
    tree.file(
        "host/etc/cdi/nvidia.json",
        r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "1",
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}], "env": ["CDI=1"]}}]}"#,
    );
    let cdi = "/usr/bin/nvidia-container-runtime.cdi";
    let docker = ["/usr/bin/nvidia-container-runtime-hook"];
    let mut annotated = spec(&[], &docker);
    annotated["annotations"] = json!({"cdi.k8s.io/x": "nvidia.com/gpu=1"});
    for (name, asking) in [
        (
            RUNTIME,
            spec(&["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"], &docker),
        ),
        (cdi, spec(&["NVIDIA_VISIBLE_DEVICES=1"], &docker)),
        (RUNTIME, annotated.clone()),
    ] {
        let output = create_as(&tree, name, &asking, &[]);
        assert_eq!(
            (code(&output), stderr(&output)),
            (0, String::new()),
            "{asking}"
        );
        let spec = edited(&tree);
        assert_eq!(nodes(&spec), ["nvidia0"]);
        let environment = spec["process"]["env"].as_array().unwrap();
        for entry in ["NVIDIA_VISIBLE_DEVICES=void", "CDI=1"] {
            assert!(environment.contains(&json!(entry)), "{environment:?}");
        }
        assert!(names(&spec, "/hooks/prestart", "path").is_empty());
    }
    let unknown = spec(&["NVIDIA_VISIBLE_DEVICES=7"], &[]);
    let output = create_as(&tree, cdi, &unknown, &[]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("nvidia.com/gpu=7"),
        "{}",
        stderr(&output)
    );
    // Engines handle annotations before they start a runtime under our own name.
    let output = create_as(&tree, "/usr/bin/oci-decorator-runtime", &annotated, &[]);
    assert_eq!(code(&output), 0);
    assert_eq!(tree.text("bundle/config.json"), annotated.to_string());
}

/// NVIDIA's own configuration sets the mode, the low-level runtimes and the log.
#[test]
fn nvidias_configuration_counts_under_its_names() {
    let Some(tree) = host() else { return };
    let shown = tree.shown();
    tree.script("bin/other", "echo \"other: $*\"");
    let file = tree.path("nvidia.toml").display().to_string();
    let variables = [("NVIDIA_CTK_CONFIG_FILE_PATH", file.as_str())];
    let lists = "host/etc/nvidia-container-runtime/host-files-for-container.d";
    tree.file(
        &format!("{lists}/l4t.csv"),
        "dir, /opt/x\ndev, /dev/nvidia0\nlib, /usr/lib/none.so\n",
    );
    let asking = spec(
        &["NVIDIA_VISIBLE_DEVICES=all"],
        &["/usr/bin/nvidia-container-runtime-hook"],
    );
    tree.file(
        "nvidia.toml",
        format!("[nvidia-container-runtime]\nmode = \"csv\"\nruntimes = [\"other\"]\ndebug = \"{shown}/debug\"\n"),
    );
    let output = create_as(&tree, RUNTIME, &asking, &variables);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert_eq!(stdout(&output), "other: create c1\n");
    let csv = edited(&tree);
    assert_eq!(nodes(&csv), ["nvidia0"]);
    assert_eq!(names(&csv, "/mounts", "destination"), ["/opt/x", "/proc"]);
    assert_eq!(
        csv["process"]["env"],
        json!(["NVIDIA_VISIBLE_DEVICES=void"])
    );
    assert!(names(&csv, "/hooks/prestart", "path").is_empty());
    assert!(tree.text("debug").contains("/usr/lib/none.so is left out"));
    // The hook that the mode "legacy" adds reads the same file.
    tree.file(
        "nvidia.toml",
        "[nvidia-container-runtime]\nmode = \"legacy\"\n",
    );
    let output = create_as(
        &tree,
        RUNTIME,
        &spec(&["NVIDIA_VISIBLE_DEVICES=all"], &[]),
        &variables,
    );
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let expected = json!([
        "nvidia-container-runtime-hook",
        format!("-config={file}"),
        "prestart"
    ]);
    assert_eq!(edited(&tree)["hooks"]["prestart"][0]["args"], expected);
    // Mistakes refuse only containers that ask.
    tree.file(
        "nvidia.toml",
        "[nvidia-container-runtime]\nmode = \"fast\"\n",
    );
    let output = create_as(&tree, RUNTIME, &asking, &variables);
    assert_eq!(code(&output), 1);
    let said = stderr(&output);
    assert!(
        said.contains("NVIDIA_VISIBLE_DEVICES is set, but ") && said.contains("fast"),
        "{said}"
    );
    let output = create_as(
        &tree,
        RUNTIME,
        &spec(&["NVIDIA_VISIBLE_DEVICES=void"], &[]),
        &variables,
    );
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

/// The hook's own command line leads to the same front end. It reads the settings of the host,
/// which does not have the test's driver.
#[test]
fn the_hook_refuses_only_containers_that_ask() {
    use std::io::Write;
    use std::process::Stdio;
    let tree = Tree::new();
    tree.folder("bundle/rootfs");
    // Named settings count, with their policy; those of the host would refuse the container.
    let ignoring = tree.file("own.toml", "[policy]\nenvironment = \"none\"\n");
    let named = format!("-oci-decorator-config={}", ignoring.display());
    let missing = format!("-oci-decorator-config={}", tree.path("none").display());
    let asks = &["NVIDIA_VISIBLE_DEVICES=all"][..];
    for (environment, options, expected) in [
        (asks, &[][..], 1),
        (asks, &[&named], 0),
        (asks, &[&missing], 2),
        (&["NVIDIA_VISIBLE_DEVICES=void", "BARE"], &[], 0),
        (&["PATH=/bin"], &[], 0),
    ] {
        tree.file("bundle/config.json", spec(environment, &[]).to_string());
        let state =
            json!({"id": "c1", "pid": std::process::id(), "bundlePath": tree.path("bundle")});
        let mut child = program("/usr/bin/nvidia-container-runtime-hook")
            .args(options)
            .arg("prestart")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(state.to_string().as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let refused = i32::from(expected > 0);
        assert_eq!((code(&output), stdout(&output)), (refused, String::new()));
        let said = stderr(&output);
        if expected == 2 {
            assert!(said.contains("/none: "), "{said}");
        }
        assert_eq!(said.is_empty(), expected == 0, "{said}");
        if expected == 1 {
            let start = "nvidia-container-runtime-hook: NVIDIA_VISIBLE_DEVICES asks for a device";
            assert!(said.starts_with(start), "{said}");
        }
    }
}

/// Sarus's hook gives all of AMD's devices where the host has any. No container asked for
/// them, so that none is refused.
#[test]
fn without_a_variable_only_strict_mode_gives_amds_devices() {
    let Some(tree) = host() else { return };
    let vendor = r#"{"activation_flag": "OCI_AMD", "driver_feature": ["compute"], "interfaces": ["amd"],
        "units": "dri/renderD[0-9]*", "inventory": {"compute": {"devices": ["kfd", "dri/renderD128"]}}}"#;
    let file = tree.file(&format!("{FOLDER}/amd.json"), vendor);
    node(&tree, "dri/renderD128", 0o660, 44, 9);
    let settings = tree.text("config.toml");
    let start = |scheduler: &str| {
        let text = format!("{settings}interfaces = [\"amd\"]\nscheduler = {scheduler:?}\n");
        tree.file("config.toml", text);
        let spec = spec(&["PATH=/bin"], &[]);
        let output = create_as(&tree, "/usr/bin/oci-decorator-runtime", &spec, &[]);
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
        nodes(&edited(&tree))
    };
    let nothing = Vec::<String>::new();
    assert_eq!(start("strict"), nothing, "no /dev/kfd");
    node(&tree, "kfd", 0o660, 44, 8);
    assert_eq!(start("strict"), ["dri/renderD128", "kfd"]);
    assert_eq!(start("lenient"), nothing);
    assert_eq!(start("ignore"), nothing);
    fs::write(&file, "{").unwrap();
    assert_eq!(start("strict"), nothing, "a broken vendor file");
    fs::remove_file(file).unwrap();
    assert_eq!(start("strict"), nothing, "no vendor file");
}
