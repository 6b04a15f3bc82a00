//! From a choice to edits: looks every device and file up on the host.

use std::collections::HashMap;
use std::fs::File;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::decide::Choice;
use crate::edits::{Edits, Library, Mount};
use crate::elf::{self, Elf};
use crate::error::{Error, Result};
use crate::fold::whole_folders;
use crate::host::{DeviceFound, Found, Host, Tree};
use crate::inroot::split;
use crate::level::Level;
use crate::log::Note;
use crate::vendor::Inventory;

/// One line of an inventory, and what the host has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub feature: String,
    pub kind: Kind,
    /// As the inventory names it; for a pattern, what it stands for.
    pub path: String,
    /// What the container gets, or why it gets nothing.
    pub found: std::result::Result<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Device,
    Directory,
    File,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Directory => "directory",
            Self::File => "file",
        }
    }
}

/// Collects what every choice asks for. Notes: what the host doesn't have.
/// Errors: a vendor's `root` isn't there, so its driver isn't installed.
pub fn collect(host: &Host, choices: &[Choice]) -> Result<(Edits, Vec<Note>)> {
    let mut edits = Edits::default();
    let mut notes = Vec::new();
    for choice in choices {
        let (own, items) = collect_one(host, choice)?;
        let missing = items.iter().filter_map(|item| missing(choice, item));
        notes.extend(missing.chain([summary(choice, &own)]));
        edits.append(own);
    }
    edits.sort();
    Ok((edits, notes))
}

/// Collects what one choice asks for, and every line of its inventory with it.
pub fn collect_one(host: &Host, choice: &Choice) -> Result<(Edits, Vec<Item>)> {
    let tree = host
        .tree(choice.vendor.root.as_deref())
        .map_err(|error| Error {
            message: format!(
                "{} is set ({}): {}",
                choice.vendor.activation_flag, choice.file.path, error.message
            ),
            ..error
        })?;
    let mut collector = Collector {
        host,
        tree: &tree,
        feature: "",
        edits: Edits::default(),
        items: Vec::new(),
        read: HashMap::new(),
    };
    for feature in &choice.features {
        if let Some(inventory) = choice.vendor.feature(feature) {
            collector.feature = feature;
            collector.inventory(inventory);
        }
    }
    let mut edits = Edits::default();
    edits.append(collector.edits);
    // Elsewhere than in a store, the files of a folder come and go.
    if choice.vendor.root.is_some() {
        edits.folders = whole_folders(&tree, &edits.mounts);
    }
    Ok((edits, collector.items))
}

fn missing(choice: &Choice, item: &Item) -> Option<Note> {
    let problem = item.found.as_ref().err()?;
    let message = format!("{} is left out: {problem}", item.path);
    let note = Note::new(Level::Warning, message).feature(&item.feature);
    Some(
        note.vendor(&choice.file.name)
            .limit(choice.vendor.log_level),
    )
}

fn summary(choice: &Choice, edits: &Edits) -> Note {
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

struct Collector<'a> {
    host: &'a Host,
    tree: &'a Tree<'a>,
    feature: &'a str,
    edits: Edits,
    items: Vec<Item>,
    /// Libraries by the device and inode of their files.
    read: HashMap<(u64, u64), Option<Elf>>,
}

impl Collector<'_> {
    fn inventory(&mut self, inventory: &Inventory) {
        for device in &inventory.devices {
            self.device(device);
        }
        for path in &inventory.directories {
            self.edits.directories.push(path.clone());
            self.item(Kind::Directory, path, Ok(String::new()));
        }
        for path in inventory.files() {
            let found = self.file(path);
            self.item(Kind::File, path, found);
        }
    }

    fn item(&mut self, kind: Kind, path: &str, found: std::result::Result<String, String>) {
        self.items.push(Item {
            feature: self.feature.to_owned(),
            kind,
            path: path.to_owned(),
            found,
        });
    }

    fn device(&mut self, wanted: &str) {
        let nodes = self.host.devices(wanted);
        if nodes.is_empty() {
            let problem = "no device of this host matches".to_owned();
            self.item(Kind::Device, wanted, Err(problem));
        }
        for (path, node) in nodes {
            let found = match node {
                DeviceFound::Node(device) => {
                    let shown = format!("{} {}:{}", device.kind, device.major, device.minor);
                    self.edits.devices.push(device);
                    Ok(shown)
                }
                DeviceFound::Missing => Err("the host has no such device".to_owned()),
                DeviceFound::Unusable(problem) => Err(problem),
            };
            self.item(Kind::Device, &path, found);
        }
    }

    /// Adds a mount; gives the path that it comes from.
    fn file(&mut self, path: &str) -> std::result::Result<String, String> {
        let found = self.tree.find(path).map_err(|error| match error {
            Errno::NOENT => "the host has no such file".to_owned(),
            other => other.to_string(),
        })?;
        let kind = found.kind();
        if !matches!(
            kind,
            FileType::RegularFile | FileType::Directory | FileType::Socket
        ) {
            return Err("neither a file, a folder nor a socket".to_owned());
        }
        let source = found
            .source
            .clone()
            .ok_or("the path that it leads to is not UTF-8, or outside the root")?;
        self.edits.mounts.push(Mount {
            source: source.clone(),
            target: path.to_owned(),
        });
        if kind == FileType::RegularFile && is_library(path) {
            let library = self.library(&found, path);
            self.edits.libraries.extend(library);
        }
        Ok(source)
    }

    /// What the loader needs to know of a library. `None`: it isn't one.
    fn library(&mut self, found: &Found, path: &str) -> Option<Library> {
        let identity = (found.stat.st_dev, found.stat.st_ino);
        // Several names lead to one file; it is read once.
        let read = || elf::read(&File::from(found.open().ok()?));
        let elf = self.read.entry(identity).or_insert_with(read).as_ref()?;
        let (_, name) = split(path)?;
        Some(Library {
            soname: elf.soname.as_deref().unwrap_or(name).to_owned(),
            flags: elf.flags,
            is_link: found.is_link,
            path: path.to_owned(),
        })
    }
}

/// The names that `ldconfig` looks at, wherever the inventory lists them.
fn is_library(path: &str) -> bool {
    split(path).is_some_and(|(_, name)| {
        (name.starts_with("lib") || name.starts_with("ld-")) && name.contains(".so")
    })
}
