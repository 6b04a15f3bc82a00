use super::check::check_target;
use super::*;

fn mistakes(text: &str) -> Vec<String> {
    parse(text)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn both_shipped_configs_are_read() {
    let nvidia = parse(include_str!("../../../vendors/oci-nvidia.json")).unwrap();
    assert_eq!(nvidia.activation_flag, "OCI_NVIDIA");
    assert_eq!(nvidia.driver_feature, ["compute", "utility"]);
    assert_eq!(nvidia.feature("compute").unwrap().libraries.len(), 6);
    assert_eq!(nvidia.units.as_deref(), Some("nvidia[0-9]*"));
    assert_eq!(nvidia.interfaces, [Interface::Nvidia]);
    let onload = parse(include_str!("../../../vendors/oci-onload.json")).unwrap();
    assert_eq!(onload.activation_flag, "OCI_SOLARFLARE");
    assert_eq!(onload.log_level, Level::Debug);
}

#[test]
fn every_mistake_is_reported_with_its_key() {
    let text = r#"{
        "version": 3, "log_level": "LOUD", "colour": "red",
        "driver_feature": ["compute", "graphics"],
        "inventory": {
            "all": {},
            "compute": {"devices": ["ok", 1, "../sda", "/etc/x"], "fans": [], "binaries": "x"},
            "compute": {}
        },
        "root": "relative"
    }"#;
    let found = mistakes(text);
    let expected = [
        "version: expected a string, found a number",
        "log_level: unknown level \"LOUD\"",
        "colour: unknown field",
        "inventory.all: \"all\" has a meaning of its own",
        "inventory.compute.devices[1]: expected a string, found a number",
        "inventory.compute.devices[2]: \"../sda\" has an empty part",
        "inventory.compute.devices[3]: \"/etc/x\" is neither a name under /dev",
        "inventory.compute.fans: unknown field",
        "inventory.compute.binaries: expected a list of strings, found a string",
        "inventory.compute: given twice",
        "root: \"relative\" is not an absolute path",
        "activation_flag: missing",
        "driver_feature[1]: \"graphics\" is not in the inventory, which has all, compute",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for start in expected {
        assert!(
            found.iter().any(|f| f.starts_with(start)),
            "{start}\n{found:#?}"
        );
    }
}

#[test]
fn units_are_a_pattern_that_the_inventory_has_devices_for() {
    let problem = |units: &str, device: &str| {
        let text = format!(
            r#"{{"activation_flag":"A","driver_feature":[],"units":{units},
                "inventory":{{"f":{{}},"g":{{"devices":["sum",{device}]}}}}}}"#
        );
        parse(&text).err().map(|mistakes| {
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            mistakes[0].to_string()
        })
    };
    for (units, device) in [
        ("x[0-9]*", "x0"),
        ("/dev/x[0-9]*", "x7"),
        ("x[0-9]*", "/dev/x0"),
        ("x[0-9]*", "x[0-9]*"),
        ("x[0-9]*", "x*"),
        ("x*", "xy[0-9]"),
        ("dri/card*", "dri/*"),
    ] {
        let (units, device) = (format!("{units:?}"), format!("{device:?}"));
        assert_eq!(problem(&units, &device), None, "{units} {device}");
    }
    for (units, start) in [
        (
            "\"y[0-9]*\"",
            "units: \"y[0-9]*\" matches no device of the inventory",
        ),
        ("\"y[0-9\"", "units: \"y[0-9\" is not a pattern"),
        ("\"[\"", "units: \"[\" is not a pattern"),
        ("\"x[0-9]\"", "units: \"x[0-9]\" matches no device"),
        (
            "\"xctl\"",
            "units: \"xctl\" is not a pattern of names under /dev",
        ),
        (
            "\"/etc/*\"",
            "units: \"/etc/*\" is neither a name under /dev",
        ),
        ("\"../*\"", "units: \"../*\" has an empty part"),
        ("3", "units: expected a string, found a number"),
        ("[\"x*\"]", "units: expected a string, found a list"),
    ] {
        let found = problem(units, "\"xctl\", \"x10\"").unwrap();
        assert!(found.starts_with(start), "{found}");
    }
    assert!(problem("\"y*\"", "\"x*\"").is_some());
}

#[test]
fn units_say_which_nodes_can_be_chosen() {
    let mut vendor = parse(include_str!("../../../vendors/oci-nvidia.json")).unwrap();
    for (path, with_units, without) in [
        ("/dev/nvidia0", true, true),
        ("/dev/nvidia12", true, true),
        ("/dev/nvidiactl", false, false),
        ("/dev/nvidia-uvm", false, false),
    ] {
        vendor.units = Some("nvidia[0-9]*".to_owned());
        assert_eq!(vendor.is_unit(path), with_units, "{path}");
        vendor.units = None;
        assert_eq!(vendor.is_unit(path), without, "{path}");
    }
}

#[test]
fn interfaces_and_aliases() {
    let with = |more: &str| {
        let text = format!(
            r#"{{"activation_flag":"A","driver_feature":[],"inventory":{{"gl":{{}},"egl":{{}}}},{more}}}"#
        );
        parse(&text)
    };
    let vendor =
        with(r#""interfaces":["nvidia"],"aliases":{"graphics":["gl","egl"],"gl":["egl"]}"#)
            .unwrap();
    assert_eq!(vendor.interfaces, [Interface::Nvidia]);
    assert_eq!(vendor.features_for("graphics"), ["gl", "egl"]);
    // A feature of the name comes before an alias.
    assert_eq!(vendor.features_for("gl"), ["gl"]);
    assert!(vendor.features_for("video").is_empty());
    for (more, mistake) in [
        (
            r#""interfaces":["intel"]"#,
            "interfaces[0]: unknown interface \"intel\"; known are nvidia, amd",
        ),
        (
            r#""interfaces":"nvidia""#,
            "interfaces: expected a list of strings, found a string",
        ),
        (
            r#""aliases":{"graphics":["vk"]}"#,
            "aliases.graphics[0]: \"vk\" is not in the inventory, which has gl, egl",
        ),
        (
            r#""aliases":{"all":[]}"#,
            "aliases.all: \"all\" has a meaning of its own as a value of the flag",
        ),
        (
            r#""aliases":{"x":"gl"}"#,
            "aliases.x: expected a list of strings, found a string",
        ),
    ] {
        let found: Vec<_> = with(more)
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, [mistake]);
    }
}

#[test]
fn a_value_that_is_not_an_object_is_one_mistake() {
    assert_eq!(mistakes("[]"), ["expected an object, found a list"]);
    assert_eq!(mistakes("").len(), 1);
    assert!(mistakes(&"[".repeat(1_000_000))[0].contains("recursion limit"));
}

#[test]
fn targets_stay_out_of_what_the_runtime_makes() {
    for path in [
        "/proc/x",
        "/sys",
        "/dev/null",
        "/",
        "/a/../b",
        "/a//b",
        "/a/",
        "a",
        "/a\nb",
    ] {
        assert!(check_target(path).is_some(), "{path:?}");
    }
    for path in ["/process", "/usr/lib64/libcuda.so", "/opt/a b/ü"] {
        assert_eq!(check_target(path), None, "{path:?}");
    }
}
