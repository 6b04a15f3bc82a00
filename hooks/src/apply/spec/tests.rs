use proptest::prelude::*;

use super::*;
use crate::model::edits::{Device, Edits, Hook, Link, NetDevice, Unseen};

fn edits() -> Edits {
    let device = |path: &str, minor| Device {
        source: path.to_owned(),
        path: path.to_owned(),
        kind: 'c',
        major: 195,
        minor,
        mode: 0o666,
        uid: Some(0),
        gid: Some(44),
        access: crate::model::edits::Access::ALL,
    };
    Edits {
        devices: vec![device("/dev/n0", 0), device("/dev/n1", 1)],
        mounts: vec![Mount { source: "/h/a\"b".to_owned(), target: "/usr/lib/a\"b".to_owned() }],
        ..Edits::default()
    }
}

fn tree(text: &str) -> crate::config::reader::Json<'_> {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Every other kind of edit.
fn all_edits() -> Edits {
    let texts = |texts: &[&str]| texts.iter().map(|&t| t.to_owned()).collect::<Vec<_>>();
    let hook = |stage: &str| Hook {
        stage: stage.to_owned(),
        path: "/bin/h\"x".to_owned(),
        args: texts(&["h", "a b"]),
        env: Vec::new(),
        timeout: Some(3),
    };
    Edits {
        described: vec![
            DescribedMount {
                source: "/h/lib".to_owned(),
                target: "/usr/lib/d/x".to_owned(),
                kind: String::new(),
                options: texts(&["bind", "ro"]),
            },
            DescribedMount {
                source: "tmpfs".to_owned(),
                target: "/scratch".to_owned(),
                kind: "tmpfs".to_owned(),
                options: Vec::new(),
            },
        ],
        environment: texts(&["A=new", "N=\"q\""]),
        unset: texts(&["GONE"]),
        groups: vec![0, 44, 105],
        hooks: vec![hook("createContainer"), hook("prestart")],
        replaced_hooks: texts(&["nvidia-container-runtime-hook"]),
        links: vec![Link { path: "/dev/by/x".to_owned(), target: "../x".to_owned() }],
        intel_rdt: Some("{\"closID\":\"x\"}".to_owned()),
        net_devices: vec![NetDevice { host: "eth1".to_owned(), name: "net0".to_owned() }],
        ..edits()
    }
}

fn try_all(text: &str) -> Result<String> {
    let spec = Spec::parse(text)?;
    let (settled, _) = all_edits().settle(&spec.present()?, &Unseen);
    spec.edited(&settled)
}

fn all(text: &str) -> String {
    try_all(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn entries() -> impl Strategy<Value = Vec<String>> {
    let entry = prop_oneof![
        Just("A=old".to_owned()),
        Just("GONE=1".to_owned()),
        Just("A=new".to_owned()),
        "[A-C]{1,2}(=[a-zé\"\\\\]{0,3})?",
    ];
    prop::collection::vec(entry, 0..6)
}

proptest! {
    #[test]
    fn any_environment_groups_and_hooks_are_edited_once(
        environment in entries(),
        groups in prop::collection::vec(prop_oneof![Just(44u32), Just(0), any::<u32>()], 0..4),
        hooks in prop::collection::vec(prop_oneof![
            Just(r#"{"path":"/x/nvidia-container-runtime-hook"}"#),
            Just(r#"{"path":"/bin/h\"x","args":["h","a b"],"env":[],"timeout":3}"#),
            Just(r#"{ "path":"/mine", "u": [ ] }"#),
        ], 0..4),
    ) {
        let quoted: Vec<_> = environment.iter().map(|e| quote(e)).collect();
        let numbers: Vec<_> = groups.iter().map(ToString::to_string).collect();
        let text = format!(
            r#"{{"process":{{"env":[{}],"user":{{"additionalGids":[{}]}}}},"hooks":{{"prestart":[{}]}}}}"#,
            quoted.join(","), numbers.join(","), hooks.join(",")
        );
        let once = all(&text);
        tree(&once);
        prop_assert_eq!(all(&once), once.clone());
        let kept = environment.iter().filter(|e| {
            let name = crate::model::edits::variable_name(e);
            !matches!(name, "A" | "N" | "GONE")
        });
        for entry in kept {
            prop_assert!(once.contains(&quote(entry)));
        }
        prop_assert!(!once.contains("GONE") && !once.contains("A=old"));
        prop_assert!(!once.contains("nvidia-container-runtime-hook"));
    }
}
