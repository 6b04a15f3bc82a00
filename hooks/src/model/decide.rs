//! Decides which features a container gets. A pure function of vendor files, request and policy.

pub mod answers;
mod other_ways;
pub mod units;

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::{brief, Note};
use crate::model::policy::{not_scheduled, refuse, Policy, Verdict};
use crate::model::request::{asked, Asked, Request, ANNOTATION_PREFIX};
use crate::model::vendor::{summary, Broken, Vendor, VendorFile};

/// At most this many annotations without a vendor file are reported.
const SAID: usize = 5;

/// A vendor that applies, and the features that the container gets.
#[derive(Debug)]
pub struct Choice<'a> {
    pub file: &'a VendorFile,
    pub vendor: &'a Vendor,
    /// In the order of the request; each is in the inventory.
    pub features: Vec<&'a str>,
}

/// The flag, variable or annotation that may ask for something in any reading of the request.
/// `None`: the container starts, whatever is wrong with its config or the settings.
pub fn may_ask<'a>(
    files: &'a [VendorFile],
    request: &'a Request,
    policy: &Policy,
) -> Option<&'a str> {
    if let Some(by) = &request.possible_trigger {
        return Some(by);
    }
    let flags = |file: &'a VendorFile| file.flags().iter().map(move |flag| (file, flag));
    let mut flags = files.iter().flat_map(flags);
    let found = flags.find(|(file, flag)| policy.may_count(request, &file.name, flag))?;
    Some(found.1)
}

/// Decides for every vendor file. Errors: why the start is refused, on one line.
/// Notes: broken files that this container does not ask for, and what the policy leaves out.
pub fn decide<'a>(
    files: &'a [VendorFile],
    request: &Request,
    policy: &Policy,
) -> Result<(Vec<Choice<'a>>, Vec<Note>)> {
    let mut choices = Vec::new();
    let mut refusals = Refusals::new(policy);
    let mut notes = Vec::new();
    let mut claimed: FxHashMap<&str, &VendorFile> = FxHashMap::default();
    for file in files {
        let asked_by = asked_by(file, request, &mut refusals)?;
        match (&file.content, asked_by) {
            (Ok(vendor), Some((_, value))) => {
                let refused = refusals.notes.len();
                let features = features(file, vendor, asked(Some(value)), &mut refusals)?;
                if !features.is_empty() || refusals.notes.len() == refused {
                    choices.push(Choice { file, vendor, features });
                }
            }
            (Err(broken), Some((flag, _))) => return Err(refuse_broken(file, broken, flag)),
            (Err(broken), None) => notes.push(ignored(file, broken)),
            (Ok(_), None) => {}
        }
        if let Some((flag, _)) = asked_by {
            if let Some(other) = claimed.insert(flag, file) {
                return Err(claimed_twice(flag, &other.path, &file.path));
            }
        }
    }
    notes.extend(refusals.notes);
    notes.extend(unknown_flags(files, request));
    Ok((choices, notes))
}

/// Notes about annotations whose flag no vendor file has.
fn unknown_flags(files: &[VendorFile], request: &Request) -> Vec<Note> {
    let known = |flag: &&str| files.iter().any(|file| file.flags().iter().any(|f| f == flag));
    let mut unknown = request.annotations.asking().filter(|flag| !known(flag));
    let mut notes: Vec<Note> = unknown.by_ref().take(SAID).map(no_such_flag).collect();
    notes.extend(more_unknown(unknown.count()));
    notes
}

/// The flag that asks for something of this file, and its value.
fn asked_by<'a, 'r>(
    file: &'a VendorFile,
    request: &'r Request,
    refusals: &mut Refusals,
) -> Result<Option<(&'a str, &'r str)>> {
    for flag in file.flags() {
        let Verdict { value, refused } = refusals.policy.judge(request, &file.name, flag);
        for reason in refused {
            refusals.add(file, reason)?;
        }
        let Some(value) = value.filter(|value| asked(Some(value)) != Asked::Nothing) else {
            continue;
        };
        // Only the scheduler gives the devices of these interfaces.
        if request.has_scheduler() && !file.interfaces().is_empty() {
            refusals.add(file, not_scheduled(flag))?;
            continue;
        }
        return Ok(Some((flag, value)));
    }
    Ok(None)
}

/// What the policy leaves out. Each entry is a notice, or refuses the start.
struct Refusals<'p> {
    policy: &'p Policy,
    notes: Vec<Note>,
}

impl<'p> Refusals<'p> {
    fn new(policy: &'p Policy) -> Self {
        Self { policy, notes: Vec::new() }
    }

    fn add(&mut self, file: &VendorFile, reason: String) -> Result<()> {
        self.add_for(Some(file), reason)
    }

    fn add_for(&mut self, file: Option<&VendorFile>, reason: String) -> Result<()> {
        self.notes.push(refuse(self.policy, file, reason)?);
        Ok(())
    }

    /// The features that the policy allows, each once. Of features that `by` names one by one, each
    /// that is not allowed is refused.
    fn allowed<'a>(
        &mut self,
        file: &VendorFile,
        by: &str,
        features: &[&'a str],
        by_name: bool,
    ) -> Result<Vec<&'a str>> {
        let (mut allowed, mut seen) = (Vec::new(), Vec::new());
        for &feature in features {
            if seen.contains(&feature) {
                continue;
            }
            seen.push(feature);
            let vendor = &file.name;
            if self.policy.allows(vendor, feature) {
                allowed.push(feature);
            } else if by_name {
                let reason = format!("{by} asks for the feature {feature:?}, and \"policy.allow\" has none of that name for {vendor}");
                self.add(file, reason)?;
            }
        }
        Ok(allowed)
    }
}

/// The requested features that are allowed, each once. `all` means every allowed feature.
fn features<'a>(
    file: &VendorFile,
    vendor: &'a Vendor,
    asked: Asked,
    refusals: &mut Refusals,
) -> Result<Vec<&'a str>> {
    let by_name = !matches!(asked, Asked::All);
    let wanted: Vec<&str> = match asked {
        Asked::Nothing => Vec::new(),
        Asked::Defaults => vendor.driver_feature.iter().map(String::as_str).collect(),
        Asked::All => vendor.feature_names().collect(),
        Asked::Features(list) => list,
    };
    let mut known: Vec<&str> = Vec::new();
    for wanted in wanted {
        let found = vendor.feature_names().find(|name| *name == wanted);
        known.push(found.ok_or_else(|| unknown_feature(file, vendor, wanted))?);
    }
    let by = &vendor.activation_flag;
    let features = refusals.allowed(file, by, &known, by_name)?;
    if !by_name && features.is_empty() && !known.is_empty() {
        refusals.add(file, none_allowed(file, vendor, by))?;
    }
    Ok(features)
}

/// Why a container that asks for every allowed feature gets nothing.
fn none_allowed(file: &VendorFile, vendor: &Vendor, by: &str) -> String {
    let known: Vec<_> = vendor.feature_names().collect();
    format!(
        "{by} asks for all that is allowed, and \"policy.allow\" has no feature of {}, which knows {}",
        file.name,
        known.join(", ")
    )
}

fn unknown_feature(file: &VendorFile, vendor: &Vendor, wanted: &str) -> Error {
    let known: Vec<_> = vendor.feature_names().collect();
    Error::usage(format!(
        "{} asks for the unknown feature {:?}",
        vendor.activation_flag,
        brief(wanted)
    ))
    .resolve(format!(
        "{} knows {}; \"all\" is every one of them",
        file.path,
        known.join(", ")
    ))
}

fn refuse_broken(file: &VendorFile, broken: &Broken, flag: &str) -> Error {
    Error::usage(format!(
        "{flag} is set, but {} can't be used: {}",
        file.path,
        summary(&broken.mistakes)
    ))
    .resolve("correct the file; `oci-decorator check` lists every mistake")
}

/// A variable may belong to another program, but an annotation with our prefix does not.
fn no_such_flag(flag: &str) -> Note {
    let flag = brief(flag);
    let message = format!(
        "the annotation {ANNOTATION_PREFIX}{flag} asks for nothing: no vendor file has this flag"
    );
    Note::new(Level::Notice, message)
}

/// A container can have any number of annotations, and all containers share the log.
fn more_unknown(count: usize) -> Option<Note> {
    let message = format!("{count} more annotations {ANNOTATION_PREFIX}… ask for nothing");
    (count > 0).then(|| Note::new(Level::Notice, message))
}

fn ignored(file: &VendorFile, broken: &Broken) -> Note {
    Note::new(
        Level::Warning,
        format!("{} can't be used and is ignored: {}", file.path, summary(&broken.mistakes)),
    )
    .vendor(&file.name)
}

fn claimed_twice(flag: &str, one: &str, other: &str) -> Error {
    Error::usage(format!("{flag} is the activation_flag of {one} and of {other}"))
        .resolve("remove one of the files, or rename its flag")
}
