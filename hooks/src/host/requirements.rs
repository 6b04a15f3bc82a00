//! Checks what an image requires against the host and the chosen devices.

use super::facts::Facts;
use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::{brief, Note};
use crate::model::decide::answers::Answer;
use crate::model::decide::units::Chosen;
use crate::model::request::{is_version, Known, Outcome, Requirement, Subject};

/// Checks every requirement against the host and each chosen device.
/// Errors: a requirement is not met, or can't be read.
pub(super) fn check_requirements(
    answer: &Answer,
    facts: Option<&Facts>,
    chosen: &Chosen,
    notes: &mut Vec<Note>,
) -> Result<()> {
    let requirements = &answer.details.requirements;
    if requirements.is_empty() {
        return Ok(());
    }
    let known = known(answer, facts, chosen);
    for requirement in requirements {
        for known in &known {
            notes.extend(check_one(requirement, known)?);
        }
    }
    notes.dedup();
    Ok(())
}

/// What the host knows about each chosen device. Without device facts: about itself only.
fn known<'a>(answer: &'a Answer, facts: Option<&'a Facts>, chosen: &'a Chosen) -> Vec<Known<'a>> {
    let version = answer.choice.vendor.version.as_deref();
    let version = version.filter(|version| is_version(version));
    let host = Known {
        cuda: facts.and_then(|facts| facts.cuda_version.as_deref()),
        driver: facts.and_then(|facts| facts.driver_version.as_deref()).or(version),
        ..Known::default()
    };
    let gpus = facts.map_or(&[][..], |facts| &facts.devices);
    let chosen = gpus.iter().enumerate().filter(|(at, _)| chosen.units.contains(at));
    let mut known: Vec<Known> = chosen
        .map(|(_, gpu)| Known { arch: gpu.arch.as_deref(), brand: gpu.brand.as_deref(), ..host })
        .collect();
    if known.is_empty() {
        known.push(host);
    }
    known
}

/// Checks one requirement. Errors: it is not met, or can't be read.
pub fn check_one(requirement: &Requirement, known: &Known) -> Result<Option<Note>> {
    match requirement.check(known) {
        Outcome::Met => Ok(None),
        Outcome::MetUnlessKnown(subjects) => {
            let words: Vec<&str> = subjects.into_iter().map(Subject::word).collect();
            let words = words.join(", ");
            let message = format!("{requirement}, which counts as met: the host's device facts have no {words}");
            Ok(Some(Note::new(Level::Info, message)))
        }
        Outcome::Unmet => Err(Error::failed(format!(
            "{requirement}, and the host has {known}"
        ))
        .resolve("use an image for this driver or a newer driver; NVIDIA_DISABLE_REQUIRE=true starts it all the same")),
        Outcome::Invalid(part) => Err(Error::usage(format!(
            "{requirement}, and {:?} is not a condition",
            brief(&part)
        ))
        .resolve("write cuda, driver, arch or brand, one of = != < <= > >= and a version, like cuda>=12.2")),
    }
}
