//! From an answer to edits: the features' files, and of their devices those that were chosen.

use std::collections::BTreeSet;

use super::facts::{Facts, Found};
use super::host::{DeviceFound, Host};
use super::inventory::{collect_one, missing, summary, Report};
use super::units::{is_drm, number, units};
use crate::decide::answers::Answer;
use crate::decide::units::{choose, Asker, Chosen, Unit};
use crate::edits::{Compat, Device, Edits};
use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::{brief, Note};
use crate::request::{
    is_version, Channels, Interface, Known, MigRight, Outcome, Requirement, Subject, Units,
};

/// Nodes that are given one by one and never as control nodes, whatever an inventory lists:
/// with some of them a container partitions every GPU.
const CAPABILITIES: [&str; 2] = ["/dev/nvidia-caps/", CHANNELS];
const CHANNELS: &str = "/dev/nvidia-caps-imex-channels/";
/// Where the driver says which node is which right.
const MIG_RIGHTS: &str = "proc/driver/nvidia/capabilities/mig";
/// Where images of CUDA have newer user space parts of the driver.
const COMPAT: &str = "/usr/local/cuda/compat";
/// What a node of AMD's compute driver is called: without it there is none.
const AMD_CONTROL: &str = "/dev/kfd";

/// Looks up what an answer gives. Notes: what the host has not.
/// Errors: a device that is not there, a requirement that is not met.
pub fn collect_answer(host: &Host, answer: &Answer) -> Result<(Edits, Vec<Note>)> {
    let Answer {
        choice,
        ask,
        details,
    } = answer;
    let mut notes = Vec::new();
    let (mut edits, items) = collect_one(host, choice, Report::Missing)?;
    notes.extend(items.iter().filter_map(|item| missing(choice, item)));
    let is_there = |path: &str| edits.devices.iter().any(|device| device.path == path);
    if ask.interface == Interface::Amd && !is_there(AMD_CONTROL) {
        let message = format!(
            "{} counts for nothing: the host has no {AMD_CONTROL}",
            ask.by
        );
        return Ok((Edits::default(), vec![Note::new(Level::Notice, message)]));
    }
    let found = usable(host.facts(&choice.file.name), answer, &mut notes)?;
    let facts = found.facts();
    // Features without nodes don't make the host one without devices.
    let all = if edits.devices.is_empty() {
        units(host, choice.vendor, &nodes_of_units(host, answer), facts)
    } else {
        units(host, choice.vendor, &edits.devices, facts)
    };
    let asker = Asker {
        interface: ask.interface,
        by: &ask.by,
        known: facts.is_some(),
    };
    let chosen = choose(&ask.units, &all, asker)?;
    check_nodes(host, answer, &all, &chosen, &edits.devices, facts)?;
    notes.extend(no_device(host, answer));
    check_requirements(answer, facts, &chosen, &mut notes)?;
    let mut extra = parts(&all, &chosen);
    extra.extend(channels(host, &details.channels, &details.channels_by)?);
    for right in &details.mig_rights {
        extra.push(right_node(host, *right)?);
    }
    if edits.devices.is_empty() {
        // What belongs to devices is of no use without their nodes.
        notes.extend(without_nodes(answer));
    } else {
        limit(&mut edits.devices, answer, &all, &chosen.nodes);
        add_nodes(host, &mut edits.devices, extra, &mut notes);
    }
    if details.compat {
        let driver = facts.and_then(|facts| facts.driver_version.clone());
        edits.compat.push(Compat {
            folder: COMPAT.to_owned(),
            driver: driver.or_else(|| choice.vendor.version.clone()),
            cuda: facts.and_then(|facts| facts.cuda_version.clone()),
        });
    }
    if details.groups {
        edits.groups = groups(&edits.devices);
    }
    notes.push(summary(choice, &edits));
    Ok((edits, notes))
}

/// Facts that can't be used stop those who need them, and no one else.
fn usable(found: Found, answer: &Answer, notes: &mut Vec<Note>) -> Result<Found> {
    let Found::Broken(problem) = &found else {
        return Ok(found);
    };
    let by = &answer.ask.by;
    let resolve = |message: String| {
        Err(Error::usage(message).resolve("write the file again: `provision load`"))
    };
    let is_index = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    if let Units::These(names) = &answer.ask.units {
        if let Some(name) = names.iter().find(|name| !is_index(name)) {
            return resolve(format!(
                "{by} asks for the device {:?}, and {problem}",
                brief(name)
            ));
        }
    }
    // The vendor file has the driver's version too.
    let needs = [Subject::Cuda, Subject::Arch, Subject::Brand];
    let mut requirements = answer.details.requirements.iter();
    let needing = requirements.find(|r| needs.into_iter().any(|subject| r.is_about(subject)));
    if let Some(requirement) = needing {
        return resolve(format!("{requirement}, and {problem}"));
    }
    let message = format!("{problem}; devices are known by the numbers of their nodes");
    notes.push(Note::new(Level::Warning, message).vendor(&answer.choice.file.name));
    Ok(Found::Absent)
}

/// Errors: a device that was chosen has no node on this host, or the features that were
/// chosen don't have it.
fn check_nodes(
    host: &Host,
    answer: &Answer,
    all: &[Unit],
    chosen: &Chosen,
    devices: &[Device],
    facts: Option<&Facts>,
) -> Result<()> {
    // A feature without nodes has nothing to choose from.
    if chosen.is_all || devices.is_empty() {
        return Ok(());
    }
    let (by, choice) = (&answer.ask.by, &answer.choice);
    for at in &chosen.units {
        let nodes = &all[*at].nodes;
        let own = nodes.iter().find(|node| !is_drm(node)).or(nodes.first());
        if own.is_some_and(|own| devices.iter().any(|device| device.path == *own)) {
            continue;
        }
        let index = all[*at].index;
        let minor = facts.and_then(|facts| Some(facts.devices.get(*at)?.minor));
        let is_own = |node: &&Device| number(&node.path) == minor && minor.is_some();
        if let Some(node) = nodes_of_units(host, answer).iter().find(is_own) {
            let path = &node.path;
            let features = choice.features.join(", ");
            let message = format!("{by} asks for the device {index}, whose node {path} is in no inventory of the features {features}");
            return Err(Error::usage(message).resolve(format!(
                "ask for a feature that has the node, or add it to \"devices\" in {}",
                choice.file.path
            )));
        }
        let message = format!("{by} asks for the device {index}, whose node the host has not");
        return Err(Error::not_found(message)
            .resolve("load the driver: `provision load`; `oci-decorator check` lists the nodes"));
    }
    Ok(())
}

/// The host's nodes of devices that can be chosen, whatever the features list.
fn nodes_of_units(host: &Host, answer: &Answer) -> Vec<Device> {
    let units = answer.choice.vendor.units.iter();
    let found = units.flat_map(|units| host.devices(units));
    let nodes = found.filter_map(|(_, found)| match found {
        DeviceFound::Node(device) => Some(device),
        _ => None,
    });
    nodes.collect()
}

/// What is worth a word of a host without devices, where an image asks for every one: it
/// starts with the driver's files, as with NVIDIA's tools.
fn no_device(host: &Host, answer: &Answer) -> Option<Note> {
    let is_known = answer.choice.vendor.units.is_some();
    if answer.ask.units != Units::All || !is_known || !nodes_of_units(host, answer).is_empty() {
        return None;
    }
    let message = format!(
        "{} asks for every device, and the host has none: the container gets the driver's files only; load the driver: `provision load`",
        answer.ask.by
    );
    Some(Note::new(Level::Warning, message).vendor(&answer.choice.file.name))
}

/// What is worth a word where no feature has a node.
fn without_nodes(answer: &Answer) -> Option<Note> {
    if answer.ask.units == Units::None
        || answer.choice.features.is_empty() && answer.details.capabilities.is_empty()
    {
        return None;
    }
    let message = format!(
        "{} gets no device: the features that it asks for have none in {}",
        answer.ask.by, answer.choice.file.path
    );
    Some(Note::new(Level::Notice, message).vendor(&answer.choice.file.name))
}

/// True for a node of NVIDIA's that is given by name only.
pub fn is_capability(path: &str) -> bool {
    CAPABILITIES.iter().any(|folder| path.starts_with(folder))
}

/// Leaves out the nodes of devices that were not chosen.
fn limit(devices: &mut Vec<Device>, answer: &Answer, all: &[Unit], chosen: &BTreeSet<String>) {
    let is_all = answer.ask.units == Units::All;
    let parts = all.iter().flat_map(|unit| &unit.parts);
    let parts: BTreeSet<&String> = parts.flat_map(|part| &part.nodes).collect();
    let is_nvidia = answer.ask.interface == Interface::Nvidia;
    devices.retain(|device| {
        let path = &device.path;
        if parts.contains(path) || is_nvidia && is_capability(path) {
            chosen.contains(path)
        } else if is_drm(path) || answer.choice.vendor.is_unit(path) {
            is_all || chosen.contains(path)
        } else {
            true
        }
    });
}

/// The nodes of the parts that were chosen: inventories needn't list them.
fn parts(all: &[Unit], chosen: &Chosen) -> Vec<String> {
    let parts = all.iter().flat_map(|unit| &unit.parts);
    let nodes = parts.flat_map(|part| part.nodes.iter().cloned());
    nodes.filter(|node| chosen.nodes.contains(node)).collect()
}

fn channels(host: &Host, wanted: &Channels, by: &str) -> Result<Vec<String>> {
    match wanted {
        Channels::None => Ok(Vec::new()),
        Channels::All => {
            let found = host.devices(&format!("{CHANNELS}channel[0-9]*"));
            Ok(found.into_iter().map(|(path, _)| path).collect())
        }
        Channels::These(numbers) => {
            let paths = numbers
                .iter()
                .map(|number| format!("{CHANNELS}channel{number}"));
            let paths: Vec<String> = paths.collect();
            let is_missing = |path: &&String| {
                let found = host.devices(path);
                !matches!(found.as_slice(), [(_, DeviceFound::Node(_))])
            };
            if let Some(path) = paths.iter().find(is_missing) {
                let message =
                    format!("{by} asks for an IMEX channel whose node {path} the host has not");
                return Err(Error::not_found(message).resolve(
                    "make it (`nvidia-modprobe -i 1 -s` makes the first), or set NVreg_CreateImexChannel0=1 for the module nvidia",
                ));
            }
            Ok(paths)
        }
    }
}

/// The node by which a container gets a right over all GPUs.
fn right_node(host: &Host, right: MigRight) -> Result<String> {
    let by = right.variable();
    let path = format!("{MIG_RIGHTS}/{}", right.word());
    let number = || {
        let bytes = host.text_of_kernel(&path)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("DeviceFileMinor:"))?;
        line.trim().parse::<u32>().ok()
    };
    let number = number().ok_or_else(|| {
        let word = right.word();
        Error::not_found(format!(
            "{by} asks for the MIG right {word:?}, and the host has no /{path}"
        ))
        .resolve("load a driver for GPUs with MIG, or ask without it")
    })?;
    Ok(format!("{}nvidia-cap{number}", CAPABILITIES[0]))
}

fn add_nodes(host: &Host, devices: &mut Vec<Device>, paths: Vec<String>, notes: &mut Vec<Note>) {
    for path in paths {
        if devices.iter().any(|device| device.path == path) {
            continue;
        }
        for (path, found) in host.devices(&path) {
            let problem = match found {
                DeviceFound::Node(device) => {
                    devices.push(device);
                    continue;
                }
                DeviceFound::Missing => "the host has no such device".to_owned(),
                DeviceFound::Unusable(problem) => problem,
            };
            let message = format!("{path} is left out: {problem}");
            notes.push(Note::new(Level::Warning, message));
        }
    }
}

/// Groups by which nodes can be used that are not everyone's.
pub fn groups(devices: &[Device]) -> Vec<u32> {
    let needed = |device: &&Device| {
        let (group, others) = (device.mode >> 3 & 0o6, device.mode & 0o6);
        device.gid != Some(0) && group & !others != 0
    };
    let groups: BTreeSet<u32> = devices
        .iter()
        .filter(needed)
        .filter_map(|d| d.gid)
        .collect();
    groups.into_iter().collect()
}

/// Holds the host to what the image requires, for each device that was chosen.
fn check_requirements(
    answer: &Answer,
    facts: Option<&Facts>,
    chosen: &Chosen,
    notes: &mut Vec<Note>,
) -> Result<()> {
    let requirements = &answer.details.requirements;
    if requirements.is_empty() {
        return Ok(());
    }
    let version = answer.choice.vendor.version.as_deref();
    let version = version.filter(|version| is_version(version));
    let host = Known {
        cuda: facts.and_then(|facts| facts.cuda_version.as_deref()),
        driver: facts
            .and_then(|facts| facts.driver_version.as_deref())
            .or(version),
        ..Known::default()
    };
    let gpus = facts.map_or(&[][..], |facts| &facts.devices);
    let chosen = gpus
        .iter()
        .enumerate()
        .filter(|(at, _)| chosen.units.contains(at));
    let mut known: Vec<Known> = chosen
        .map(|(_, gpu)| Known {
            arch: gpu.arch.as_deref(),
            brand: gpu.brand.as_deref(),
            ..host
        })
        .collect();
    if known.is_empty() {
        known.push(host);
    }
    for requirement in requirements {
        for known in &known {
            notes.extend(check_one(requirement, known)?);
        }
    }
    notes.dedup();
    Ok(())
}

/// What is required against what there is. Errors: it is not met, or can't be read.
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
            "{requirement}, and {:?} is no condition",
            brief(&part)
        ))
        .resolve("write cuda, driver, arch or brand, one of = != < <= > >= and a version, like cuda>=12.2")),
    }
}

#[cfg(test)]
mod tests;
