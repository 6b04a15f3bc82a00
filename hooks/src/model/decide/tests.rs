use super::*;
use crate::model::policy::{Allowed, OnRefusal};
use crate::model::vendor::Mistake;

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

fn judged(
    files: &[VendorFile],
    env: &[&str],
    policy: &Policy,
) -> std::result::Result<Vec<String>, String> {
    decide(files, &Request::of_environment(env.iter().copied()), policy)
        .map(|(choices, _)| {
            choices.iter().map(|c| format!("{}:{}", c.file.name, c.features.join("+"))).collect()
        })
        .map_err(|e| e.to_string())
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
        assert_eq!(may_ask(&files, &request, &Policy::default()), flag, "{env:?}");
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
        allow: Some(vec![("v".to_owned(), Allowed::Features(vec!["b".to_owned()]))]),
        ..Policy::default()
    };
    let files = [file("v", "X")];
    let (_, notes) = decide(&files, &request, &policy).unwrap();
    assert_eq!(notes.len(), SAID + 2);
    let said: Vec<_> = notes.iter().map(|note| note.message.as_str()).collect();
    assert!(said.iter().any(|text| text.starts_with("995 more annotations")), "{said:?}");
    let refused = said.iter().filter(|text| text.contains("the feature \"a\""));
    assert_eq!(refused.count(), 1);
}
