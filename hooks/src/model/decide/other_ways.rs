//! Decides about requests that no vendor file answers: CDI names, the file lists of a board, and
//! the hook. These give whole devices, so the policy has to allow the whole vendor. Pure.

use rustc_hash::FxHashMap;

use super::Refusals;
use crate::error::Result;
use crate::log::brief;
use crate::model::policy::not_scheduled;
use crate::model::request::{Ask, Request, Source, Units, Way};
use crate::model::vendor::VendorFile;

/// The part of the request that counts. `None`: no part counts.
/// Errors: something does not count, and the policy refuses the start.
pub fn counting(
    files: &[VendorFile],
    request: &Request,
    ask: &Ask,
    refusals: &mut Refusals,
) -> Result<Option<Ask>> {
    let Units::These(names) = &ask.units else {
        return whole(files, ask, refusals);
    };
    if ask.way != Way::Cdi {
        return whole(files, ask, refusals);
    }
    // One notice for each kind, however many of its devices are named.
    let mut kinds: FxHashMap<&str, bool> = FxHashMap::default();
    let mut left = Vec::new();
    for name in names {
        let kind = name.split_once('=').map_or(name.as_str(), |(kind, _)| kind);
        let counts = if let Some(counts) = kinds.get(kind) {
            *counts
        } else {
            let judged = judge(files, request, ask, kind, refusals);
            kinds.insert(kind, judged.is_ok());
            let counts = judged.is_ok();
            if let Err(reason) = judged {
                refusals.add_for(None, reason)?;
            }
            counts
        };
        if counts {
            left.push(name.clone());
        }
    }
    let counts = !left.is_empty() || names.is_empty();
    Ok(counts.then(|| Ask { units: Units::These(left), ..ask.clone() }))
}

/// File lists and hooks give devices of one vendor.
fn whole(files: &[VendorFile], ask: &Ask, refusals: &mut Refusals) -> Result<Option<Ask>> {
    let mut answering = files.iter();
    let file = answering.find(|file| file.interfaces().contains(&ask.interface));
    let vendor = file.map_or(ask.interface.word(), |file| &file.name);
    match refusals.policy.judge_whole(vendor, &ask.by) {
        Ok(()) => Ok(Some(ask.clone())),
        Err(reason) => refusals.add_for(file, reason).map(|()| None),
    }
}

/// Whether devices of the kind count. Errors: why not.
fn judge(
    files: &[VendorFile],
    request: &Request,
    ask: &Ask,
    kind: &str,
    refusals: &Refusals,
) -> std::result::Result<(), String> {
    let file = vendor_of(files, kind);
    let is_scheduled = request.has_scheduler() && ask.source != Source::Scheduler;
    let is_answered = file.is_some_and(|file| !file.interfaces().is_empty());
    if is_scheduled && (is_answered || request.reserves(kind)) {
        return Err(not_scheduled(&ask.by));
    }
    let vendor = file.map_or_else(|| brief(kind), |file| file.name.as_str().into());
    refusals.policy.judge_whole(&vendor, &ask.by)
}

/// The vendor file whose devices have this kind: the file names the kind, or it answers the
/// interface of the kind's vendor.
fn vendor_of<'a>(files: &'a [VendorFile], kind: &str) -> Option<&'a VendorFile> {
    let vendor = kind.split_once('/').map_or(kind, |(vendor, _)| vendor);
    let by_interface = |file: &&VendorFile| {
        let mut interfaces = file.interfaces().iter();
        interfaces.any(|interface| interface.domain() == vendor)
    };
    files.iter().find(|file| file.kind() == kind).or_else(|| files.iter().find(by_interface))
}
