//! Turns a request into edits: the files of its features, and the chosen devices.

use std::collections::BTreeSet;
use std::fs::File;

use rustc_hash::FxHashMap;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::facts::{Facts, WRITE_AGAIN};
use crate::host::libraries::{is_library, read_elf, Elf, NATIVE_FLAGS};
use crate::host::nodes::{
    add, channels, choose, is_drm, right_node, trailing_number, Chosen, Class, Nodes,
};
use crate::host::{whole_folders, Host, Tree, TreeEntry};
use crate::log::{brief, Level, Note};
use crate::model::edits::{lies_in, split, Compat, Device, Edits, Library, Mount};
use crate::model::request::{
    is_version, DeviceList, DeviceRequest, ExtraKind, Features, Interface, Known, Outcome,
    Requirement, Subject,
};
use crate::model::vendor::{Choice, Inventory, Vendor};

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
    if request.interface.is_none() {
        return resolve_all(host, choice);
    }
    let by = request.by.as_str();
    let mut notes = Vec::new();
    let (mut edits, items) = collect_inventory(host, choice, Report::Missing)?;
    notes.extend(items.iter().filter_map(|item| missing(choice, item)));
    let is_there = |path: &str| edits.devices.iter().any(|device| device.path == path);
    let interface = request.interface.unwrap_or(Interface::Nvidia);
    if interface == Interface::Amd && !is_there(AMD_CONTROL) {
        let message = format!("{by} has no effect: the host has no {AMD_CONTROL}");
        return Ok((Edits::default(), vec![Note::new(Level::Notice, message)]));
    }
    let found = usable(host.facts(&choice.file.name), request, choice, &mut notes)?;
    let facts = found.as_ref();
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
    found: Result<Option<Facts>, String>,
    request: &DeviceRequest,
    choice: &Choice,
    notes: &mut Vec<Note>,
) -> Result<Option<Facts>> {
    let problem = match found {
        Ok(facts) => return Ok(facts),
        Err(problem) => problem,
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
    Ok(None)
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
        let is_own = |node: &&Device| trailing_number(&node.path) == minor && minor.is_some();
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

/// The library with which an image's newer user-space parts of the driver come first.
const CUDA: &str = "libcuda.so.1";
/// Where images of CUDA have newer user space parts of the driver.
const COMPAT: &str = "/usr/local/cuda/compat";
/// Folders of the daemons' sockets, which run on the host, wherever the driver's files lie.
const DAEMONS: [&str; 3] = ["/run", "/var/run", "/tmp"];

/// One line of an inventory, and what the host has for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub feature: String,
    /// `device`, `directory` or `file`.
    pub kind: &'static str,
    /// The path in the inventory; for a pattern, the path that matches.
    pub path: String,
    /// What the container gets, or why it gets nothing.
    pub found: std::result::Result<String, String>,
}

const DEVICE: &str = "device";

/// Collects the edits of a choice with every unit. Notes: what the host lacks.
/// Errors: as [`collect_inventory`].
pub fn resolve_all(host: &Host, choice: &Choice) -> Result<(Edits, Vec<Note>)> {
    let (mut edits, items) = collect_all_units(host, choice, Report::Missing)?;
    if edits.libraries.iter().any(|library| library.soname == CUDA) {
        let facts = host.facts(&choice.file.name).ok().flatten();
        edits.compat.push(compat(choice.vendor, facts.as_ref()));
    }
    let missing = items.iter().filter_map(|item| missing(choice, item));
    let notes = missing.chain([summary(choice, &edits)]).collect();
    Ok((edits, notes))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Missing,
    /// All lines, and the sonames of the vendor file are checked against the files.
    All,
}

/// Collects the edits of one choice for a container that chooses no devices: it gets every unit.
/// Reports on the lines of the inventory. Errors: as [`collect_inventory`].
pub fn collect_all_units(
    host: &Host,
    choice: &Choice,
    report: Report,
) -> Result<(Edits, Vec<Item>)> {
    let (mut edits, mut items) = collect_inventory(host, choice, report)?;
    let (vendor, name) = (choice.vendor, &choice.file.name);
    let (nodes, problem) = Nodes::by_facts(host, vendor, name, &edits.devices);
    let item = |path: String, problem: String| Item {
        feature: choice.features.join(", "),
        kind: DEVICE,
        path,
        found: Err(problem),
    };
    if report == Report::All {
        for it in &mut items {
            let class = nodes.class(&it.path);
            if let (DEVICE, Ok(_), Some(reason)) = (it.kind, &it.found, class.left_out()) {
                it.found = Err(reason.to_owned());
            }
        }
    }
    if let Some(problem) = problem {
        let rights = edits.devices.iter();
        let rights = rights.filter(|it| nodes.class(&it.path) == Class::Right);
        items.extend(rights.map(|it| item(it.path.clone(), problem.clone())));
    }
    let missing = nodes.limit(&mut edits.devices, &Chosen::all(&nodes.units));
    items.extend(missing.into_iter().map(|(path, why)| item(path, why)));
    Ok((edits, items))
}

/// Collects the edits of one choice with the nodes of every class, and reports on the lines of its
/// inventory. Errors: the driver is not installed, or a path can't be given to a container.
pub fn collect_inventory(
    host: &Host,
    choice: &Choice,
    report: Report,
) -> Result<(Edits, Vec<Item>)> {
    let tree = host.tree(choice.vendor.root.as_deref()).map_err(|error| Error {
        message: format!(
            "{} is set ({}): {}",
            choice.vendor.activation_flag, choice.file.path, error.message
        ),
        ..error
    })?;
    let mut collector = Collector {
        host,
        tree: &tree,
        sonames: &choice.vendor.sonames,
        report,
        feature: "",
        edits: Edits::default(),
        items: Vec::new(),
        devices: FxHashMap::default(),
        files: FxHashMap::default(),
        read: FxHashMap::default(),
    };
    for feature in &choice.features {
        if let Some(inventory) = choice.vendor.feature(feature) {
            collector.feature = feature;
            collector.inventory(inventory);
        }
    }
    let mut edits = Edits::default();
    edits.append(collector.edits);
    // Outside of a store, the files of a folder may change.
    if choice.vendor.root.is_some() {
        edits.folders = whole_folders(&tree, &edits.mounts);
    }
    edits.validate()?;
    Ok((edits, collector.items))
}

pub(super) fn missing(choice: &Choice, item: &Item) -> Option<Note> {
    let problem = item.found.as_ref().err()?;
    let message = format!("{} is left out: {problem}", item.path);
    let note = Note::new(Level::Warning, message).feature(&item.feature);
    Some(note.vendor(&choice.file.name).limit(choice.vendor.log_level))
}

pub(super) fn summary(choice: &Choice, edits: &Edits) -> Note {
    let message = format!(
        "{} gives {}: {} devices, {} files, {} directories",
        choice.vendor.activation_flag,
        choice.features.join(", "),
        edits.devices.len(),
        edits.mounts.len(),
        edits.directories.len(),
    );
    let note = Note::new(Level::Info, message).vendor(&choice.file.name);
    note.limit(choice.vendor.log_level)
}

/// The variable with which NVIDIA's toolkit says where libcuda lies.
pub fn cuda_folder(libraries: &[Library]) -> Option<String> {
    let library = libraries.iter().find(|library| library.soname == CUDA)?;
    let (folder, _) = split(&library.path)?;
    Some(format!("NVIDIA_CTK_LIBCUDA_DIR={}", folder.trim_end_matches('/')))
}

/// Where an image may have newer parts of the driver, and the versions of the host's.
pub fn compat(vendor: &Vendor, facts: Option<&Facts>) -> Compat {
    let driver = facts.and_then(|facts| facts.driver_version.clone());
    Compat {
        folder: COMPAT.to_owned(),
        driver: driver.or_else(|| vendor.version.clone()),
        cuda: facts.and_then(|facts| facts.cuda_version.clone()),
    }
}

/// Groups that a process must join to use nodes that are not open to everyone.
pub fn groups<'d>(devices: impl IntoIterator<Item = &'d Device>) -> Vec<u32> {
    let needed = |device: &&Device| {
        let (group, others) = ((device.mode >> 3) & 0o6, device.mode & 0o6);
        device.gid != Some(0) && group & !others != 0
    };
    let groups: BTreeSet<u32> = devices.into_iter().filter(needed).filter_map(|d| d.gid).collect();
    groups.into_iter().collect()
}

/// Looks each line up once, however many features have it.
struct Collector<'a> {
    host: &'a Host,
    tree: &'a Tree<'a>,
    sonames: &'a FxHashMap<String, String>,
    report: Report,
    feature: &'a str,
    edits: Edits,
    items: Vec<Item>,
    devices: FxHashMap<&'a str, Vec<(String, Given)>>,
    /// Positions in the list of mounts.
    files: FxHashMap<&'a str, std::result::Result<usize, String>>,
    /// Libraries by their sources, as several names may lead to one file.
    read: FxHashMap<String, Option<Elf>>,
}

/// What a line gives, or why it gives nothing.
type Given = std::result::Result<String, String>;

impl<'a> Collector<'a> {
    fn inventory(&mut self, inventory: &'a Inventory) {
        for device in &inventory.devices {
            if !self.devices.contains_key(device.as_str()) {
                let outcomes = self.device(device);
                self.devices.insert(device, outcomes);
            }
            for (path, found) in &self.devices[device.as_str()] {
                self.items.extend(self.item(DEVICE, path, found));
            }
        }
        for path in &inventory.directories {
            self.edits.directories.push(path.clone());
            let item = self.item("directory", path, &Ok(String::new()));
            self.items.extend(item);
        }
        for path in inventory.files() {
            if !self.files.contains_key(path) {
                let outcome = self.file(path);
                self.files.insert(path, outcome);
            }
            let outcome = &self.files[path];
            if self.report == Report::All || outcome.is_err() {
                let found = outcome.clone().map(|at| self.edits.mounts[at].source.clone());
                self.items.extend(self.item("file", path, &found));
            }
        }
    }

    /// `None`: this line is not reported.
    fn item(&self, kind: &'static str, path: &str, found: &Given) -> Option<Item> {
        (self.report == Report::All || found.is_err()).then(|| Item {
            feature: self.feature.to_owned(),
            kind,
            path: path.to_owned(),
            found: found.clone(),
        })
    }

    /// Adds the nodes that a device's line stands for.
    fn device(&mut self, wanted: &str) -> Vec<(String, Given)> {
        let nodes = self.host.devices(wanted);
        if nodes.is_empty() {
            let problem = "no device of this host matches".to_owned();
            return vec![(wanted.to_owned(), Err(problem))];
        }
        let mut outcomes = Vec::with_capacity(nodes.len());
        for (path, node) in nodes {
            let outcome = node.map(|device| {
                let shown = format!("{} {}:{}", device.kind, device.major, device.minor);
                self.edits.devices.push(device);
                shown
            });
            outcomes.push((path, outcome));
        }
        outcomes
    }

    /// Adds a mount, and returns its position.
    fn file(&mut self, path: &str) -> std::result::Result<usize, String> {
        let own = DAEMONS.iter().any(|folder| lies_in(path, folder));
        let own = own.then(|| self.host.tree(None).ok()).flatten();
        let mut found = match (self.tree.find(path), &own) {
            (Err(Errno::NOENT), Some(host)) => host.find(path),
            (found, _) => found,
        }
        .map_err(|error| match error {
            Errno::NOENT => "the host has no such file".to_owned(),
            other => other.to_string(),
        })?;
        if !matches!(found.kind, FileType::RegularFile | FileType::Directory | FileType::Socket) {
            return Err("neither a file, a folder nor a socket".to_owned());
        }
        if found.kind == FileType::RegularFile && is_library(path) {
            let library = self.library(&found, path)?;
            self.edits.libraries.extend(library);
        }
        let source = found.source.take();
        self.edits.mounts.push(Mount {
            source: source.ok_or("the path that it leads to is not UTF-8, or outside the root")?,
            target: path.to_owned(),
        });
        Ok(self.edits.mounts.len() - 1)
    }

    /// What the loader's cache records about a library. `None`: the file is not a library.
    /// Errors: the file differs from what the vendor file says.
    fn library(
        &mut self,
        found: &TreeEntry,
        path: &str,
    ) -> std::result::Result<Option<Library>, String> {
        let library = |soname: &str, flags| Library {
            soname: soname.to_owned(),
            flags,
            is_link: found.is_link,
            path: path.to_owned(),
        };
        let Some(source) = found.source.as_deref() else {
            return Ok(None); // The file can't be mounted either.
        };
        let own_path = self.tree.path_of(source).unwrap_or(path);
        let stated = self.sonames.get(own_path);
        if let (Some(soname), Report::Missing) = (stated, self.report) {
            return Ok(Some(library(soname, NATIVE_FLAGS)));
        }
        if !self.read.contains_key(source) {
            let elf = found.open().ok().and_then(|fd| read_elf(&File::from(fd)));
            self.read.insert(source.to_owned(), elf);
        }
        let (_, name) = split(path).unwrap_or_default();
        let read = self.read[source].as_ref();
        let read = read.map(|elf| (elf.soname.as_deref().unwrap_or(name), elf.flags));
        match (stated, read) {
            (Some(soname), read) if read != Some((soname, NATIVE_FLAGS)) => Err(format!(
                "\"sonames\" calls it {soname}, and the file is {}",
                read.map_or("not a library".to_owned(), |(name, flags)| format!(
                    "{name} with the flags {flags:#x}"
                ))
            )),
            _ => Ok(read.map(|(name, flags)| library(name, flags))),
        }
    }
}
