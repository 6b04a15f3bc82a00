use super::*;
use crate::model::request::Source;

fn environment<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.get(Source::Environment, name)
}

#[test]
fn what_a_spec_asks_for() {
    let text = r#"{"x":[1e5],"process":{"env":["A=1","B=\n\u00e9","A=2","C"],"capabilities":
        {"bounding":["CAP_KILL","CAP_SYS_ADMIN"]}},"annotations":
        {"oci-decorator.d/X":"all","oci-decorator\u002ed/Y":"a","other":"b"}}"#;
    let request = request(text.as_bytes());
    assert_eq!(request.doubt, None);
    assert!(request.privileged);
    assert_eq!(environment(&request, "A"), Some("2"));
    assert_eq!(environment(&request, "B"), Some("\né"));
    assert_eq!(environment(&request, "C"), Some(""));
    let annotation = |flag| request.get(Source::Annotations, flag);
    assert_eq!((annotation("X"), annotation("Y")), (Some("all"), Some("a")));
    assert_eq!(annotation("other"), None);
}

#[test]
fn hooks_that_may_give_devices_are_listed() {
    for (text, expected) in [
        (
            r#"{"hooks":{"prestart":[{"path":"/usr/bin/a","args":["a"]},{"path":"/b"},{}],"poststop":[{"path":"/c"}]}}"#,
            &["/usr/bin/a", "/b"][..],
        ),
        (
            r#"{"hooks":{"createRuntime":[{"path":"/d"}],"prestart":[{"path":"/a"}],"createContainer":[{"path":"/e"}]}}"#,
            &["/a", "/d"],
        ),
        (r#"{"hooks":{"prestart":null}}"#, &[]),
        (r#"{"hooks":{"prestart":{"path":"/a"}}}"#, &[]),
        ("{}", &[]),
        ("{", &[]),
    ] {
        assert_eq!(Config::parse(text.as_bytes()).hooks_at(&HOOK_STAGES), expected, "{text}");
    }
}

/// With steps that grow with the square of the members these take minutes.
#[test]
fn many_members_are_read_in_no_time() {
    let many = |member: &dyn Fn(u32) -> String| {
        let members: Vec<String> = (0..50_000).map(member).collect();
        members.join(",")
    };
    let prefixes = ["cdi.k8s.io/".to_owned()];
    let wanted = ScanScope { cdi_prefixes: &prefixes, ..ScanScope::default() };
    for (members, flags, names, is_doubtful) in [
        (many(&|at| format!(r#""oci-decorator.d/F{at}":"all""#)), 50_000, 0, false),
        (many(&|at| format!(r#""cdi.k8s.io/{at}":"v.com/c=d""#)), 0, 50_000, false),
        (many(&|_| r#""oci-decorator.d/F":"all""#.to_owned()), 50_000, 0, true),
    ] {
        let text = format!(r#"{{"annotations":{{{members}}}}}"#);
        let started = std::time::Instant::now();
        let request = Config::parse(text.as_bytes()).request(&wanted);
        assert_eq!(request.annotations.asking().count(), flags);
        assert_eq!(request.cdi.len(), names);
        assert_eq!(request.doubt.is_some(), is_doubtful);
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
    let text = format!("{{{}}}", many(&|_| r#""process":{}"#.to_owned()));
    let started = std::time::Instant::now();
    assert!(request(text.as_bytes()).doubt.is_some());
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
