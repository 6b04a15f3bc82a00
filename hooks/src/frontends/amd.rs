//! AMD's interface: `ROCR_VISIBLE_DEVICES`, read as Sarus's hook does.

use crate::config::settings::Scheduler;
use crate::model::policy::{Policy, Who};
use crate::model::request::{Ask, Details, Interface, Request, Source, Units, Way};

use super::nvidia::Words;
use super::sarus::{Given, ROCR};

/// Adds what the variable asks for to the request. If the host's scheduler counts, its variable
/// overrides the image's. A job without the variable gets no device, except in strict mode: Sarus
/// runs its hook for every container of a host with `/dev/kfd` and gives all devices.
pub fn read(request: &mut Request, given: &Given, scheduler: Scheduler, policy: &Policy) {
    let is_scheduled = scheduler != Scheduler::Ignored;
    let source = if is_scheduled {
        Source::Scheduler
    } else {
        Source::Environment
    };
    let value = if is_scheduled {
        given.rocr.as_deref()
    } else {
        request.environment.get(ROCR)
    };
    let Some(value) = value else {
        if scheduler == Scheduler::Strict && request.doubt.is_none() {
            request.asks.push(ask(Source::Scheduler, Units::All, true));
        }
        return;
    };
    let units = match Words::of([value]) {
        Words::Nothing | Words::None => return,
        Words::All => Units::All,
        Words::These(names) => Units::These(names),
    };
    if policy.who(source) != Who::None {
        request.suspect.get_or_insert_with(|| ROCR.to_owned());
    }
    if request.doubt.is_some() {
        return;
    }
    if let Err(reason) = policy.judge_source(source, request.privileged, ROCR) {
        request.refused.push(reason);
        return;
    }
    request.asks.push(ask(source, units, false));
}

fn ask(source: Source, units: Units, is_implied: bool) -> Ask {
    // The nodes belong to a group that the container's process has to join.
    let details = Details {
        groups: true,
        is_implied,
        ..Details::default()
    };
    Ask {
        interface: Interface::Amd,
        source,
        by: ROCR.to_owned(),
        units,
        way: Way::VendorFile,
        details: Ok(details),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(
        image: Option<&str>,
        host: Option<&str>,
        scheduler: Scheduler,
    ) -> Option<(Source, Units)> {
        let entries = image.map(|value| format!("{ROCR}={value}"));
        let mut request = Request::of_environment(entries);
        let given = Given {
            rocr: host.map(str::to_owned),
            cuda: None,
        };
        read(&mut request, &given, scheduler, &Policy::default());
        let asked = request.asks.iter().any(|ask| !ask.is_implied());
        assert_eq!(request.suspect.is_some(), asked);
        request.asks.pop().map(|ask| (ask.source, ask.units))
    }

    #[test]
    fn the_variable_asks() {
        let these = |names: &[&str]| Units::These(names.iter().map(|&n| n.to_owned()).collect());
        let (image, host) = (Source::Environment, Source::Scheduler);
        for (own, given, scheduler, expected) in [
            (None, None, Scheduler::Ignored, None),
            (None, Some("0"), Scheduler::Ignored, None),
            (Some(""), None, Scheduler::Ignored, None),
            (
                Some("all"),
                None,
                Scheduler::Ignored,
                Some((image, Units::All)),
            ),
            (
                Some("1, 0,1"),
                None,
                Scheduler::Ignored,
                Some((image, these(&["1", "0"]))),
            ),
            (
                Some("all"),
                Some("1"),
                Scheduler::Strict,
                Some((host, these(&["1"]))),
            ),
            (Some("all"), None, Scheduler::Lenient, None),
            (Some("0"), None, Scheduler::Strict, Some((host, Units::All))),
            (None, None, Scheduler::Strict, Some((host, Units::All))),
            (None, Some(""), Scheduler::Strict, None),
        ] {
            assert_eq!(units(own, given, scheduler), expected, "{own:?} {given:?}");
        }
    }

    #[test]
    fn what_no_container_asked_for_refuses_none() {
        let (given, policy) = (Given::default(), Policy::default());
        let mut request = Request::of_environment(["PATH=/bin"]);
        read(&mut request, &given, Scheduler::Strict, &policy);
        assert!(request.asks[0].is_implied() && request.suspect.is_none());
        let doubtful = crate::error::Error::failed("its config is not UTF-8");
        let mut request = Request {
            doubt: Some(doubtful),
            ..Request::default()
        };
        read(&mut request, &given, Scheduler::Strict, &policy);
        assert_eq!(request.asks.len(), 0);
        let mut request = Request::of_environment(["ROCR_VISIBLE_DEVICES=0"]);
        read(&mut request, &given, Scheduler::Ignored, &policy);
        assert!(!request.asks[0].is_implied());
    }

    #[test]
    fn the_policy_counts() {
        for (who, suspected) in [(Who::None, false), (Who::Privileged, true)] {
            let policy = Policy {
                environment: who,
                ..Policy::default()
            };
            let mut request = Request::of_environment(["ROCR_VISIBLE_DEVICES=0"]);
            read(&mut request, &Given::default(), Scheduler::Ignored, &policy);
            assert_eq!((request.asks.len(), request.refused.len()), (0, 1));
            assert_eq!(request.suspect.is_some(), suspected);
        }
    }
}
