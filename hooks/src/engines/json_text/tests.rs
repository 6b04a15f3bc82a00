use super::*;
use proptest::prelude::*;

const OURS: &[&str] = &["runtimes", "ours"];
const HAND_WRITTEN: &str = r#"{
  // how we log, and why
  "log-driver": "journald", # ask ops
  "runtimes": {
    "kata": {"path": "/opt/kata/bin/kata-runtime"}   // keep
  },
  /* storage */ "storage-driver": "overlay2"
}
"#;

fn runtime() -> Value {
    let path = Value::Text("/usr/bin/ours".to_owned());
    Value::Object(vec![("path".to_owned(), path)])
}

#[test]
fn a_member_is_added_beside_others_and_comments_stay() {
    let expected = HAND_WRITTEN.replace(
        "kata-runtime\"}   // keep\n",
        "kata-runtime\"},   // keep\n    \"ours\": {\n      \"path\": \"/usr/bin/ours\"\n    }\n",
    );
    assert_eq!(
        set_member(HAND_WRITTEN, OURS, &runtime()).unwrap(),
        expected
    );
}

#[test]
fn what_was_added_can_be_taken_away_again() {
    for text in [
        HAND_WRITTEN,
        "{\"a\": 1}\n",
        "{\n\t\"a\": [1, {\"b\": null}]\n}",
        "{\"runtimes\": {\"kata\": {\"path\": \"x\"}}, \"z\": true}",
        "{\"a\": \"quoted \\\" // no comment\"}",
        "{\"runtimes\": {\"a\": 1, \"b\": 2}}",
    ] {
        let added = set_member(text, OURS, &runtime()).unwrap();
        let found = parse(&added).unwrap();
        let ours = found.member("runtimes").and_then(|all| all.member("ours"));
        assert!(ours.unwrap().is(&runtime()), "{added}");
        let mut taken = remove_member(&added, OURS).unwrap();
        if parse(text).unwrap().member("runtimes").is_none() {
            taken = remove_member(&taken, &["runtimes"]).unwrap();
        }
        assert_eq!(taken, text);
        assert_eq!(set_member(&added, OURS, &runtime()).unwrap(), added);
    }
}

/// dockerd skips the mark, and an editor that wrote it wants it back.
#[test]
fn a_byte_order_mark_stays() {
    for text in ["\u{feff}{\"a\": 1}\n", "\u{feff}// why\n{}"] {
        let added = set_member(text, OURS, &runtime()).unwrap();
        assert!(
            added.starts_with('\u{feff}') && added.contains("ours"),
            "{added}"
        );
        let taken = remove_member(&added, OURS).unwrap();
        assert_eq!(remove_member(&taken, &["runtimes"]).unwrap(), text);
    }
    assert!(parse("\u{feff}\n").unwrap().members().is_empty());
    let added = set_member("\u{feff}", OURS, &runtime()).unwrap();
    assert!(parse(&added).unwrap().member("runtimes").is_some());
    assert!(parse("{\"a\": \u{feff}1}").is_err());
}

#[test]
fn the_first_and_middle_members_go_without_a_trace() {
    let text = "{\n    \"a\": 1,\n    \"b\": 2, // two\n    \"c\": 3\n}\n";
    for (name, expected) in [
        ("a", "{\n    \"b\": 2, // two\n    \"c\": 3\n}\n"),
        ("b", "{\n    \"a\": 1,\n    // two\n    \"c\": 3\n}\n"),
        ("c", "{\n    \"a\": 1,\n    \"b\": 2 // two\n}\n"),
        ("d", text),
    ] {
        assert_eq!(remove_member(text, &[name]).unwrap(), expected);
    }
    assert_eq!(remove_member(text, &["a", "x"]).unwrap(), text);
    assert_eq!(
        remove_member("{\"a\": 1 /* why */, \"b\": 2}", &["a"]).unwrap(),
        "{/* why */\"b\": 2}"
    );
    assert_eq!(
        remove_member("{ /* all */ \"a\": 1 }", &["a"]).unwrap(),
        "{ /* all */ }"
    );
    assert_eq!(remove_member("{ \"a\": 1, }", &["a"]).unwrap(), "{}");
}

#[test]
fn values_are_replaced_and_objects_made() {
    let flag = Value::Flag(true);
    let features = &["features", "cdi"];
    for (text, expected) in [
        (
            "",
            "{\n    \"features\": {\n        \"cdi\": true\n    }\n}\n",
        ),
        (
            "{\"features\": {\"cdi\": false}}",
            "{\"features\": {\"cdi\": true}}",
        ),
        (
            "{\"features\": {\"a\": 1,}}",
            "{\"features\": {\"a\": 1, \"cdi\": true}}",
        ),
        (
            "{\"features\": {\"cdi\": true}}",
            "{\"features\": {\"cdi\": true}}",
        ),
        (
            "{\"features\": {\"cdi\": {}}}",
            "{\"features\": {\"cdi\": true}}",
        ),
        ("{\"x\": 1}", "{\"x\": 1, \"features\": {\"cdi\": true}}"),
    ] {
        // A trailing comma stays in front of ours.
        let found = set_member(text, features, &flag).unwrap();
        assert_eq!(
            found.replace(", \"cdi\": true,", ", \"cdi\": true"),
            expected,
            "{text}"
        );
        parse(&found).unwrap();
    }
    // Of two members with one name, engines use the last.
    let twice = "{\"features\": 1, \"features\": {}}";
    let found = set_member(twice, features, &flag).unwrap();
    assert!(
        found.starts_with("{\"features\": 1, \"features\": {\n"),
        "{found}"
    );
}

#[test]
fn a_mistake_says_where() {
    let deep = "[".repeat(500);
    for (text, expected) in [
        (
            "{\n \"a\": 1\n \"b\": 2}",
            "line 3, column 2: ',' or '}' expected",
        ),
        ("[1]", "line 1, column 1: an object expected"),
        ("{\"a\": }", "line 1, column 7: a value expected"),
        (
            "{\"a\": 1} x",
            "line 1, column 10: the end of the file expected",
        ),
        (
            "{a: 1}",
            "line 1, column 2: a name in quotes, or '}' expected",
        ),
        ("{\"a\" 1}", "line 1, column 6: ':' expected"),
        (
            "{\"a\": \"x",
            "line 1, column 7: a string with an end expected",
        ),
        ("{\"a\": \"\\x\"}", "line 1, column 7: a string expected"),
        (
            "{\"a\": 1 /* x",
            "line 1, column 9: a comment with an end expected",
        ),
        ("{\"a\": 01}", "line 1, column 7: a value expected"),
        ("{\"a\": [1}", "line 1, column 9: ',' or ']' expected"),
        ("{", "line 1, column 2: a name in quotes, or '}' expected"),
        (
            &*format!("{{\"a\":{deep}"),
            "line 1, column 133: a shallower value expected",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn a_value_in_the_way_is_refused() {
    let found = set_member("{\"runtimes\": []}", OURS, &runtime());
    assert_eq!(found.unwrap_err(), "runtimes is not an object");
}

/// Random JSON objects.
fn documents() -> impl Strategy<Value = serde_json::Value> {
    let scalars = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        ".*".prop_map(serde_json::Value::from),
    ];
    let values = scalars.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map(".*", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    prop::collection::btree_map("[a-c]{1,2}", values, 0..5)
        .prop_map(|map| serde_json::Value::Object(map.into_iter().collect()))
}

proptest! {
    #[test]
    fn only_the_member_changes(document in documents(), name in "[a-d]{1,2}", text in ".*", pretty: bool) {
        let before = if pretty {
            serde_json::to_string_pretty(&document).unwrap()
        } else {
            document.to_string()
        };
        let changed = set_member(&before, &[&name], &Value::Text(text.clone())).unwrap();
        let mut expected = document.clone();
        expected[&name] = text.into();
        let found: serde_json::Value = serde_json::from_str(&changed).unwrap();
        prop_assert_eq!(found, expected);
        let taken = remove_member(&changed, &[&name]).unwrap();
        let mut left = document;
        left.as_object_mut().unwrap().remove(&name);
        let found: serde_json::Value = serde_json::from_str(&taken).unwrap();
        prop_assert_eq!(found, left);
    }
}
