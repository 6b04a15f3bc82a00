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
    let nvidia = parse(include_str!("../../vendors/oci-nvidia.json")).unwrap();
    assert_eq!(nvidia.activation_flag, "OCI_NVIDIA");
    assert_eq!(nvidia.driver_feature, ["compute", "utility"]);
    assert_eq!(nvidia.feature("compute").unwrap().libraries.len(), 6);
    let onload = parse(include_str!("../../vendors/oci-onload.json")).unwrap();
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
fn what_is_no_object_is_one_mistake() {
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
