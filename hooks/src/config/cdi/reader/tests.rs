use super::*;
use crate::config::cdi::document::VERSIONS;

fn json(text: &str) -> Result<Document, Vec<Mistake>> {
    parse(text, Syntax::Json)
}

/// A specification with one device that has these edits.
fn with(version: &str, edits: &str) -> String {
    format!(
        r#"{{"cdiVersion":"{version}","kind":"v.com/c","devices":[{{"name":"d","containerEdits":{{{edits}}}}}]}}"#
    )
}

fn mistakes(text: &str) -> String {
    let found = json(text).err().unwrap_or_default();
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    found.join("; ")
}

const EVERYTHING: &str = r#"{"cdiVersion":"1.1.0","kind":"v.com/c.d","annotations":{"a":"b"},
  "containerEdits":{"env":["S=1"]},
  "devices":[{"name":"0:1","annotations":{"a":"b"},"containerEdits":{
    "env":["A=1","B="],
    "deviceNodes":[{"path":"/dev/x","hostPath":"/dev/y","type":"c","major":195,"minor":3,"fileMode":438,"permissions":"rw","uid":1,"gid":2},{"path":"/dev/z"}],
    "mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro"],"type":"bind"},{"hostPath":"tmpfs","containerPath":"/t","type":"tmpfs"}],
    "hooks":[{"hookName":"createContainer","path":"/bin/h","args":["h","x"],"env":["P=1"],"timeout":3}],
    "additionalGids":[44,0],
    "intelRdt":{"closID":"x","schemata":["L3:0=f"],"enableMonitoring":true},
    "netDevices":[{"hostInterfaceName":"eth1","name":"net0"}]}}]}"#;

/// JSON is also YAML, and the YAML of the engines' tools gives the same document.
#[test]
fn both_syntaxes_say_the_same() {
    assert_eq!(parse(EVERYTHING, Syntax::Yaml), json(EVERYTHING));
    let yaml = "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n      fileMode: 0660\n- name: 1\n  containerEdits:\n    env:\n    - A=yes\ncontainerEdits:\n  hooks:\n  - args:\n    - nvidia-cdi-hook\n    - update-ldcache\n    hookName: createContainer\n    path: /usr/bin/nvidia-cdi-hook\n  env: ~\n";
    let document = parse(yaml, Syntax::Yaml).unwrap();
    assert_eq!(document.devices[0].edits.nodes[0].mode, Some(0o660));
    assert_eq!(document.devices[1].name, "1");
    assert_eq!(document.devices[1].edits.env, ["A=yes"]);
    assert_eq!(document.edits.hooks[0].args[1], "update-ldcache");
}

#[test]
fn a_version_must_have_what_is_used() {
    let env = r#""env":["A=1"]"#;
    for version in VERSIONS {
        assert_eq!(mistakes(&with(version, env)), "", "{version}");
    }
    for version in ["", "0.1.0", "0.2.0", "0.9.0", "1.2.0", "1", "x"] {
        assert!(!mistakes(&with(version, env)).is_empty(), "{version}");
    }
    let of_node = |field: &str| format!(r#""deviceNodes":[{{"path":"/dev/x",{field}}}]"#);
    for (edits, first) in [
        (r#""mounts":[{"hostPath":"/a","containerPath":"/b","type":"bind"}]"#.to_owned(), "0.4.0"),
        (of_node(r#""hostPath":"/dev/y""#), "0.5.0"),
        (r#""additionalGids":[44]"#.to_owned(), "0.7.0"),
        (r#""intelRdt":{"closID":"x"}"#.to_owned(), "0.7.0"),
        (r#""intelRdt":{"schemata":["a"]}"#.to_owned(), "1.1.0"),
        (r#""netDevices":[{"hostInterfaceName":"a","name":"b"}]"#.to_owned(), "1.1.0"),
    ] {
        let at = VERSIONS.iter().position(|v| *v == first).unwrap();
        let before = mistakes(&with(VERSIONS[at - 1], &edits));
        assert!(before.contains(&format!("use {first} or newer")), "{before}");
        assert_eq!(mistakes(&with(first, &edits)), "");
    }
    let old = r#""intelRdt":{"enableCMT":true}"#;
    assert_eq!(mistakes(&with("1.0.0", old)), "");
    assert!(mistakes(&with("1.1.0", old)).contains("no longer has"));
    for (from, to, first) in [
        (r#""name":"d""#, r#""name":"0""#, "0.5.0"),
        (r#""name":"d""#, r#""name":"d","annotations":{"a":"b"}"#, "0.6.0"),
        ("v.com/c", "v.com/c.d", "0.6.0"),
    ] {
        assert!(mistakes(&with("0.4.0", env).replace(from, to)).contains(first));
        assert_eq!(mistakes(&with(first, env).replace(from, to)), "");
    }
}

#[test]
fn mistakes_name_their_place() {
    for (edits, expected) in [
        ("", "devices[0].containerEdits: it gives a container nothing"),
        (r#""env":["A"]"#, r#"devices[0].containerEdits.env: "A" is not NAME=value"#),
        (r#""env":["=x"]"#, "is not NAME=value"),
        (r#""env":[3]"#, "devices[0].containerEdits.env[0]: expected a string, found a number"),
        (r#""env":"A=1""#, "expected a list of strings, found a string"),
        (r#""deviceNodes":[{}]"#, "deviceNodes[0].path: missing"),
        (r#""deviceNodes":[{"path":"dev/x"}]"#, r#""dev/x" is not an absolute path"#),
        (r#""deviceNodes":[{"path":"/x","type":"s"}]"#, r#""s" is not one of b, c, u and p"#),
        (r#""deviceNodes":[{"path":"/x","permissions":"rx"}]"#, r#""rx" is neither none"#),
        (r#""deviceNodes":[{"path":"/x","major":-1}]"#, "major: it is out of range"),
        (r#""deviceNodes":[{"path":"/x","major":1.5}]"#, "expected a whole number"),
        (r#""deviceNodes":[{"path":"/x","Major":1}]"#, "Major: unknown field"),
        (r#""mounts":[{"hostPath":"/a"}]"#, "mounts[0].containerPath: missing"),
        (r#""mounts":[{"hostPath":"a","containerPath":"/b"}]"#, r#""a" is not an absolute"#),
        (r#""hooks":[{"hookName":"x","path":"/h"}]"#, r#""x" is not one of prestart"#),
        (r#""hooks":[{"hookName":"prestart"}]"#, "hooks[0].path: missing"),
        (r#""hooks":[{"hookName":"prestart","path":"/h","timeout":"1"}]"#, "a whole number"),
        (r#""additionalGids":["a"]"#, "expected a whole number, found a string"),
        (
            r#""additionalGids":[4294967294,4294967295]"#,
            "additionalGids[1]: 4294967295 is not a group",
        ),
        (r#""env":["A=1"],"env":["B=1"]"#, "containerEdits.env: given twice"),
        (r#""netDevices":[{"hostInterfaceName":"a/b","name":"c"}]"#, "not a name of an interface"),
        (r#""devices":[]"#, "containerEdits.devices: unknown field"),
    ] {
        let found = mistakes(&with("1.1.0", edits));
        assert!(found.contains(expected), "{edits}\n{found}");
    }
}

#[test]
fn mistakes_of_the_whole_document() {
    let good = with("0.6.0", r#""env":["A=1"]"#);
    for (from, to, expected) in [
        ("v.com/c", "v.com", "is not a kind of CDI"),
        ("v.com/c", "1v/c", "is not a kind of CDI"),
        (r#""kind":"v.com/c","#, "", "kind: missing"),
        (r#""cdiVersion":"0.6.0","#, "", "cdiVersion: missing"),
        (r#""name":"d""#, r#""name":"-d""#, "devices[0].name: \"-d\" is not a name"),
        (r#""name":"d","#, "", "devices[0].name: missing"),
        (r#""kind""#, r#""vendor":1,"kind""#, "vendor: unknown field"),
        (r#""kind""#, r#""annotations":{"a":1},"kind""#, "annotations.a: expected a string"),
    ] {
        assert!(good.contains(from), "{from}");
        let found = mistakes(&good.replace(from, to));
        assert!(found.contains(expected), "{to}\n{found}");
    }
    let none = r#"{"cdiVersion":"0.6.0","kind":"v.com/c","devices":[]}"#;
    assert!(mistakes(none).contains("devices: there is no device"));
    let device = r#"{"name":"d","containerEdits":{"env":["A=1"]}}"#;
    let twice =
        format!(r#"{{"cdiVersion":"0.6.0","kind":"v.com/c","devices":[{device},{device}]}}"#);
    assert!(mistakes(&twice).contains("devices[1]: a second device \"d\""));
    for text in ["", "[]", "3", "{", "null"] {
        assert!(json(text).is_err(), "{text}");
    }
    // Names of one letter, with which another reader's program crashes.
    assert_eq!(mistakes(&good.replace("v.com/c", "v/c")), "");
}
