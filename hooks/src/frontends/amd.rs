//! AMD's interface: `ROCR_VISIBLE_DEVICES`, read as Sarus's hook does.

use crate::model::policy::{Judge, Policy};
use crate::model::request::{
    Ask, Candidate, Details, Interface, Request, Source, Units, Way, Words,
};

use super::sarus::{SchedulerLists, ROCR};

/// Adds what the variable asks for to the request. If the host's scheduler counts, its variable
/// overrides the image's, and a job without the variable gets no device.
pub fn read(request: &mut Request, given: &SchedulerLists, is_scheduled: bool, policy: &Policy) {
    let source = if is_scheduled { Source::Scheduler } else { Source::Environment };
    let value = if is_scheduled { given.rocr.as_deref() } else { request.environment.get(ROCR) };
    let Some(value) = value else {
        return;
    };
    let words = match Words::of([value]) {
        Words::Nothing | Words::None => return,
        words => words,
    };
    if policy.may_use(source) {
        request.possible_trigger.get_or_insert_with(|| ROCR.to_owned());
    }
    if request.doubt.is_some() {
        return;
    }
    let (sources, by) = (vec![source], ROCR.to_owned());
    let candidate = Candidate { sources, by, words, way: Way::VendorFile };
    let (counting, refused) = Judge::of(policy, request).pick(request, vec![candidate]);
    request.refused.extend(refused);
    let units = counting.into_iter().map(|candidate| match candidate.words {
        Words::These(names) => Units::These(names),
        _ => Units::All,
    });
    request.asks.extend(units.map(|units| ask(source, units)));
}

fn ask(source: Source, units: Units) -> Ask {
    // The nodes belong to a group that the container's process has to join.
    let details = Details { groups: true, ..Details::default() };
    Ask {
        interface: Interface::Amd,
        source,
        by: ROCR.to_owned(),
        units,
        way: Way::VendorFile,
        details: Ok(details),
    }
}
