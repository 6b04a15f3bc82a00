use super::*;
use crate::config::vendor::parse;

fn device(name: &str) -> Device {
    Device {
        source: format!("/host/dev/{name}"),
        path: format!("/dev/{name}"),
        kind: 'c',
        major: 195,
        minor: 255,
        mode: 0o600,
        uid: Some(3),
        gid: Some(4),
        access: crate::model::edits::Access::ALL,
    }
}

fn feature(devices: &[&str], file: &str) -> Edits {
    Edits {
        devices: devices.iter().map(|name| device(name)).collect(),
        mounts: vec![Mount {
            source: format!("/host{file}"),
            target: file.to_owned(),
        }],
        ..Edits::default()
    }
}

fn vendor(units: Option<&str>) -> Vendor {
    let text = r#"{"activation_flag":"A","driver_feature":[],"inventory":{}}"#;
    let mut vendor = parse(text).unwrap();
    vendor.units = units.map(str::to_owned);
    vendor
}

#[test]
fn names_begin_and_end_with_a_letter_or_digit() {
    for (path, expected) in [
        ("/dev/nvidia0", "nvidia0"),
        ("/dev/dri/card0", "dri-card0"),
        ("/dev/a:b.c_d-e", "a:b.c_d-e"),
        ("/dev/_x_", "x"),
        ("/dev/a b", "a-b"),
        ("/dev/é", "node"),
        ("/dev/-.:", "node"),
    ] {
        let device = Device {
            path: path.to_owned(),
            ..device("")
        };
        assert_eq!(name(&device), expected, "{path}");
    }
}

/// A number may belong to another device after the next boot.
#[test]
fn a_node_is_its_path_and_no_number() {
    let mut node = device("x0");
    let expected = json!({"path": "/dev/x0", "hostPath": "/host/dev/x0"});
    assert_eq!(device_node(&node), expected);
    node.source.clone_from(&node.path);
    assert_eq!(device_node(&node), json!({"path": "/dev/x0"}));
}

/// Checks what one choice gives: its features, nodes and files.
#[test]
fn a_choice_has_its_control_nodes_and_no_other_unit() {
    let gpus = [
        (
            "compute",
            feature(&["gpu0", "gpu1", "gpuctl", "gpu-cap7"], "/c"),
        ),
        ("video", feature(&["gpu1", "gpuctl", "gpu-enc"], "/v")),
        ("tools", feature(&["gputool"], "/t")),
    ];
    let both = Some("gpu[0-9]*");
    let cases: [(&str, Option<&str>, &str, &str); 9] = [
        ("gpu0", both, "compute", "gpu0 gpuctl gpu-cap7 /c"),
        (
            "gpu1",
            both,
            "compute video",
            "gpu1 gpuctl gpu-cap7 gpu-enc /c /v",
        ),
        (
            "gpuctl",
            both,
            "compute video",
            "gpuctl gpu-cap7 gpu-enc /c /v",
        ),
        ("gputool", both, "tools", "gputool /t"),
        (
            "gpu0",
            Some("/dev/gpu[0-9]*"),
            "compute",
            "gpu0 gpuctl gpu-cap7 /c",
        ),
        // Without "units", a name that ends with a number is a unit.
        ("gpu0", None, "compute", "gpu0 gpuctl /c"),
        ("gpu-cap7", None, "compute", "gpuctl gpu-cap7 /c"),
        ("gpuctl", None, "compute video", "gpuctl gpu-enc /c /v"),
        ("gpu1", None, "compute video", "gpu1 gpuctl gpu-enc /c /v"),
    ];
    for (chosen, units, features, parts) in cases {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::open(dir.path()).unwrap();
        let vendor = vendor(units);
        let nodes = Nodes::of(&host, &vendor, &[], None);
        let (names, edits) = around(&device(chosen), &nodes, &gpus);
        assert_eq!(names.join(" "), features, "{chosen} {units:?}");
        let nodes = edits
            .devices
            .iter()
            .map(|d| d.path.trim_start_matches("/dev/"));
        let files = edits.mounts.iter().map(|m| m.target.as_str());
        let found: Vec<_> = nodes.chain(files).collect();
        assert_eq!(found.join(" "), parts, "{chosen} {units:?}");
    }
}
