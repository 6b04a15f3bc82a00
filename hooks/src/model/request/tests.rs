use super::*;
use proptest::prelude::*;

#[test]
fn names_match_exactly_and_the_last_entry_counts() {
    let env: Environment =
        ["NOT_OCI_X=1", "FOO=OCI_X", "OCI_XY=2", "OCI_X=a", "=", "", "OCI_X=b=c", "BARE"]
            .into_iter()
            .collect();
    assert_eq!(env.get("OCI_X"), Some("b=c"));
    assert_eq!(env.get("BARE"), Some(""));
    assert_eq!(env.get("OCI"), None);
}

#[test]
fn variables_are_listed_each_once() {
    let mut env: Environment = ["B=1", "A=x=y", "C", "B=2"].into_iter().collect();
    assert_eq!(env.variables(), [("A", "x=y"), ("C", ""), ("B", "2")]);
    assert_eq!(env.bare(), Some("C"));
    assert!(env.remove("C") && !env.remove("C") && env.remove("B"));
    assert_eq!((env.bare(), env.variables()), (None, vec![("A", "x=y")]));
}

/// An algorithm that is quadratic in the entries would take minutes.
#[test]
fn many_variables_are_listed_in_no_time() {
    let env: Environment = (0..60_000).map(|at| format!("A{at}=1")).collect();
    let started = std::time::Instant::now();
    assert_eq!(env.variables().len(), 60_000);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn a_scheduler_has_a_vendors_kinds_and_those_below_it() {
    let request = Request { reserved: vec!["nvidia.com".to_owned()], ..Request::default() };
    for (kind, expected) in [
        ("nvidia.com/gpu", true),
        ("nvidia.com/mig", true),
        ("management.nvidia.com/gpu", true),
        ("NVIDIA.com/gpu", true),
        ("notnvidia.com/gpu", false),
        ("nvidia.com.org/gpu", false),
        ("other.com/nvidia.com", false),
    ] {
        assert_eq!(request.reserves(kind), expected, "{kind}");
        assert!(!Request::default().reserves(kind));
    }
}

#[test]
fn annotations_have_a_prefix_and_match_exactly() {
    let mut annotations = Annotations::default();
    for (key, value) in [
        ("oci-decorator.d/OCI_X", "a"),
        ("oci-decorator.d/OCI_Y", "none"),
        ("OCI_X", "b"),
        ("oci-decorator/OCI_X", "c"),
        ("Oci-decorator.d/OCI_X", "d"),
    ] {
        annotations.push(key, value.into());
    }
    assert_eq!(annotations.get("OCI_X"), Some("a"));
    assert_eq!(annotations.get("OCI"), None);
    assert_eq!(annotations.asking().collect::<Vec<_>>(), ["OCI_X"]);
}

#[test]
fn an_overridden_value_may_ask_too() {
    let request = Request::of_environment(["OCI_X=all", "OCI_X=none", "OCI_Y=void"]);
    assert!(request.may_ask(Source::Environment, "OCI_X"));
    assert!(!request.may_ask(Source::Environment, "OCI_Y"));
    assert!(!request.may_ask(Source::Annotations, "OCI_X"));
    assert_eq!(asked(request.get(Source::Environment, "OCI_X")), Asked::Nothing);
}

proptest! {
    #[test]
    fn any_entries_are_looked_up_like_a_map(
        entries in prop::collection::vec(("[A-C]{1,2}", "(?s).{0,4}"), 0..20)
    ) {
        let env: Environment = entries.iter().map(|(k, v)| format!("{k}={v}")).collect();
        for name in ["A", "B", "AA", "AB", "D"] {
            let expected = entries.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
            prop_assert_eq!(env.get(name), expected);
        }
    }
}
