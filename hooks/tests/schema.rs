//! Compares `schema/vendor.schema.json` with the code: the same names, and the same verdict
//! on every document, except for the rules that the schema can't express.

use oci_decorator::config::vendor::{parse, FIELDS, INVENTORY_FIELDS, REQUIRED, RESERVED_FEATURES};
use oci_decorator::log::Level;
use proptest::prelude::*;
use serde_json::Value;

fn schema() -> Value {
    serde_json::from_str(include_str!("../schema/vendor.schema.json")).unwrap()
}

fn keys(value: &Value) -> Vec<String> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

fn sorted(names: impl IntoIterator<Item = &'static str>) -> Vec<String> {
    let mut names: Vec<_> = names.into_iter().map(str::to_owned).collect();
    names.sort();
    names
}

fn strings(value: &Value) -> Vec<String> {
    let mut strings: Vec<String> = serde_json::from_value(value.clone()).unwrap();
    strings.sort();
    strings
}

#[test]
fn names_are_the_codes_names() {
    let schema = schema();
    assert_eq!(keys(&schema["properties"]), sorted(FIELDS));
    assert_eq!(strings(&schema["required"]), sorted(REQUIRED));
    let inventory = &schema["$defs"]["inventory"]["properties"];
    assert_eq!(keys(inventory), sorted(INVENTORY_FIELDS));
    let levels = &schema["properties"]["log_level"]["enum"];
    assert_eq!(strings(levels), sorted(Level::syslog_names()));
    let reserved = &schema["$defs"]["feature"]["not"]["enum"];
    assert_eq!(strings(reserved), sorted(RESERVED_FEATURES));
}

/// Judges a document by the keywords that our schema uses; any other is a panic.
fn valid(schema: &Value, rule: &Value, document: &Value) -> bool {
    rule.as_object().unwrap().iter().all(|(keyword, value)| match keyword.as_str() {
        "$schema" | "title" | "description" | "$defs" => true,
        "$ref" => {
            let pointer = value.as_str().unwrap().trim_start_matches('#');
            valid(schema, schema.pointer(pointer).unwrap(), document)
        }
        "type" => match value.as_str().unwrap() {
            "string" => document.is_string(),
            "array" => document.is_array(),
            "object" => document.is_object(),
            other => panic!("type {other}"),
        },
        "enum" => value.as_array().unwrap().contains(document),
        "not" => !valid(schema, value, document),
        "pattern" => document
            .as_str()
            .is_none_or(|text| regex::Regex::new(value.as_str().unwrap()).unwrap().is_match(text)),
        "required" => document
            .as_object()
            .is_none_or(|members| strings(value).iter().all(|name| members.contains_key(name))),
        "items" => document
            .as_array()
            .is_none_or(|items| items.iter().all(|item| valid(schema, value, item))),
        "propertyNames" => document.as_object().is_none_or(|members| {
            members.keys().all(|name| valid(schema, value, &Value::from(name.as_str())))
        }),
        "properties" => document.as_object().is_none_or(|members| {
            members
                .iter()
                .all(|(name, item)| value.get(name).is_none_or(|r| valid(schema, r, item)))
        }),
        "additionalProperties" => document.as_object().is_none_or(|members| {
            let known = |name: &str| rule.get("properties").is_some_and(|p| p.get(name).is_some());
            members.iter().filter(|(name, _)| !known(name)).all(|(_, item)| match value {
                Value::Bool(allowed) => *allowed,
                rule => valid(schema, rule, item),
            })
        }),
        other => panic!("keyword {other}"),
    })
}

/// The code's verdict, without the two rules that the schema can't express.
fn accepted(document: &Value) -> bool {
    match parse(&document.to_string()) {
        Ok(_) => true,
        Err(mistakes) => mistakes.iter().all(|m| {
            m.problem.contains("is not in the inventory")
                || m.problem.contains("matches no device of the inventory")
        }),
    }
}

fn agree(document: &Value) {
    let schema = schema();
    assert_eq!(valid(&schema, &schema, document), accepted(document), "{document:#}");
}

#[test]
fn shipped_files_are_valid() {
    for text in [
        include_str!("../vendors/oci-nvidia.json"),
        include_str!("../vendors/oci-onload.json"),
        include_str!("../vendors/oci-amd.json"),
        include_str!("../vendors/oci-intel.json"),
    ] {
        let document = serde_json::from_str(text).unwrap();
        assert!(valid(&schema(), &schema(), &document));
        assert!(accepted(&document));
    }
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[A-Za-z0-9_./ *\\[\\]-]{0,8}",
        "(/[a-z.]{1,3}){1,3}/?",
        prop::sample::select(vec![
            "all",
            "none",
            "compute",
            "LOG_DEBUG",
            "LOG_LOUD",
            "/dev/nvidia0",
            "/proc/x",
            "/device",
            "/a/../b",
            "..",
            "a\nb",
            "/a\u{7f}",
            "nvidia[0-9]*",
            "nvidia",
            "/dev",
            "/dev/",
            "",
            "/",
        ])
        .prop_map(str::to_owned),
    ]
    .prop_map(Value::from)
}

fn list() -> impl Strategy<Value = Value> {
    prop_oneof![
        9 => prop::collection::vec(text(), 0..4).prop_map(Value::from),
        1 => Just(serde_json::json!([1, null])),
        1 => text(),
    ]
}

fn feature() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec![
        "devices",
        "directories",
        "binaries",
        "libraries",
        "miscellaneous",
        "fans",
    ]);
    prop::collection::btree_map(name.prop_map(str::to_owned), list(), 0..4)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

prop_compose! {
    fn document()(
        flag in text(),
        features in list(),
        inventory in prop::collection::btree_map("[a-z.]{1,4}|all|a b", feature(), 0..3),
        others in prop::collection::btree_map(
            prop::sample::select(vec!["version", "log_level", "root", "cdi_kind", "units", "$schema", "colour"]).prop_map(str::to_owned),
            prop_oneof![5 => text(), 1 => Just(Value::Null)], 0..3),
        sonames in prop::option::weighted(0.3, prop::collection::btree_map(
            "(/[a-z.]{1,3}){1,3}/?|[a-z]{1,2}", prop_oneof![5 => text(), 1 => Just(Value::Null)], 0..3)),
        interfaces in prop::option::weighted(0.3, list()),
        aliases in prop::option::weighted(0.3, prop::collection::btree_map("[a-z.]{1,4}|all|a b", list(), 0..3)),
        without in prop::option::weighted(0.1, prop::sample::select(REQUIRED.to_vec())),
    ) -> Value {
        let mut members: serde_json::Map<String, Value> = others.into_iter().collect();
        members.insert("activation_flag".into(), flag);
        members.insert("driver_feature".into(), features);
        members.insert("inventory".into(), Value::Object(inventory.into_iter().collect()));
        if let Some(sonames) = sonames {
            members.insert("sonames".into(), Value::Object(sonames.into_iter().collect()));
        }
        if let Some(interfaces) = interfaces {
            members.insert("interfaces".into(), interfaces);
        }
        if let Some(aliases) = aliases {
            members.insert("aliases".into(), Value::Object(aliases.into_iter().collect()));
        }
        if let Some(name) = without {
            members.remove(name);
        }
        Value::Object(members)
    }
}

#[test]
fn odd_documents_get_one_verdict() {
    for text in ["[]", "3", "null", "{}", "{\"inventory\":[]}", "{\"inventory\":{\"a\":3}}"] {
        agree(&serde_json::from_str(text).unwrap());
    }
    for path in ["/a", "/a/", "/dev", "/devx", "/./a", "/a/..", "/..a", "a", "/\u{7f}", "/é"] {
        let base = serde_json::json!({"activation_flag": "X", "driver_feature": []});
        let mut document = base.clone();
        document["inventory"] = serde_json::json!({"f": {"devices": [path]}});
        agree(&document);
        document["inventory"] = serde_json::json!({"f": {"libraries": [path]}});
        agree(&document);
        document["root"] = Value::from(path);
        agree(&document);
    }
    // Each ends the name of a CDI device: one that engines do not read takes all devices away.
    for (name, is_name) in [
        ("a", true),
        ("a_b", true),
        ("a.b-1", true),
        ("a_", false),
        ("a.", false),
        ("a-", false),
        ("_a", false),
        ("", false),
    ] {
        let document = serde_json::json!({
            "activation_flag": "X", "driver_feature": [name], "inventory": {name: {}},
        });
        agree(&document);
        let is_read = oci_decorator::config::vendor::parse(&document.to_string()).is_ok();
        assert_eq!(is_read, is_name, "{name}");
        let device = oci_decorator::config::reader::is_device(&format!("feature-{name}"));
        assert!(device || !is_read, "{name}");
    }
    for name in ["libx.so.1", "libx.so/1", "/libx.so", ".", "..", "...", "", "a\nb", "é"] {
        let mut document =
            serde_json::json!({"activation_flag": "X", "driver_feature": [], "inventory": {}});
        document["sonames"] = serde_json::json!({"/lib/libx.so": name});
        agree(&document);
    }
    for units in
        ["x[0-9]*", "/dev/x*", "x?", "a/b[0]", "x0", "", "*", "/etc/*", "../*", "a//b*", "x*\n"]
    {
        let mut document = serde_json::json!({"activation_flag": "X", "driver_feature": []});
        document["inventory"] = serde_json::json!({"f": {"devices": ["x0"]}});
        document["units"] = Value::from(units);
        agree(&document);
    }
    for kind in [
        "nvidia.com/gpu",
        "oci-decorator/xpu",
        "ab/cd",
        "a/gpu",
        "ab/c",
        "ab",
        "ab/",
        "/cd",
        "1b/cd",
        "ab/cd-",
        "ab/c.d",
        "a.b-/cd",
        "ab/cd/ef",
        "ab/cd\n",
        "a b/cd",
        "",
        "a_b-c.d/e_f-g",
        "äb/cd",
    ] {
        let mut document =
            serde_json::json!({"activation_flag": "X", "driver_feature": [], "inventory": {}});
        document["cdi_kind"] = Value::from(kind);
        agree(&document);
    }
}

proptest! {
    #[test]
    fn made_up_documents_get_one_verdict(document in document()) {
        agree(&document);
    }
}
