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
fn mounts_and_annotations_are_read_where_they_are_looked_for() {
    let text = r#"{"mounts":[{"destination":"/proc"},{"source":"/dev/null",
        "destination":"/var/run/devs/0"}],"annotations":{"cdi.k8s.io/a":"v/c=d,v/c=e",
        "other.io\u002fb":"x","c":"d"}}"#;
    let prefixes = ["cdi.k8s.io/".to_owned(), "other.io/".to_owned()];
    let wanted = ScanScope { mounts_below: Some("/var/run/devs"), cdi_prefixes: &prefixes };
    let found = Config::parse(text.as_bytes()).request(&wanted);
    assert_eq!(found.doubt, None);
    let mounts: Vec<_> = found.mounts.iter().map(|m| (&*m.source, &*m.destination)).collect();
    assert_eq!(mounts, [("", "/proc"), ("/dev/null", "/var/run/devs/0")]);
    let cdi: Vec<_> = found.cdi.iter().map(|(key, names)| (&**key, &**names)).collect();
    assert_eq!(cdi, [("cdi.k8s.io/a", "v/c=d,v/c=e"), ("other.io/b", "x")]);
    let without = request(text.as_bytes());
    assert!(without.mounts.is_empty() && without.cdi.is_empty());
    // A config that can't hold a request isn't read.
    let none = Config::parse(br#"{"mounts":[{"destination":7}]}"#).request(&wanted);
    assert_eq!((none.mounts.len(), none.doubt), (0, None));
    let broken = format!("{text}{{");
    let guessed = Config::parse(broken.as_bytes()).request(&wanted);
    assert!(guessed.doubt.is_some());
    assert_eq!((guessed.mounts.len(), guessed.cdi.len()), (1, 2));
    let mut bytes = text.as_bytes().to_vec();
    bytes.splice(1..1, b"\"x\":\"\xfc\",".iter().copied());
    let odd = Config::parse(&bytes).request(&wanted);
    assert!(odd.doubt.is_some());
    assert_eq!((odd.mounts.len(), odd.cdi.len()), (2, 2));
}

#[test]
fn annotations_of_cdi_that_are_not_plain_are_doubted() {
    let prefixes = ["cdi.k8s.io/".to_owned()];
    let wanted = ScanScope { cdi_prefixes: &prefixes, ..ScanScope::default() };
    for (text, problem) in [
        (
            r#"{"annotations":{"cdi.k8s.io/a":"x","cdi.k8s.io/a":"y"}}"#,
            "annotations: \"cdi.k8s.io/a\" is given twice",
        ),
        (
            r#"{"annotations":{"cdi.k8s.io/a":["x"]}}"#,
            "annotations: \"cdi.k8s.io/a\" is not a string",
        ),
    ] {
        let doubt = Config::parse(text.as_bytes()).request(&wanted).doubt.unwrap().to_string();
        assert!(doubt.contains(problem), "{doubt}");
    }
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

/// Some runtime, or some reader, may see that `OCI_X` is set in each of these.
#[test]
fn what_may_be_asked_for_is_seen_and_doubted() {
    for (text, problem) in [
        (&br#"{"process":{"env":["OCI_X=a"],"env":[]}}"#[..], "process.env is given twice"),
        (br#"{"process":{"env":["OCI_X=a"]},"process":{}}"#, "process is given twice"),
        (br#"{"Process":{"env":["OCI_X=a"]}}"#, "Process: some runtimes take it for \"process\""),
        (br#"{"process":{"ENV":["OCI_X=a"]}}"#, "process.ENV: some runtimes take it for \"env\""),
        (br#"{"process":{"env":["OCI_X=none"],"Env":["OCI_X"]}}"#, "process.Env: some"),
        (br#"{"proce\u017fs":{"env":["OCI_X=a"]}}"#, "take it for \"process\""),
        (br#"{"process":{"env":["OCI_X=a",1]}}"#, "not every entry is a string"),
        (
            br#"{"process":{"env":["OCI_X=a"],"capabilities":7}}"#,
            "process.capabilities: invalid type",
        ),
        (
            br#"{"process":{"env":["OCI_X=a"],"capabilities":{"Bounding":[]}}}"#,
            "process.capabilities.Bounding",
        ),
        (
            br#"{"annotations":{"oci-decorator.d/OCI_X":"a","oci-decorator.d/OCI_X":"none"}}"#,
            "is given twice",
        ),
        (br#"{"annotations":{"oci-decorator.d/OCI_X":["a"]}}"#, "is not a string"),
        (br#"{"Annotations":{"oci-decorator.d/OCI_X":"a"}}"#, "take it for \"annotations\""),
        (b"{\"process\":{\"env\":[\"OCI_X=a\",\"\xfc\"]}}", "it is not UTF-8"),
        (br#"{"process":{"env":["OCI_X=a"]}} trailing"#, "trailing characters"),
        (br#"{"process":{"env":["OCI\u005fX=a"]}} trailing"#, "trailing characters"),
        (br#"{"process":{"env":["OCI_X=a"#, "EOF while parsing"),
        (br#"{"annotations":{"oci-decorator.d/OCI_X":"#, "EOF while parsing"),
    ] {
        let request = request(text);
        let shown = String::from_utf8_lossy(text);
        let asks = Source::OF_FLAGS.iter().any(|source| request.may_ask(*source, "OCI_X"));
        assert!(asks, "{shown}");
        let doubt = request.doubt.unwrap().to_string();
        assert!(doubt.contains(problem), "{shown}\n{doubt}");
    }
}

#[test]
fn only_the_bounding_set_makes_a_container_privileged() {
    for (sets, privileged) in [
        (r#"{"bounding":["CAP_SYS_ADMIN"]}"#, true),
        (r#"{"effective":["CAP_SYS_ADMIN"],"bounding":["CAP_CHOWN"]}"#, false),
        (r#"{"bounding":["cap_sys_admin"]}"#, false),
        (r#"{"bounding":"CAP_SYS_ADMIN"}"#, false),
        ("{}", false),
    ] {
        let text = format!(r#"{{"process":{{"capabilities":{sets}}}}}"#);
        assert_eq!(request(text.as_bytes()).privileged, privileged, "{sets}");
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
