use super::*;
use proptest::prelude::*;

fn edits() -> Edits {
    let device = |path: &str, minor| Device {
        source: path.to_owned(),
        path: path.to_owned(),
        kind: 'c',
        major: 195,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 44,
    };
    Edits {
        devices: vec![device("/dev/n0", 0), device("/dev/n1", 1)],
        mounts: vec![Mount {
            source: "/h/a\"b".to_owned(),
            target: "/usr/lib/a\"b".to_owned(),
        }],
        ..Edits::default()
    }
}

fn edited(text: &str) -> String {
    Spec::parse(text).unwrap().edited(&edits()).unwrap()
}

fn tree(text: &str) -> crate::json::Json<'_> {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn every_shape_of_spec_gets_the_edits_once() {
    let shapes = [
        "{}",
        r#" { "x" : 1.0e5 } "#,
        r#"{"mounts":null,"linux":null}"#,
        r#"{"mounts":[],"linux":{}}"#,
        r#"{"linux":{"devices":null,"resources":null}}"#,
        r#"{"linux":{"resources":{}}}"#,
        r#"{"mounts":[{"destination":"/proc"}],"linux":{"devices":[{"path":"/dev/x"}],"resources":{"devices":[{"allow":false}]}}}"#,
    ];
    for shape in shapes {
        let once = edited(shape);
        for part in [
            "/usr/lib/a\\\"b",
            "/dev/n0",
            "\"minor\":1,\"access\":\"rwm\"",
        ] {
            assert_eq!(once.matches(part).count(), 1, "{part} {once}");
        }
        tree(&once);
        assert_eq!(edited(&once), once);
    }
}

#[test]
fn numbers_spaces_and_unknown_fields_stay() {
    let text = "{ \"n\": 1.50e+3,\t\"mounts\" : [ {\"destination\":\"/a\",\"x\":[ ]} ] , \"z\":\"\\u00e9\"}\n";
    let edited = edited(text);
    assert!(edited
        .starts_with("{ \"n\": 1.50e+3,\t\"mounts\" : [ {\"destination\":\"/a\",\"x\":[ ]} ,{"));
    assert!(edited.contains("] , \"z\":\"\\u00e9\",\"linux\":{"));
    assert!(edited.ends_with("}\n"));
}

#[test]
fn what_is_at_a_path_stays() {
    let text = r#"{"mounts":[{"destination":"/usr/lib/a\"b/","source":"/mine"}],
        "linux":{"devices":[{"path":"/dev/n0","major":1},{"path":"/dev/n1"}]}}"#;
    assert_eq!(edited(text), text);
}

#[test]
fn reads_environment_and_root() {
    let text = r#"{"process":{"env":["A=1","B=\n"]},"root":{"path":"rootfs"}}"#;
    let spec = Spec::parse(text).unwrap();
    let env = spec.environment().unwrap();
    assert_eq!((env.get("A"), env.get("B")), (Some("1"), Some("\n")));
    assert_eq!(spec.root_path().unwrap().as_deref(), Some("rootfs"));
    assert!(Spec::parse("{}").unwrap().root_path().unwrap().is_none());
}

#[test]
fn what_is_no_spec_is_refused() {
    for text in ["", "[]", "3", "{\"a\":1,\"a\":2}", "{\"a\":", "\u{feff}{}"] {
        assert!(Spec::parse(text).is_err(), "{text:?}");
    }
    let bad = |text: &str| Spec::parse(text).unwrap().edited(&edits()).is_err();
    assert!(bad(r#"{"mounts":{}}"#));
    assert!(bad(r#"{"mounts":[3]}"#));
    assert!(bad(r#"{"linux":[]}"#));
    let spec = Spec::parse(r#"{"process":{"env":[1]}}"#).unwrap();
    assert!(spec.environment().is_err());
}

fn json_leaf() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("-1.50E+03".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        "[a-zé\\\\\"\n]{0,5}".prop_map(|s| quote(&s)),
        Just(" [ ] ".to_owned()),
        Just("{ \"k\" : [ 1 , {} ] }".to_owned()),
    ]
}

proptest! {
    #[test]
    fn unknown_fields_stay_byte_for_byte(
        unknown in prop::collection::btree_map("[a-e]{1,3}", json_leaf(), 0..6),
        mounts in prop::collection::vec(json_leaf(), 0..3),
        place in 0usize..7,
    ) {
        let mounts: Vec<String> =
            mounts.iter().map(|v| format!("{{\"destination\":\"/x\", \"u\" : {v}}}")).collect();
        let mut members: Vec<String> =
            unknown.iter().map(|(k, v)| format!("{} : {v}", quote(k))).collect();
        let at = place.min(members.len());
        members.insert(at, format!("\"mounts\":[{}]", mounts.join(" , ")));
        let text = format!("{{{}}}", members.join(" ,\n"));
        let once = edited(&text);
        for (key, value) in &unknown {
            let part = format!("{} : {}", quote(key), value);
            prop_assert!(once.contains(&part));
        }
        // Taking our additions out again gives the old text.
        let old: Vec<char> = text.chars().collect();
        let mut rest = once.chars();
        prop_assert!(old.iter().all(|c| rest.any(|d| d == *c)));
        prop_assert_eq!(edited(&once), once);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]{}\":,a-z0-9 ]{0,80}") {
        if let Ok(spec) = Spec::parse(&text) {
            let _ = spec.environment();
            let _ = spec.edited(&edits());
        }
    }
}
