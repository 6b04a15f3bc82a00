use super::*;
use crate::model::policy::Allowed;

fn file(name: &str, flag: &str) -> VendorFile {
    let text = format!(
        r#"{{"activation_flag":"{flag}","driver_feature":["b"],"inventory":{{"a":{{}},"b":{{}},"c":{{}}}}}}"#
    );
    VendorFile {
        name: name.to_owned(),
        path: format!("/conf/{name}.json"),
        content: Ok(crate::config::vendor::parse(&text).unwrap()),
    }
}

fn broken(flags: &[&str]) -> VendorFile {
    VendorFile {
        name: "bad".to_owned(),
        path: "/conf/bad.json".to_owned(),
        content: Err(Broken {
            mistakes: vec![Mistake::new("x", "wrong"), Mistake::new("y", "wrong")],
            flags: flags.iter().map(|&f| f.to_owned()).collect(),
            interfaces: Vec::new(),
        }),
    }
}

fn chosen(files: &[VendorFile], env: &[&str]) -> std::result::Result<Vec<String>, String> {
    judged(files, env, &Policy::default())
}

fn judged(
    files: &[VendorFile],
    env: &[&str],
    policy: &Policy,
) -> std::result::Result<Vec<String>, String> {
    decide(files, &Request::of_environment(env.iter().copied()), policy)
        .map(|(choices, _)| {
            choices
                .iter()
                .map(|c| format!("{}:{}", c.file.name, c.features.join("+")))
                .collect()
        })
        .map_err(|e| e.to_string())
}

#[test]
fn value_table() {
    let cases: [(&[&str], &[&str]); 9] = [
        (&[], &[]),
        (&["X=none"], &[]),
        (&["X=void"], &[]),
        (&["X"], &["v:b"]),
        (&["X="], &["v:b"]),
        (&["X=all"], &["v:a+b+c"]),
        (&["X=c,a"], &["v:c+a"]),
        (&["X=a, a"], &["v:a"]),
        (&["X=all", "X=none"], &[]),
    ];
    for (env, expected) in cases {
        assert_eq!(chosen(&[file("v", "X")], env).unwrap(), expected, "{env:?}");
    }
}

#[test]
fn an_unknown_feature_names_feature_flag_and_file() {
    let error = chosen(&[file("v", "X")], &["X=a,gr\nx"]).unwrap_err();
    assert_eq!(
        error,
        "X asks for the unknown feature \"gr\\nx\": /conf/v.json knows a, b, c; \"all\" is every one of them"
    );
    assert!(chosen(&[file("v", "X")], &["X=a,"]).is_err());
    assert!(chosen(&[file("v", "X")], &["X=none,a"]).is_err());
    assert!(chosen(&[file("v", "X")], &["X=ALL"]).is_err());
}

#[test]
fn only_vendors_whose_flag_matches_apply() {
    let files = [file("n", "OCI_N"), file("s", "OCI_S")];
    assert_eq!(chosen(&files, &["OCI_S=a", "FOO=OCI_N"]).unwrap(), ["s:a"]);
    assert_eq!(chosen(&files, &["OCI_S", "OCI_N"]).unwrap(), ["n:b", "s:b"]);
}

#[test]
fn a_broken_file_stops_only_those_who_ask_for_it() {
    let files = [broken(&["BAD"]), file("v", "X")];
    assert_eq!(chosen(&files, &["X", "BAD=none"]).unwrap(), ["v:b"]);
    let asking = Request::of_environment(["X"]);
    let (_, notes) = decide(&files, &asking, &Policy::default()).unwrap();
    assert_eq!(
        notes[0].message,
        "/conf/bad.json can't be used and is ignored: x: wrong (and 1 more)"
    );
    let error = chosen(&files, &["X", "BAD"]).unwrap_err();
    assert!(
        error.starts_with("BAD is set, but /conf/bad.json can't be used: x: wrong (and 1 more)")
    );
}

#[test]
fn a_flag_that_two_files_claim_is_refused_when_asked_for() {
    let files = [file("a", "X"), file("b", "X")];
    assert_eq!(chosen(&files, &[]).unwrap(), Vec::<String>::new());
    assert!(chosen(&files, &["X"])
        .unwrap_err()
        .contains("/conf/a.json and of /conf/b.json"));
}

fn allow(features: &[&str], on_refusal: OnRefusal) -> Policy {
    let features = features.iter().map(|&name| name.to_owned()).collect();
    Policy {
        allow: Some(vec![("v".to_owned(), Allowed::Features(features))]),
        on_refusal,
        ..Policy::default()
    }
}

#[test]
fn only_what_the_policy_allows_is_given() {
    let files = [file("v", "X"), file("w", "Y")];
    let policy = allow(&["a", "b"], OnRefusal::Ignore);
    for (env, expected) in [
        (&["X=all"][..], &["v:a+b"][..]),
        (&["X=c,a"], &["v:a"]),
        (&["X=c"], &[]),
        (&["X="], &["v:b"]),
        (&["X", "Y=all"], &["v:b"]),
    ] {
        assert_eq!(judged(&files, env, &policy).unwrap(), expected, "{env:?}");
    }
    assert!(judged(&files, &["X=d"], &policy).is_err());
    let asking = Request::of_environment(["X=c,a", "Y=a"]);
    let (_, notes) = decide(&files, &asking, &policy).unwrap();
    let messages: Vec<_> = notes
        .iter()
        .map(|n| (n.level, n.message.as_str()))
        .collect();
    assert_eq!(
        messages,
        [
            (Level::Notice, "X asks for the feature \"c\", and \"policy.allow\" has none of that name for v; the container starts without"),
            (Level::Notice, "Y asks for the vendor \"w\", and \"policy.allow\" has no such vendor; the container starts without"),
        ]
    );
}

#[test]
fn a_policy_may_refuse_the_start_instead() {
    let files = [file("v", "X"), file("w", "Y")];
    let policy = allow(&["a", "b"], OnRefusal::Fail);
    assert_eq!(
        judged(&files, &["X=all", "Y=none"], &policy).unwrap(),
        ["v:a+b"]
    );
    for env in [&["X=c"][..], &["Y"]] {
        let error = judged(&files, env, &policy).unwrap_err();
        assert!(error.contains("\"policy.allow\""), "{error}");
        assert!(error.ends_with("change [policy] in config.toml"), "{error}");
    }
}

/// With a typo in the list, or an empty list, `all` gives nothing. That must be reported.
#[test]
fn all_that_is_allowed_may_not_be_nothing() {
    let files = [file("v", "X")];
    for list in [&["compte"][..], &[]] {
        let error = judged(&files, &["X=all"], &allow(list, OnRefusal::Fail)).unwrap_err();
        let reason = "X asks for all that is allowed, and \"policy.allow\" has no feature of v, which knows a, b, c";
        assert!(error.starts_with(reason), "{error}");
        let ignoring = allow(list, OnRefusal::Ignore);
        let asking = Request::of_environment(["X=all"]);
        let (choices, notes) = decide(&files, &asking, &ignoring).unwrap();
        assert!(choices.is_empty());
        assert_eq!(notes.len(), 1, "{list:?}");
        assert!(notes[0].message.starts_with(reason), "{notes:?}");
    }
}

#[test]
fn a_broken_file_of_a_vendor_that_is_not_allowed_stops_nothing() {
    let policy = allow(&["a"], OnRefusal::Ignore);
    let files = [broken(&["BAD"])];
    assert!(judged(&files, &["BAD"], &policy).unwrap().is_empty());
}

#[test]
fn whether_anything_may_be_asked_for() {
    let files = [broken(&["BAD", "WORSE"]), file("v", "X")];
    for (env, flag) in [
        (&["X=none", "Y=all"][..], None),
        (&["X=all", "X=none"], Some("X")),
        (&["WORSE"], Some("WORSE")),
    ] {
        let request = Request::of_environment(env.iter().copied());
        assert_eq!(
            may_ask(&files, &request, &Policy::default()),
            flag,
            "{env:?}"
        );
    }
}

#[test]
fn the_log_is_not_a_containers_to_fill() {
    let mut request = Request::of_environment([format!("X={}", "a,".repeat(1_000) + "a")]);
    for at in 0..1_000 {
        let key = format!("oci-decorator.d/NONE{at}");
        request.annotations.push(&key, "all".into());
    }
    let policy = Policy {
        allow: Some(vec![(
            "v".to_owned(),
            Allowed::Features(vec!["b".to_owned()]),
        )]),
        ..Policy::default()
    };
    let files = [file("v", "X")];
    let (_, notes) = decide(&files, &request, &policy).unwrap();
    assert_eq!(notes.len(), SAID + 2);
    let said: Vec<_> = notes.iter().map(|note| note.message.as_str()).collect();
    assert!(
        said.iter()
            .any(|text| text.starts_with("995 more annotations")),
        "{said:?}"
    );
    let refused = said
        .iter()
        .filter(|text| text.contains("the feature \"a\""));
    assert_eq!(refused.count(), 1);
}
