//! What a container can't get through NVIDIA's interface, beside a scheduler and by policy,
//! in whatever way it asks.

use serde_json::{json, Value};

use crate::nvidia::{create_as, edited, host, node, nodes, spec, RUNTIME};
use crate::support::{code, stderr, Tree};

const OWN: &str = "/usr/bin/oci-decorator-runtime";
const BY_CDI: &str = "/usr/bin/nvidia-container-runtime.cdi";
const CDI: &str = r#"{"cdiVersion": "0.5.0", "kind": "KIND", "devices": [
    {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/NODE"}]}},
    {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/NODE"}]}}]}"#;

/// A container that asks, and the name of the program that starts it.
struct Case {
    program: &'static str,
    spec: Value,
}

fn case(program: &'static str, environment: &[&str], pointer: &str, more: Value) -> Case {
    let mut spec = spec(environment, &[]);
    if !pointer.is_empty() {
        spec[pointer] = more;
    }
    Case { program, spec }
}

fn mount(name: &str) -> Value {
    json!([{"source": "/dev/null", "destination": format!("/var/run/nvidia-container-devices/{name}")}])
}

/// A host with specifications of CDI, whose settings have these lines, and NVIDIA's these.
fn host_with(settings: &str, nvidia: &str) -> Option<Tree> {
    let tree = host()?;
    for (kind, name) in [
        ("nvidia.com/gpu", "nvidia1"),
        ("management.nvidia.com/gpu", "nvidia1"),
        ("other.com/nic", "nic"),
    ] {
        let text = CDI.replace("KIND", kind).replace("NODE", name);
        tree.file(&format!("host/etc/cdi/{name}-{}.json", kind.len()), text);
    }
    node(&tree, "nic", 0o666, 0, 30);
    node(&tree, "nvidia-caps-imex-channels/channel0", 0o666, 0, 31);
    let own = tree.text("config.toml");
    tree.file("config.toml", format!("{own}{settings}\n"));
    let all = format!(
        "accept-nvidia-visible-devices-as-volume-mounts = true\nswarm-resource = \"GPUS\"\n{nvidia}"
    );
    tree.file("nvidia.toml", all);
    Some(tree)
}

/// Starts it. Returns what it gets, or why it is refused.
fn started(tree: &Tree, case: &Case, given: Option<&str>) -> Result<Value, String> {
    let file = tree.path("nvidia.toml").display().to_string();
    let mut variables = vec![("NVIDIA_CTK_CONFIG_FILE_PATH", file.as_str())];
    variables.extend(given.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
    let output = create_as(tree, case.program, &case.spec, &variables);
    match code(&output) {
        0 => Ok(edited(tree)),
        _ => Err(stderr(&output)),
    }
}

/// Every way by which a container could ask for GPU 0, which the scheduler did not give.
fn ways() -> Vec<(&'static str, Case)> {
    let annotations = |key: &str, value: &str| json!({key: value});
    vec![
        ("flag", case(RUNTIME, &["OCI_NVIDIA=all"], "", json!(0))),
        (
            "flag, own name",
            case(OWN, &["OCI_NVIDIA=all"], "", json!(0)),
        ),
        (
            "annotation",
            case(
                RUNTIME,
                &[],
                "annotations",
                annotations("oci-decorator.d/OCI_NVIDIA", "all"),
            ),
        ),
        (
            "CDI",
            case(
                RUNTIME,
                &[],
                "annotations",
                annotations("cdi.k8s.io/x", "nvidia.com/gpu=0"),
            ),
        ),
        (
            "CDI of a kind below",
            case(
                RUNTIME,
                &[],
                "annotations",
                annotations("cdi.k8s.io/x", "management.nvidia.com/gpu=all"),
            ),
        ),
        ("mount", case(RUNTIME, &[], "mounts", mount("0"))),
        (
            "mount of CDI",
            case(RUNTIME, &[], "mounts", mount("cdi/nvidia.com/gpu/0")),
        ),
        ("swarm", case(RUNTIME, &["GPUS=0"], "", json!(0))),
        (
            "channels",
            case(RUNTIME, &["NVIDIA_IMEX_CHANNELS=all"], "", json!(0)),
        ),
    ]
}

#[test]
fn beside_a_scheduler_nothing_else_gives_a_device() {
    let Some(tree) = host_with("scheduler = \"strict\"", "") else {
        return;
    };
    for (way, case) in ways() {
        for (given, expected) in [
            (Some("1"), &["dri/card0", "nvidia0", "nvidiactl"][..]),
            (Some("NoDevFiles"), &[]),
            (None, &[]),
        ] {
            let expected = if case.program == OWN { &[] } else { expected };
            let found = started(&tree, &case, given).unwrap();
            assert_eq!(nodes(&found), expected, "{way} {given:?}");
        }
        // Channels are looked at only where a device is given.
        let log = tree.text("log");
        let notice = "only the host's scheduler gives these devices; the container starts without";
        assert!(log.contains(notice), "{way}: {log}");
        std::fs::remove_file(tree.path("log")).unwrap();
    }
    let Some(tree) = host_with(
        "scheduler = \"strict\"\n[policy]\non-refusal = \"fail\"",
        "",
    ) else {
        return;
    };
    for (way, case) in ways() {
        let error = started(&tree, &case, Some("1")).unwrap_err();
        assert!(
            error.contains("does not count: with \"scheduler\""),
            "{way}: {error}"
        );
    }
}

/// Devices that a scheduler can't give are given as usual, beside those that it gave.
#[test]
fn other_devices_come_beside_a_schedulers() {
    let Some(tree) = host_with("scheduler = \"lenient\"", "") else {
        return;
    };
    let nic = json!({"cdi.k8s.io/x": "other.com/nic=0"});
    let case = case(RUNTIME, &[], "annotations", nic);
    let found = started(&tree, &case, Some("1")).unwrap();
    assert_eq!(nodes(&found), ["dri/card0", "nic", "nvidia0", "nvidiactl"]);
    let environment = found["process"]["env"].to_string();
    assert!(
        environment.contains("NVIDIA_VISIBLE_DEVICES=1"),
        "{environment}"
    );
    let found = started(&tree, &case, None).unwrap();
    assert_eq!(nodes(&found), ["nic"]);
}

const SITE: &str = r#"{"cdiVersion": "0.5.0", "kind": "site.com/node", "devices": [{"name": "all", "containerEdits": {
    "env": ["SITE=1"], "deviceNodes": [{"path": "/dev/nic"}, {"path": "/dev/mine", "hostPath": "/dev/nvidia1"}],
    "mounts": [{"hostPath": "/dev/dri", "containerPath": "/dri"}, {"hostPath": "/opt/x", "containerPath": "/opt/y"}]}}]}"#;
const SITE_VENDOR: &str = r#"{"activation_flag": "OCI_SITE", "driver_feature": ["all-of-it"],
    "inventory": {"all-of-it": {"devices": ["nic", "nvidia[0-9]*"], "miscellaneous": ["/opt/x/compute"]}}}"#;

fn site(settings: &str) -> Option<Tree> {
    let tree = host_with(settings, "")?;
    tree.file("host/etc/cdi/site.json", SITE);
    let folder = "host/etc/oci-decorator/oci-decorator.d";
    tree.file(&format!("{folder}/site.json"), SITE_VENDOR);
    Some(tree)
}

fn of_site() -> [(&'static str, Case); 4] {
    let annotation = || json!({"cdi.k8s.io/x": "site.com/node=all"});
    [
        ("kind", case(RUNTIME, &[], "annotations", annotation())),
        ("mode", case(BY_CDI, &[], "annotations", annotation())),
        ("flag", case(RUNTIME, &["OCI_SITE="], "", json!(0))),
        ("flag, own name", case(OWN, &["OCI_SITE=all"], "", json!(0))),
    ]
}

/// The nodes decide, and not what a kind or a flag is called.
#[test]
fn a_gpu_beside_a_scheduler_is_not_given_under_another_name() {
    for scheduler in ["strict", "lenient"] {
        let Some(tree) = site(&format!("scheduler = \"{scheduler}\"")) else {
            return;
        };
        for (way, case) in of_site() {
            let found = started(&tree, &case, None).unwrap();
            assert_eq!(nodes(&found), ["nic"], "{scheduler} {way}");
            let text = found.to_string();
            assert!(!text.contains("\"/dri\""), "{way}: {text}");
            assert!(
                text.contains("/opt/y") || text.contains("/opt/x/compute"),
                "{way}"
            );
            assert!(tree.text("log").contains("is a GPU's"), "{way}");
            std::fs::remove_file(tree.path("log")).unwrap();
        }
    }
    let Some(tree) = site("") else { return };
    for (way, case) in of_site() {
        let found = nodes(&started(&tree, &case, None).unwrap());
        assert!(
            found.iter().any(|node| node == "mine" || node == "nvidia1"),
            "{way}"
        );
    }
    let policy = "scheduler = \"strict\"\n[policy]\non-refusal = \"fail\"";
    let Some(tree) = site(policy) else { return };
    for (way, case) in of_site() {
        let error = started(&tree, &case, None).unwrap_err();
        assert!(error.contains("is a GPU's"), "{way}: {error}");
    }
}

/// `check` answers for its own flags by the same rule.
#[test]
fn check_knows_what_only_a_scheduler_gives() {
    let check = |tree: &Tree, entry: &str| -> (i32, Value) {
        let config = tree.path("config.toml").display().to_string();
        let words = ["--config", &config, "check", "--json", "--env", entry];
        let output = crate::support::run(&words, "");
        (
            code(&output),
            serde_json::from_slice(&output.stdout).unwrap(),
        )
    };
    let listed = |report: &Value| report["vendors"].to_string();
    for (settings, is_given) in [("", true), ("scheduler = \"lenient\"", false)] {
        let Some(tree) = site(settings) else { return };
        let (ended, report) = check(&tree, "OCI_SITE=all");
        assert_eq!(ended, 0, "{report:#}");
        assert!(listed(&report).contains("/dev/nic"), "{report:#}");
        assert_eq!(
            listed(&report).contains("/dev/nvidia1"),
            is_given,
            "{report:#}"
        );
        let said = report["ignored"].to_string().contains("is a GPU's");
        assert_eq!(said, !is_given, "{report:#}");
        let (ended, report) = check(&tree, "OCI_NVIDIA=all");
        assert_eq!(ended, 0, "{report:#}");
        assert_eq!(
            listed(&report).contains("/dev/nvidia1"),
            is_given,
            "{report:#}"
        );
    }
    let policy = "scheduler = \"strict\"\n[policy]\non-refusal = \"fail\"";
    let Some(tree) = site(policy) else { return };
    for entry in ["OCI_SITE=all", "OCI_NVIDIA=all"] {
        let (ended, report) = check(&tree, entry);
        assert_eq!(ended, 1, "{report:#}");
        assert!(report["refused"]
            .to_string()
            .contains("only the host's scheduler"));
    }
}

/// It knows nothing of the scheduler, and would give what mounts ask for.
#[test]
fn a_hook_of_nvidias_in_the_spec_goes_beside_a_scheduler() {
    const THEIRS: [&str; 2] = [
        "/usr/bin/nvidia-container-runtime-hook",
        "/opt/x/nvidia-container-toolkit",
    ];
    for (settings, program, given, stays) in [
        ("scheduler = \"strict\"", RUNTIME, None, false),
        ("scheduler = \"strict\"", RUNTIME, Some("NoDevFiles"), false),
        ("scheduler = \"lenient\"", RUNTIME, Some("1"), false),
        ("scheduler = \"lenient\"", OWN, None, false),
        ("", OWN, None, true),
        ("", RUNTIME, None, true),
    ] {
        let Some(tree) = host_with(settings, "") else {
            return;
        };
        let hooks: Vec<Value> = THEIRS
            .iter()
            .chain(&["/bin/true"])
            .map(|path| json!({"path": path, "args": ["x", "prestart"]}))
            .collect();
        let mut spec = spec(&[], &[]);
        spec["hooks"] = json!({"prestart": hooks, "createRuntime": hooks});
        let case = Case { program, spec };
        let found = started(&tree, &case, given).unwrap();
        for stage in ["prestart", "createRuntime"] {
            let left = found["hooks"][stage].as_array().unwrap().len();
            let expected = if stays { 3 } else { 1 };
            assert_eq!(left, expected, "{settings} {program} {given:?} {stage}");
        }
    }
}

/// Ways of asking that end in CDI names.
fn by_names() -> Vec<(&'static str, Case)> {
    let annotation = json!({"cdi.k8s.io/x": "nvidia.com/gpu=0"});
    vec![
        (
            "variable",
            case(
                RUNTIME,
                &["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"],
                "",
                json!(0),
            ),
        ),
        (
            "mount of CDI",
            case(RUNTIME, &[], "mounts", mount("cdi/nvidia.com/gpu/0")),
        ),
        (
            "mode, variable",
            case(BY_CDI, &["NVIDIA_VISIBLE_DEVICES=0"], "", json!(0)),
        ),
        (
            "mode, all",
            case(BY_CDI, &["NVIDIA_VISIBLE_DEVICES=all"], "", json!(0)),
        ),
        ("mode, mount", case(BY_CDI, &[], "mounts", mount("0"))),
        ("annotation", case(RUNTIME, &[], "annotations", annotation)),
    ]
}

#[test]
fn cdi_names_count_only_where_the_policy_lets_them() {
    for (policy, gets) in [
        ("", true),
        ("[policy]\ncdi = \"none\"", false),
        ("[policy.allow]\namd = \"all\"", false),
        ("[policy.allow]\nnvidia = [\"utility\"]", false),
        ("[policy.allow]\n\"nvidia.com/gpu\" = \"all\"", false),
        ("[policy.allow]\nnvidia = \"all\"", true),
    ] {
        let Some(tree) = host_with(policy, "") else {
            return;
        };
        for (way, case) in by_names() {
            let found = started(&tree, &case, None).unwrap();
            assert_eq!(!nodes(&found).is_empty(), gets, "{policy} {way}");
        }
        if gets {
            continue;
        }
        let fails = match policy.strip_prefix("[policy]") {
            Some(rest) => format!("[policy]\non-refusal = \"fail\"{rest}"),
            None => format!("[policy]\non-refusal = \"fail\"\n{policy}"),
        };
        let Some(tree) = host_with(&fails, "") else {
            return;
        };
        for (way, case) in by_names() {
            let error = started(&tree, &case, None).unwrap_err();
            assert!(error.contains("policy."), "{fails} {way}: {error}");
        }
    }
}

/// A kind that no vendor file has is a vendor of its own.
#[test]
fn the_list_of_vendors_names_kinds_too() {
    let nic = || json!({"cdi.k8s.io/x": "other.com/nic=0"});
    for (allow, expected) in [
        ("nvidia = \"all\"", &[][..]),
        ("\"other.com/nic\" = \"all\"", &["nic"]),
        ("\"other.com/nic\" = [\"x\"]", &[]),
    ] {
        let Some(tree) = host_with(&format!("[policy.allow]\n{allow}"), "") else {
            return;
        };
        let case = case(RUNTIME, &[], "annotations", nic());
        assert_eq!(
            nodes(&started(&tree, &case, None).unwrap()),
            expected,
            "{allow}"
        );
    }
}

#[test]
fn the_lists_of_a_board_are_the_vendors() {
    let mode = "[nvidia-container-runtime]\nmode = \"csv\"\n";
    for (policy, gets) in [
        ("", true),
        ("[policy.allow]\namd = \"all\"", false),
        ("[policy.allow]\nnvidia = [\"compute\"]", false),
        ("[policy.allow]\nnvidia = \"all\"", true),
    ] {
        let Some(tree) = host_with(policy, mode) else {
            return;
        };
        let folder = "host/etc/nvidia-container-runtime/host-files-for-container.d";
        tree.file(&format!("{folder}/devices.csv"), "dev, /dev/nvidia0\n");
        let case = case(RUNTIME, &["NVIDIA_VISIBLE_DEVICES=all"], "", json!(0));
        let found = started(&tree, &case, None).unwrap();
        assert_eq!(!nodes(&found).is_empty(), gets, "{policy}");
    }
}

#[test]
fn channels_and_rights_count_only_where_their_source_counts() {
    let channel = "nvidia-caps-imex-channels/channel0";
    let by_variable = || case(RUNTIME, &["NVIDIA_IMEX_CHANNELS=0"], "mounts", mount("1"));
    let by_mount = || {
        case(
            RUNTIME,
            &["NVIDIA_VISIBLE_DEVICES=1"],
            "mounts",
            mount("imex/0"),
        )
    };
    // Nodes of related drivers are judged as channels are; what the host lacks is left out.
    let related = |environment: &[&str]| case(RUNTIME, environment, "mounts", mount("1"));
    for (policy, case, expected) in [
        (
            "",
            related(&["NVIDIA_GDRCOPY=enabled", "NVIDIA_MOFED=enabled"]),
            true,
        ),
        (
            "environment = \"none\"",
            related(&["NVIDIA_GDRCOPY=enabled"]),
            false,
        ),
    ] {
        let Some(tree) = host_with(&format!("[policy]\n{policy}"), "") else {
            return;
        };
        node(&tree, "gdrdrv", 0o666, 0, 32);
        let found = nodes(&started(&tree, &case, None).unwrap());
        assert_eq!(
            found.contains(&"gdrdrv".to_owned()),
            expected,
            "{policy} {found:?}"
        );
        let log = tree.text("log");
        assert_eq!(
            log.contains("NVIDIA_MOFED has no effect"),
            expected,
            "{log}"
        );
    }
    for (policy, case, gets) in [
        ("", by_variable(), true),
        ("environment = \"none\"", by_variable(), false),
        ("", by_mount(), true),
        ("mounts = \"none\"", by_mount(), false),
    ] {
        let Some(tree) = host_with(&format!("[policy]\n{policy}"), "") else {
            return;
        };
        let found = nodes(&started(&tree, &case, None).unwrap());
        assert!(found.contains(&"nvidia0".to_owned()), "{found:?}");
        assert_eq!(found.contains(&channel.to_owned()), gets, "{policy}");
    }
    let mut rights = case(
        RUNTIME,
        &["NVIDIA_MIG_MONITOR_DEVICES=all"],
        "mounts",
        mount("1"),
    );
    rights.spec["process"]["capabilities"] = json!({"bounding": ["CAP_SYS_ADMIN"]});
    for (policy, gets) in [("", true), ("environment = \"none\"", false)] {
        let Some(tree) = host_with(&format!("[policy]\n{policy}"), "") else {
            return;
        };
        tree.file(
            "host/proc/driver/nvidia/capabilities/mig/monitor",
            "DeviceFileMinor: 3\n",
        );
        let found = nodes(&started(&tree, &rights, None).unwrap());
        let right = "nvidia-caps/nvidia-cap3".to_owned();
        assert_eq!(found.contains(&right), gets, "{policy}");
    }
}

#[test]
fn an_annotation_of_cdi_has_names_only() {
    let Some(tree) = host_with("", "") else {
        return;
    };
    for value in ["0", "all", "none", "void", "nvidia.com/gpu=0,1", "a/b=c=d"] {
        for program in [RUNTIME, BY_CDI] {
            let annotations = json!({"cdi.k8s.io/x": value});
            let case = case(program, &[], "annotations", annotations);
            let error = started(&tree, &case, None).unwrap_err();
            assert!(
                error.contains("the annotation cdi.k8s.io/x has "),
                "{value} {error}"
            );
        }
    }
}

/// Devices that NVIDIA's runtime describes by itself need no specification, in any mode.
#[test]
fn automatic_names_are_the_vendor_files_devices() {
    for (mode, value, expected) in [
        ("auto", "runtime.nvidia.com/gpu=0", Ok(())),
        ("cdi", "runtime.nvidia.com/gpu=0", Ok(())),
        ("jit-cdi", "runtime.nvidia.com/gpu=0", Ok(())),
        (
            "auto",
            "runtime.nvidia.com/gpu=0,other.com/nic=0",
            Err("one kind only"),
        ),
        (
            "cdi",
            "runtime.nvidia.com/gpu=7",
            Err("the host has 0 (GPU-aaaa"),
        ),
    ] {
        let nvidia = format!("[nvidia-container-runtime]\nmode = \"{mode}\"");
        let Some(tree) = host_with("[policy]\ncdi = \"all\"", &nvidia) else {
            return;
        };
        let variable = format!("NVIDIA_VISIBLE_DEVICES={value}");
        match (
            started(&tree, &case(RUNTIME, &[&variable], "", json!(0)), None),
            expected,
        ) {
            (Ok(spec), Ok(())) => {
                let found = nodes(&spec);
                assert!(found.contains(&"nvidia1".to_owned()), "{found:?}");
                assert!(!found.contains(&"nvidia0".to_owned()), "{found:?}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, _) => panic!("{mode} {value} {found:?}"),
        }
    }
}
