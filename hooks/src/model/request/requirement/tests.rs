use super::*;
use proptest::prelude::*;

const HOST: Known = Known {
    cuda: Some("12.2"),
    driver: Some("535.261.03"),
    arch: Some("8.0"),
    brand: Some("Tesla"),
};

fn check(text: &str, known: &Known) -> Outcome {
    let requirement = Requirement { by: "NVIDIA_REQUIRE_CUDA".to_owned(), text: text.to_owned() };
    requirement.check(known)
}

#[test]
fn conditions_on_a_host() {
    for (text, met) in [
        ("", true),
        (" ", true),
        (",", true),
        ("cuda>=12.2", true),
        ("cuda>=12.2.0", true),
        ("cuda>=12.3", false),
        ("cuda>=9.0", true),
        ("cuda=12.2", true),
        ("cuda=12", false),
        ("cuda!=12.2", false),
        ("cuda<=12.2", true),
        ("cuda<12.10", true),
        ("cuda>12.2", false),
        ("CUDA>=12", true),
        ("driver>=535", true),
        ("driver<536", true),
        ("driver=535.261.3", true),
        ("arch>=7.5", true),
        ("arch>8", false),
        ("brand=tesla", true),
        ("brand=TESLA", true),
        ("brand!=tesla", false),
        ("brand=quadro", false),
        // A comma means "and", a blank means "or".
        ("cuda>=12.0,driver>=470", true),
        ("cuda>=12.0,driver>=550", false),
        ("cuda>=12.9 brand=tesla,driver>=470,driver<536", true),
        ("cuda>=12.9 brand=quadro,driver>=470", false),
        ("cuda>=12.9  cuda>=12.0", true),
        ("cuda>=184467440737095516160", false),
    ] {
        let expected = if met { Outcome::Met } else { Outcome::Unmet };
        assert_eq!(check(text, &HOST), expected, "{text}");
    }
}

#[test]
fn a_part_that_is_not_a_condition_is_named_when_it_counts() {
    for (text, part) in [
        ("cuda", "cuda"),
        ("cuda>=", "cuda>="),
        ("cuda==12", "cuda==12"),
        ("cuda!12", "cuda!12"),
        ("cuda=>12", "cuda=>12"),
        ("cuda>=x", "cuda>=x"),
        ("cuda>=.5", "cuda>=.5"),
        ("brand>=tesla", "brand>=tesla"),
        ("colour=red", "colour=red"),
        ("cuda>=12.0,foo", "foo"),
        ("cuda>=12.9 foo=1", "foo=1"),
    ] {
        assert_eq!(check(text, &HOST), Outcome::Invalid(part.to_owned()));
    }
    // NVIDIA's tool ignores what comes after the result is known.
    assert_eq!(check("cuda>=12.0 foo", &HOST), Outcome::Met);
    assert_eq!(check("cuda>=12.9,foo", &HOST), Outcome::Unmet);
}

#[test]
fn what_the_host_does_not_know_counts_as_met() {
    let host = Known { driver: Some("535.261.03-custom"), cuda: Some("12.2"), ..Known::default() };
    for (text, outcome) in [
        ("cuda>=12.0", Outcome::Met),
        ("driver>=900", Outcome::MetUnlessKnown(vec![Subject::Driver])),
        ("brand=tesla,arch>=9", Outcome::MetUnlessKnown(vec![Subject::Brand, Subject::Arch])),
        ("cuda>=13,brand=tesla", Outcome::Unmet),
        ("brand=tesla cuda>=12", Outcome::MetUnlessKnown(vec![Subject::Brand])),
    ] {
        assert_eq!(check(text, &host), outcome, "{text}");
    }
    assert_eq!(host.to_string(), "cuda 12.2, driver 535.261.03-custom");
}

proptest! {
    #[test]
    fn versions_are_ordered(a in "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}", b in "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}") {
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        prop_assert_eq!(compare(&a, &format!("{a}.0")), Ordering::Equal);
        prop_assert_eq!(compare(&format!("{a}.1"), &a), Ordering::Greater);
    }
}
