use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::model::decide::decide;
use crate::model::request::{asked, Annotations};
use crate::model::vendor::{Inventory, Vendor};

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

#[test]
fn a_request_in_doubt_may_count_wherever_its_source_does() {
    for (who, may) in [(Who::All, true), (Who::Privileged, true), (Who::None, false)] {
        let twice = ContainerRequest::of_environment(["X=a", "X=none"]);
        assert_eq!(policy(who, Who::All).may_count(&twice, "v", "X"), may);
        assert!(!policy(who, Who::All).may_count(&twice, "v", "Y"));
    }
}

proptest! {
    /// What counts is one of the given values, and a stricter policy never gives more.
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
        let inventory = ["a", "b"].map(|name| (name.to_owned(), Inventory::default())).to_vec();
        let vendor = Vendor { activation_flag: "X".to_owned(), inventory, ..Vendor::default() };
        let files = [VendorFile { name: "v".to_owned(), path: String::new(), content: Ok(vendor) }];
        let value = |who: usize| {
            let writers = [Writer::Image, Writer::User];
            let policy = Policy {
                annotations_from: writers[usize::from(from_user)],
                ..policy(SOURCES[who], SOURCES[annotations])
            };
            let decided = decide(&files, &request, &policy, Path::new("/"), &mut Vec::new());
            let features = decided.unwrap().pop().map(|it| it.request.features);
            prop_assert!(features.is_none() || policy.may_count(&request, "v", "X"));
            Ok(features)
        };
        let (lax, strict) = (value(lax)?, value(strict)?);
        prop_assert!(strict.is_none() || strict == lax);
        let given = [environment.as_deref(), annotation.as_deref()].map(asked);
        prop_assert!(lax.is_none() || given.contains(&lax));
    }
}
