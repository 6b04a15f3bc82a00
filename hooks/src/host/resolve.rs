//! Turns a request into edits: the files of its features, and the chosen devices.

use crate::error::{Error, Result};
use crate::host::facts::{Facts, FactsState, WRITE_AGAIN};
use crate::host::inventory::{collect_one, compat, cuda_folder, groups, missing, summary, Report};
use crate::host::nodes::{add, channels, is_drm, number, right_node, Nodes};
use crate::host::Host;
use crate::log::{brief, Level, Note};
use crate::model::decide::units::{choose, Chosen};
use crate::model::decide::Choice;
use crate::model::edits::{Device, Edits};
use crate::model::request::{
    is_version, DeviceList, DeviceRequest, ExtraKind, Features, Interface, Known, Outcome,
    Requirement, Subject,
};
use crate::model::vendor::Vendor;

/// The control node of AMD's compute driver. A host without it has no such driver.
const AMD_CONTROL: &str = "/dev/kfd";

/// A request, with the units of the host and the chosen ones.
struct Resolved<'a> {
    host: &'a Host,
    request: &'a DeviceRequest,
    choice: &'a Choice<'a>,
    facts: Option<&'a Facts>,
    /// The vendor's nodes on this host.
    nodes: &'a Nodes<'a>,
    chosen: &'a Chosen,
}

/// Looks up what a request gives a container. Notes: what the host lacks.
/// Errors: a device that is missing, or a requirement that is not met.
pub fn resolve(
    host: &Host,
    request: &DeviceRequest,
    choice: &Choice,
) -> Result<(Edits, Vec<Note>)> {
    let by = request.by.as_str();
    let mut notes = Vec::new();
    let (mut edits, items) = collect_one(host, choice, Report::Missing)?;
    notes.extend(items.iter().filter_map(|item| missing(choice, item)));
    let is_there = |path: &str| edits.devices.iter().any(|device| device.path == path);
    let interface = request.interface.unwrap_or(Interface::Nvidia);
    if interface == Interface::Amd && !is_there(AMD_CONTROL) {
        let message = format!("{by} has no effect: the host has no {AMD_CONTROL}");
        return Ok((Edits::default(), vec![Note::new(Level::Notice, message)]));
    }
    let found = usable(host.facts(&choice.file.name), request, choice, &mut notes)?;
    let facts = found.facts();
    let known = all_nodes(host, choice.vendor, &edits.devices, facts);
    let chosen = &choose(request, &known.units, facts.is_some())?;
    let resolved = Resolved { host, request, choice, facts, nodes: &known, chosen };
    resolved.check_nodes(&edits.devices)?;
    notes.extend(no_device(host, request, choice));
    let version = choice.vendor.version.as_deref();
    let is_chosen = |at| resolved.chosen.units.contains(&at);
    notes.extend(check_requirements(&request.requirements, facts, version, is_chosen)?);
    resolved.give_nodes(&mut edits.devices, &mut notes)?;
    if request.compat {
        edits.compat.push(compat(choice.vendor, facts));
    }
    if request.groups {
        edits.groups = groups(&edits.devices);
    }
    if interface == Interface::Nvidia {
        edits.environment.extend(cuda_folder(&edits.libraries));
    }
    notes.push(summary(choice, &edits));
    Ok((edits, notes))
}

/// The vendor's nodes. Features without nodes do not mean that the host has no device.
fn all_nodes<'a>(
    host: &'a Host,
    vendor: &'a Vendor,
    devices: &[Device],
    facts: Option<&Facts>,
) -> Nodes<'a> {
    if devices.is_empty() {
        Nodes::of(host, vendor, &nodes_of_units(host, vendor), facts)
    } else {
        Nodes::of(host, vendor, devices, facts)
    }
}

/// Facts that are broken or out of date refuse only a container that needs them, such as one that
/// names a device: a guess could give another container's.
fn usable(
    found: FactsState,
    request: &DeviceRequest,
    choice: &Choice,
    notes: &mut Vec<Note>,
) -> Result<FactsState> {
    let FactsState::Broken(problem) = &found else {
        return Ok(found);
    };
    let by = &request.by;
    let resolve = |message: String| Err(Error::usage(message).resolve(WRITE_AGAIN));
    if let DeviceList::These(names) = &request.devices {
        let names = names.join(",");
        return resolve(format!("{by} asks for the devices {:?}, and {problem}", brief(&names)));
    }
    // The vendor file has the driver's version too, so that one needs no facts.
    let needs = [Subject::Cuda, Subject::Arch, Subject::Brand];
    let mut requirements = request.requirements.iter();
    let needing = requirements.find(|r| needs.into_iter().any(|subject| r.is_about(subject)));
    if let Some(requirement) = needing {
        return resolve(format!("{requirement}, and {problem}"));
    }
    let message = format!("{problem}; devices are known by the numbers of their nodes");
    notes.push(Note::new(Level::Warning, message).vendor(&choice.file.name));
    Ok(FactsState::Absent)
}

impl Resolved<'_> {
    /// Errors: a chosen device has no node on this host, or the chosen features do not list it.
    fn check_nodes(&self, devices: &[Device]) -> Result<()> {
        // A feature without nodes has nothing to choose from.
        if self.chosen.is_all || devices.is_empty() {
            return Ok(());
        }
        // A graphics node alone is no device of a driver that has nodes of its own.
        let units = self.choice.vendor.units.as_deref();
        let by_drm = units.is_some_and(|units| units.contains("dri/"));
        let has_node = |at: &usize| {
            let mut nodes = self.nodes.units[*at].nodes.iter();
            let own = nodes.find(|node| is_drm(node) == by_drm);
            own.is_some_and(|own| devices.iter().any(|device| device.path == *own))
        };
        match self.chosen.units.iter().find(|at| !has_node(at)) {
            Some(at) => Err(self.without_node(*at)),
            None => Ok(()),
        }
    }

    /// Why a chosen device has no node.
    fn without_node(&self, at: usize) -> Error {
        let (by, choice) = (&self.request.by, self.choice);
        let index = self.nodes.units[at].index;
        let minor = self.facts.and_then(|facts| Some(facts.devices.get(at)?.minor));
        let is_own = |node: &&Device| number(&node.path) == minor && minor.is_some();
        if let Some(node) = nodes_of_units(self.host, choice.vendor).iter().find(is_own) {
            let path = &node.path;
            let features = choice.features.join(", ");
            let message = format!("{by} asks for the device {index}, whose node {path} is not in the inventory of the features {features}");
            return Error::usage(message).resolve(format!(
                "ask for a feature that has the node, or add it to \"devices\" in {}",
                choice.file.path
            ));
        }
        let message = format!("{by} asks for the device {index}, and the host has no node for it");
        Error::not_found(message)
            .resolve("load the driver: `provision load`; `oci-decorator check` lists the nodes")
    }

    /// Leaves the nodes of the chosen devices, and adds those of parts, channels and rights.
    fn give_nodes(&self, devices: &mut Vec<Device>, notes: &mut Vec<Note>) -> Result<()> {
        let mut named = Vec::new();
        for extra in &self.request.extras {
            match &extra.kind {
                ExtraKind::Channels(Ok(wanted)) => {
                    named.extend(channels(self.host, wanted, &extra.by)?);
                }
                ExtraKind::MigRight(right, _) => match right_node(self.host, right, &extra.by) {
                    Ok(node) => named.push(node),
                    Err(problem) => notes.push(Note::new(Level::Warning, problem)),
                },
                ExtraKind::Channels(Err(_)) | ExtraKind::Gated => {}
            }
        }
        if devices.is_empty() {
            // What belongs to devices is of no use without their nodes.
            notes.extend(without_nodes(self.request, self.choice));
            return Ok(());
        }
        let mut missing = self.nodes.limit(devices, self.chosen);
        missing.extend(add(self.host, devices, named.iter()));
        notes.extend(missing.into_iter().map(|(path, problem)| {
            let message = format!("{path} is left out: {problem}");
            Note::new(Level::Warning, message)
        }));
        Ok(())
    }
}

/// The host's nodes of devices that can be chosen, whether or not a feature lists them.
fn nodes_of_units(host: &Host, vendor: &Vendor) -> Vec<Device> {
    vendor.units.iter().flat_map(|units| host.nodes(units)).collect()
}

/// A warning if a container asks for every device and the host has none. The container still gets
/// the driver's files, as with NVIDIA's tools.
fn no_device(host: &Host, request: &DeviceRequest, choice: &Choice) -> Option<Note> {
    let is_known = choice.vendor.units.is_some();
    let is_all = request.devices == DeviceList::All;
    if !is_all || !is_known || !nodes_of_units(host, choice.vendor).is_empty() {
        return None;
    }
    let message = format!(
        "{} asks for every device, and the host has none: the container gets the driver's files only; load the driver: `provision load`",
        request.by
    );
    Some(Note::new(Level::Warning, message).vendor(&choice.file.name))
}

/// A notice if none of the features has a node.
fn without_nodes(request: &DeviceRequest, choice: &Choice) -> Option<Note> {
    let names_features = matches!(request.features, Features::These { .. });
    if request.devices == DeviceList::None || choice.features.is_empty() && !names_features {
        return None;
    }
    let message = format!(
        "{} gets no device: the features that it asks for have none in {}",
        request.by, choice.file.path
    );
    Some(Note::new(Level::Notice, message).vendor(&choice.file.name))
}

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
