//! Checks what an image requires against the host and the chosen devices.

use super::facts::Facts;
use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::{brief, Note};
use crate::model::request::{is_version, Known, Outcome, Requirement, Subject};

/// Checks every requirement against the host, whose driver has this version unless the device facts
/// say another, and against each chosen device.
/// Errors: a requirement is not met, or can't be read.
pub fn check_requirements(
    requirements: &[Requirement],
    facts: Option<&Facts>,
    version: Option<&str>,
    is_chosen: impl Fn(usize) -> bool,
) -> Result<Vec<Note>> {
    let host = Known {
        cuda: facts.and_then(|facts| facts.cuda_version.as_deref()),
        driver: facts
            .and_then(|facts| facts.driver_version.as_deref())
            .or(version.filter(|version| is_version(version))),
        ..Known::default()
    };
    let gpus = facts.map_or(&[][..], |facts| &facts.devices);
    let chosen = gpus.iter().enumerate().filter(|(at, _)| is_chosen(*at));
    let mut known: Vec<Known> = chosen
        .map(|(_, gpu)| Known { arch: gpu.arch.as_deref(), brand: gpu.brand.as_deref(), ..host })
        .collect();
    if known.is_empty() {
        known.push(host);
    }
    let mut notes = Vec::new();
    for requirement in requirements {
        for known in &known {
            notes.extend(check_one(requirement, known)?);
        }
    }
    notes.dedup();
    Ok(notes)
}

/// Checks one requirement. Errors: it is not met, or can't be read.
fn check_one(requirement: &Requirement, known: &Known) -> Result<Option<Note>> {
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
