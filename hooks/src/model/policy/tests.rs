use super::*;
use crate::model::request::Annotations;
use proptest::prelude::*;

const SOURCES: [Who; 3] = [Who::All, Who::Privileged, Who::None];

fn request<'a>(
    environment: Option<&'a str>,
    annotation: Option<&'a str>,
    privileged: bool,
) -> ContainerRequest<'a> {
    let mut annotations = Annotations::default();
    if let Some(value) = annotation {
        annotations.push("oci-decorator.d/X", value.into());
    }
    ContainerRequest {
        environment: environment.map(|v| format!("X={v}")).into_iter().collect(),
        annotations,
        privileged,
        ..ContainerRequest::default()
    }
}

/// A policy on a host where only users write annotations.
fn policy(environment: Who, annotations: Who) -> Policy {
    Policy { annotations, annotations_from: Writer::User, environment, ..Policy::default() }
}

/// Tries every policy of one source with both kinds of container.
#[test]
fn each_source_counts_for_whom_the_policy_says() {
    for (who, privileged, counts) in [
        (Who::All, false, true),
        (Who::All, true, true),
        (Who::Privileged, false, false),
        (Who::Privileged, true, true),
        (Who::None, false, false),
        (Who::None, true, false),
    ] {
        let expected = counts.then_some("a");
        for (asking, policy, word) in [
            (request(Some("a"), None, privileged), policy(who, Who::None), "environment"),
            (request(None, Some("a"), privileged), policy(Who::None, who), "annotations"),
        ] {
            let verdict = policy.judge(&asking, "v", "X");
            assert_eq!(verdict.value, expected, "{who:?} {privileged} {word}");
            let reasons = usize::from(!counts);
            assert_eq!(verdict.refused.len(), reasons, "{verdict:?}");
            if let Some(reason) = verdict.refused.first() {
                let key = format!("\"policy.{word}\" is {:?}", who.word());
                assert!(reason.starts_with("X of the container's "), "{reason}");
                assert!(reason.ends_with(&key), "{reason}");
            }
        }
    }
}

#[test]
fn an_annotation_of_the_user_overrides_the_environment() {
    let all = policy(Who::All, Who::All);
    let no_annotations = policy(Who::All, Who::None);
    let no_environment = policy(Who::None, Who::All);
    for (policy, environment, annotation, value, refused) in [
        (&all, Some("a"), Some("b"), Some("b"), 0),
        (&all, Some("a"), Some("none"), Some("none"), 0),
        (&all, Some("a"), None, Some("a"), 0),
        (&all, None, None, None, 0),
        (&no_annotations, Some("a"), Some("b"), Some("a"), 1),
        (&no_annotations, Some("a"), Some("none"), Some("a"), 0),
        (&no_annotations, None, Some("void"), None, 0),
        // A variable of the image takes nothing from a pod whose annotation counts.
        (&no_environment, Some("a"), Some("b"), Some("b"), 0),
        (&no_environment, Some("a"), Some("none"), Some("none"), 0),
        (&no_environment, Some("a"), None, None, 1),
    ] {
        let request = request(environment, annotation, false);
        let verdict = policy.judge(&request, "v", "X");
        assert_eq!((verdict.value, verdict.refused.len()), (value, refused));
    }
}

/// An engine may copy an image's labels into annotations. They then pass no rule about the
/// environment, and take nothing from a user who sets a variable.
#[test]
fn an_annotation_that_an_image_may_have_written_is_worth_a_variable() {
    use Who::{All, None as Nobody, Privileged};
    let none = Option::<&str>::None;
    for (environments, annotations, environment, annotation, privileged, value, refused) in [
        (All, All, none, Some("b"), false, Some("b"), 0),
        (All, All, Some("a"), Some("b"), false, Some("a"), 0),
        (All, All, Some("none"), Some("b"), false, Some("none"), 0),
        (All, All, Some("void"), Some("b"), false, Some("void"), 0),
        (All, All, Some("a"), Some("none"), false, Some("a"), 0),
        (All, Nobody, none, Some("b"), false, none, 1),
        (Nobody, All, none, Some("b"), true, none, 1),
        (Nobody, All, Some("a"), Some("b"), true, none, 2),
        (Nobody, All, Some("none"), Some("b"), true, none, 1),
        (Privileged, All, none, Some("b"), false, none, 1),
        (Privileged, All, none, Some("b"), true, Some("b"), 0),
        (All, Privileged, none, Some("b"), false, none, 1),
    ] {
        let policy =
            Policy { annotations_from: Writer::Image, ..policy(environments, annotations) };
        let request = request(environment, annotation, privileged);
        let verdict = policy.judge(&request, "v", "X");
        let found = (verdict.value, verdict.refused.len());
        assert_eq!(found, (value, refused), "{policy:?} {request:?}");
        let may = environments != Nobody && (environment, annotations) != (none, Nobody);
        assert_eq!(policy.may_count(&request, "v", "X"), may, "{policy:?}");
    }
    let verdict = Policy { environment: Nobody, ..Policy::default() };
    let asking = request(None, Some("b"), true);
    let reason = verdict.judge(&asking, "v", "X").refused.remove(0);
    assert!(
        reason.contains("\"policy.annotations-from\" is \"image\" and \"policy.environment\""),
        "{reason}"
    );
}

#[test]
fn a_request_in_doubt_may_count_wherever_its_source_does() {
    for (who, may) in [(Who::All, true), (Who::Privileged, true), (Who::None, false)] {
        let twice = ContainerRequest::of_environment(["X=a", "X=none"]);
        assert_eq!(policy(who, Who::All).may_count(&twice, "v", "X"), may);
        assert!(!policy(who, Who::All).may_count(&twice, "v", "Y"));
    }
}

proptest! {
    /// The value that counts is one of the given ones, and a stricter policy never gives more.
    #[test]
    fn a_stricter_policy_never_gives_more(
        environment in prop::option::of("a|b|none|"),
        annotation in prop::option::of("a|b|none|"),
        privileged in any::<bool>(),
        annotations in 0..3_usize,
        from_user in any::<bool>(),
        one in 0..3_usize,
        other in 0..3_usize,
    ) {
        let request = request(environment.as_deref(), annotation.as_deref(), privileged);
        let (lax, strict) = (one.min(other), one.max(other));
        let value = |who: usize| {
            let writers = [Writer::Image, Writer::User];
            let policy = Policy {
                annotations_from: writers[usize::from(from_user)],
                ..policy(SOURCES[who], SOURCES[annotations])
            };
            let verdict = policy.judge(&request, "v", "X");
            prop_assert!(
                asked(verdict.value).is_none() || policy.may_count(&request, "v", "X")
            );
            Ok(verdict.value)
        };
        let (lax, strict) = (value(lax)?, value(strict)?);
        prop_assert!(strict.is_none() || strict == lax);
        prop_assert!(lax.is_none() || lax == environment.as_deref() || lax == annotation.as_deref());
    }
}
