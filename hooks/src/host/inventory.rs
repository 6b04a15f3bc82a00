//! Turns a choice into edits: looks every device and file up on the host.

use std::collections::BTreeSet;
use std::fs::File;

use rustc_hash::FxHashMap;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::elf::{self, Elf};
use crate::host::facts::Facts;
use crate::host::libraries::is_library;
use crate::host::nodes::{Class, Nodes};
use crate::host::tree::whole_folders;
use crate::host::{DeviceFound, Host, Tree, TreeEntry};
use crate::log::{Level, Note};
use crate::model::decide::units::Chosen;
use crate::model::decide::Choice;
use crate::model::edits::paths::{lies_in, split};
use crate::model::edits::{Compat, Device, Edits, Library, Mount};
use crate::model::vendor::{Inventory, Vendor};

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
/// Errors: as [`collect_one`].
pub fn collect(host: &Host, choice: &Choice) -> Result<(Edits, Vec<Note>)> {
    let (mut edits, items) = collect_whole(host, choice, Report::Missing)?;
    if edits.libraries.iter().any(|library| library.soname == CUDA) {
        edits.compat.push(compat(choice.vendor, host.facts(&choice.file.name).facts()));
    }
    let missing = items.iter().filter_map(|item| missing(choice, item));
    let notes = missing.chain([summary(choice, &edits)]).collect();
    Ok((edits, notes))
}

/// Which lines of an inventory are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Missing,
    /// All lines, and the sonames of the vendor file are checked against the files.
    All,
}

/// Collects the edits of one choice for a container that chooses no devices: it gets every unit.
/// Reports on the lines of the inventory. Errors: as [`collect_one`].
pub fn collect_whole(host: &Host, choice: &Choice, report: Report) -> Result<(Edits, Vec<Item>)> {
    let (mut edits, mut items) = collect_one(host, choice, report)?;
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
pub fn collect_one(host: &Host, choice: &Choice, report: Report) -> Result<(Edits, Vec<Item>)> {
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
    devices: FxHashMap<&'a str, Vec<(String, Outcome)>>,
    /// Positions in the list of mounts.
    files: FxHashMap<&'a str, std::result::Result<usize, String>>,
    /// Libraries by their sources, as several names may lead to one file.
    read: FxHashMap<String, Option<Elf>>,
}

/// What a line gives, or why it gives nothing.
type Outcome = std::result::Result<String, String>;

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
    fn item(&self, kind: &'static str, path: &str, found: &Outcome) -> Option<Item> {
        (self.report == Report::All || found.is_err()).then(|| Item {
            feature: self.feature.to_owned(),
            kind,
            path: path.to_owned(),
            found: found.clone(),
        })
    }

    /// Adds the nodes that a device's line stands for.
    fn device(&mut self, wanted: &str) -> Vec<(String, Outcome)> {
        let nodes = self.host.devices(wanted);
        if nodes.is_empty() {
            let problem = "no device of this host matches".to_owned();
            return vec![(wanted.to_owned(), Err(problem))];
        }
        let mut outcomes = Vec::with_capacity(nodes.len());
        for (path, node) in nodes {
            let outcome = match node {
                DeviceFound::Node(device) => {
                    let shown = format!("{} {}:{}", device.kind, device.major, device.minor);
                    self.edits.devices.push(device);
                    Ok(shown)
                }
                DeviceFound::Missing => Err("the host has no such device".to_owned()),
                DeviceFound::Unusable(problem) => Err(problem),
            };
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
            return Ok(Some(library(soname, elf::NATIVE_FLAGS)));
        }
        if !self.read.contains_key(source) {
            let elf = found.open().ok().and_then(|fd| elf::read(&File::from(fd)));
            self.read.insert(source.to_owned(), elf);
        }
        let (_, name) = split(path).unwrap_or_default();
        let read = self.read[source].as_ref();
        let read = read.map(|elf| (elf.soname.as_deref().unwrap_or(name), elf.flags));
        match (stated, read) {
            (Some(soname), read) if read != Some((soname, elf::NATIVE_FLAGS)) => Err(format!(
                "\"sonames\" calls it {soname}, and the file is {}",
                read.map_or("not a library".to_owned(), |(name, flags)| format!(
                    "{name} with the flags {flags:#x}"
                ))
            )),
            _ => Ok(read.map(|(name, flags)| library(name, flags))),
        }
    }
}
