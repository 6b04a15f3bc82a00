use super::check::check_target;
use super::*;
use crate::model::request::Interface;

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
        ("\"y[0-9]*\"", "units: \"y[0-9]*\" matches no device of the inventory"),
        ("\"y[0-9\"", "units: \"y[0-9\" is not a pattern"),
        ("\"[\"", "units: \"[\" is not a pattern"),
        ("\"x[0-9]\"", "units: \"x[0-9]\" matches no device"),
        ("\"xctl\"", "units: \"xctl\" is not a pattern of names under /dev"),
        ("\"/etc/*\"", "units: \"/etc/*\" is neither a name under /dev"),
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
        (r#""interfaces":"nvidia""#, "interfaces: expected a list of strings, found a string"),
        (
            r#""aliases":{"graphics":["vk"]}"#,
            "aliases.graphics[0]: \"vk\" is not in the inventory, which has gl, egl",
        ),
        (
            r#""aliases":{"all":[]}"#,
            "aliases.all: \"all\" has a meaning of its own as a value of the flag",
        ),
        (r#""aliases":{"x":"gl"}"#, "aliases.x: expected a list of strings, found a string"),
    ] {
        let found: Vec<_> = with(more).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(found, [mistake]);
    }
}

#[test]
fn targets_stay_out_of_what_the_runtime_makes() {
    for path in ["/proc/x", "/sys", "/dev/null", "/", "/a/../b", "/a//b", "/a/", "a", "/a\nb"] {
        assert!(check_target(path).is_some(), "{path:?}");
    }
    for path in ["/process", "/usr/lib64/libcuda.so", "/opt/a b/ü"] {
        assert_eq!(check_target(path), None, "{path:?}");
    }
}
