use super::*;

/// With steps that grow with the square of the members these take minutes.
#[test]
fn many_members_are_read_in_no_time() {
    let many = |member: &dyn Fn(u32) -> String| {
        let members: Vec<String> = (0..50_000).map(member).collect();
        members.join(",")
    };
    let prefixes = ["cdi.k8s.io/".to_owned()];
    let wanted = ScanScope { cdi_prefixes: &prefixes, ..ScanScope::default() };
    for (members, flags, names) in [
        (many(&|at| format!(r#""oci-decorator.d/F{at}":"all""#)), 50_000, 0),
        (many(&|at| format!(r#""cdi.k8s.io/{at}":"v.com/c=d""#)), 0, 50_000),
    ] {
        let text = format!(r#"{{"annotations":{{{members}}}}}"#);
        let started = std::time::Instant::now();
        let request = ContainerConfig::parse(text.as_bytes()).request(&wanted);
        assert_eq!((request.annotations.asking().count(), request.cdi.len()), (flags, names));
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
}

/// An engine may leave such an annotation behind: what else asks is not hidden by it.
#[test]
fn an_annotation_that_names_nothing_asks_for_nothing() {
    let prefixes = ["cdi.k8s.io/".to_owned()];
    let wanted = ScanScope { cdi_prefixes: &prefixes, ..ScanScope::default() };
    for (value, count) in [("", 0), (",", 0), (" , ", 0), ("v.com/c=d", 1), ("v.com/c=d,", 1)] {
        let text = format!(r#"{{"annotations":{{"cdi.k8s.io/x":"{value}"}}}}"#);
        let request = ContainerConfig::parse(text.as_bytes()).request(&wanted);
        assert_eq!((request.cdi.len(), request.ambiguity), (count, None), "{value:?}");
    }
}
