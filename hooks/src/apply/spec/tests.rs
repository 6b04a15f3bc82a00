use super::*;
use crate::model::edits::paths::Unseen;
use crate::model::edits::{Device, Edits, Hook, Link, NetDevice};
use proptest::prelude::*;

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

fn try_edited(text: &str) -> Result<String> {
    let spec = Spec::parse(text)?;
    let (settled, _) = edits().settle(&spec.present()?, &Unseen);
    spec.edited(&settled)
}

fn edited(text: &str) -> String {
    try_edited(text).unwrap()
}

fn tree(text: &str) -> crate::spec::json::Json<'_> {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn mounts_of_every_kind_are_distinguished() {
    let text = r#"{"mounts":[
        {"destination":"/a/","type":"bind","source":"/s"},
        {"destination":"/b","source":"/s","options":["rbind","ro"]},
        {"destination":"/c","type":"tmpfs","source":"tmpfs","options":["nosuid"]},
        {"destination":"/d","type":"tmpfs","source":"/s","options":["ro","rbind"]},
        {"destination":"/e","type":"proc"},
        {"destination":"/f","type":"overlay","options":null},
        {"type":null}]}"#;
    let present = Spec::parse(text).unwrap().present().unwrap();
    let found: Vec<_> =
        present.mounts.iter().map(|m| (&*m.destination, &*m.source, m.is_new)).collect();
    let expected = [
        ("/a/", "/s", false),
        ("/b", "/s", false),
        ("/c", "tmpfs", true),
        ("/d", "/s", false),
        ("/e", "", true),
        ("/f", "", false),
        ("", "", false),
    ];
    assert_eq!(found, expected);
}

/// Go's reader accepts such keys, so runc would see other mounts than the ones we examined.
#[test]
fn keys_that_differ_in_case_only_are_refused_at_every_level() {
    for (text, key, known) in [
        (r#"{"Mounts":[]}"#, "Mounts", "mounts"),
        ("{\"mount\u{17f}\":[]}", "mount\u{17f}", "mounts"),
        (r#"{"mounts":[],"MOUNTS":[]}"#, "MOUNTS", "mounts"),
        (r#"{"Process":{}}"#, "Process", "process"),
        (r#"{"Root":{}}"#, "Root", "root"),
        (r#"{"Linux":{}}"#, "Linux", "linux"),
        (r#"{"Hooks":{}}"#, "Hooks", "hooks"),
        (r#"{"root":{"Path":"/"}}"#, "Path", "path"),
        (r#"{"mounts":[{"Destination":"/a"}]}"#, "Destination", "destination"),
        (r#"{"mounts":[{"destination":"/a","Source":"/b"}]}"#, "Source", "source"),
        (r#"{"linux":{"Devices":[]}}"#, "Devices", "devices"),
        (r#"{"linux":{"re\u017fources":{}}}"#, "re\u{17f}ources", "resources"),
        (r#"{"linux":{"devices":[{"PATH":"/dev/n0"}]}}"#, "PATH", "path"),
        (r#"{"linux":{"resources":{"Devices":[]}}}"#, "Devices", "devices"),
    ] {
        let refused = Spec::parse(text).and_then(|spec| {
            spec.root_path()?;
            try_edited(text)
        });
        let error = refused.unwrap_err().to_string();
        let expected = format!("{key:?} is not {known:?}, and some runtimes take it for that");
        assert!(error.ends_with(&expected), "{text}\n{error}");
    }
    // The keys of maps are free.
    let text = r#"{"annotations":{"Mounts":"","MOUNTS":""},"x":{"Path":1,"path":2}}"#;
    assert!(try_edited(text).is_ok());
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

#[test]
fn every_shape_of_process_and_hooks_gets_the_edits_once() {
    let tmpfs = r#""mounts":[{"destination":"/dev","type":"tmpfs","source":"tmpfs"}]"#;
    for shape in [
        "{}".to_owned(),
        format!(r#"{{"process":{{}},{tmpfs}}}"#),
        r#"{"process":{"env":null,"user":null},"hooks":null,"linux":{"netDevices":null}}"#.to_owned(),
        r#"{"process":{"env":[],"user":{"uid":0}},"hooks":{}}"#.to_owned(),
        r#"{"process":{"env":["A=old"],"user":{"additionalGids":null}},"hooks":{"prestart":null}}"#.to_owned(),
        r#"{"process":{"env":["X=1"],"user":{"additionalGids":[44]}},"hooks":{"prestart":[{"path":"/other"}]}}"#.to_owned(),
        r#"{"linux":{"netDevices":{},"intelRdt":null}}"#.to_owned(),
    ] {
        let once = all(&shape);
        tree(&once);
        for part in ["/usr/lib/d/x", "\"type\":\"tmpfs\",\"source\":\"tmpfs\",\"options\":[]", "\"eth1\":{\"name\":\"net0\"}", "\"intelRdt\":{\"closID\":\"x\"}", "\"createContainer\":[{\"path\":\"/bin/h"] {
            assert_eq!(once.matches(part).count(), 1, "{part} {once}");
        }
        if shape.contains("process") {
            for part in ["\"A=new\"", "\"N=\\\"q\\\"\"", "44", "105"] {
                assert!(once.contains(part), "{part} {once}");
            }
            assert_eq!(once.matches("105").count(), 1);
        }
        assert_eq!(all(&once), once);
    }
}

#[test]
fn variables_are_replaced_where_they_stand_and_taken_out() {
    let text = r#"{"process":{"env":["P=1", "A=old","GONE","GONE=2","B\u0042=x","A=older"],"user":{"uid":7}}}"#;
    let once = all(text);
    assert!(once.contains(r#""env":["P=1","A=new","B\u0042=x","N=\"q\""]"#), "{once}");
    // A device without an owner belongs to the process's user.
    let mut edits = edits();
    edits.devices[0].uid = None;
    edits.devices[0].gid = None;
    edits.devices[1].access = crate::model::edits::Access::NONE;
    let spec = Spec::parse(text).unwrap();
    let (settled, _) = edits.settle(&spec.present().unwrap(), &Unseen);
    let edited = spec.edited(&settled).unwrap();
    assert!(
        edited.contains(
            r#""path":"/dev/n0","type":"c","major":195,"minor":0,"fileMode":438,"uid":7,"gid":0"#
        ),
        "{edited}"
    );
    assert!(!edited.contains(r#""minor":1,"access""#), "{edited}");
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
        let more = all(&text);
        for (key, value) in &unknown {
            let part = format!("{} : {}", quote(key), value);
            prop_assert!(more.contains(&part));
        }
        prop_assert_eq!(all(&more), more);
        // Without our additions, the text is the old one.
        let old: Vec<char> = text.chars().collect();
        let mut rest = once.chars();
        prop_assert!(old.iter().all(|c| rest.any(|d| d == *c)));
        prop_assert_eq!(edited(&once), once);
    }
}

/// An algorithm that is quadratic in the variables would take minutes.
#[test]
fn many_variables_and_rules_are_replaced_in_no_time() {
    let entries = |value: &str| {
        let entry = |at| format!("\"V{at}={value}\"");
        let all: Vec<String> = (0..20_000).map(entry).collect();
        all.join(",")
    };
    let rule = r#"{"allow":true,"type":"c","major":195,"minor":0,"access":"rwm"}"#;
    let rules = vec![rule; 20_000].join(",");
    let text = format!(
        r#"{{"process":{{"env":[{}]}},"linux":{{"resources":{{"devices":[{rules}]}}}}}}"#,
        entries("1")
    );
    let started = std::time::Instant::now();
    let spec = Spec::parse(&text).unwrap();
    let environment = (0..20_000).map(|at| format!("V{at}=2")).collect();
    let unset = (20_000..40_000).map(|at| format!("V{at}")).collect();
    let edits = Edits { environment, unset, ..Edits::default() };
    let (settled, _) = edits.settle(&spec.present().unwrap(), &Unseen);
    let found = spec.edited(&settled).unwrap();
    assert!(found.contains(&entries("2")));
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
