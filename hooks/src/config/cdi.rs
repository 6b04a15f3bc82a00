//! Reads the CDI specifications that admins and other programs write into `/etc/cdi` and
//! `/var/run/cdi`. All mistakes of a file are reported together.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! Like vendor files, they belong to a host's configuration, and their authors must be trusted.
//! `frontends::cdi` decides what a container gets from them.

mod parse;

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::config::reader::{self, is_kind, Json, Unusable};
use crate::error::{Error, Result};
use crate::model::vendor::Mistake;

pub use crate::config::reader::MAX_SIZE;
pub use parse::parse;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Json,
    Yaml,
}

impl Syntax {
    /// The syntax of a file with this name. `None`: engines do not read the file.
    pub fn of(name: &str) -> Option<Self> {
        if name.strip_suffix(".json").is_some_and(|n| !n.is_empty()) {
            Some(Self::Json)
        } else if name.strip_suffix(".yaml").is_some_and(|n| !n.is_empty()) {
            Some(Self::Yaml)
        } else {
            None
        }
    }

    /// Reads a text. Errors: why it does not have this syntax.
    pub fn parse(self, text: &str) -> Result<Json<'_>, String> {
        match self {
            Self::Json => serde_json::from_str(text).map_err(|e| format!("not valid JSON: {e}")),
            Self::Yaml => parse::parse_yaml(text).map_err(|e| format!("not valid YAML: {e}")),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    pub version: String,
    /// `vendor.com/class`.
    pub kind: String,
    pub devices: Vec<NamedDevice>,
    /// Edits that come once, with the first of these devices.
    pub edits: ContainerEdits,
    /// It, or one of its devices, has annotations, which say nothing to this program.
    pub has_annotations: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedDevice {
    pub name: String,
    pub edits: ContainerEdits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerEdits {
    pub env: Vec<String>,
    pub nodes: Vec<DeviceNode>,
    pub mounts: Vec<crate::model::edits::DescribedMount>,
    pub hooks: Vec<crate::model::edits::Hook>,
    pub groups: Vec<u32>,
    pub rdt: Option<Rdt>,
    pub net_devices: Vec<crate::model::edits::NetDevice>,
}

impl ContainerEdits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceNode {
    pub path: String,
    pub host_path: Option<String>,
    /// `b`, `c`, `u` or `p`.
    pub kind: Option<char>,
    pub major: Option<u32>,
    pub minor: Option<u32>,
    pub mode: Option<u32>,
    /// Letters of `rwm`, or `none`. `None`: every right.
    pub permissions: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// Settings of Intel RDT (cache and memory bandwidth): a JSON object for `linux.intelRdt`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rdt {
    pub json: String,
    /// It has fields of version 1.1.
    pub is_new: bool,
    /// It has fields that version 1.1 no longer has.
    pub is_old: bool,
}

pub const VERSIONS: [&str; 8] =
    ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// Checks the document's version: every field that it does not have is a mistake.
pub fn check_version(document: &Document) -> Vec<Mistake> {
    let Some(own) = version_place(&document.version) else {
        let problem = format!(
            "{:?} is not a known version; known are {}",
            document.version,
            VERSIONS.join(", ")
        );
        return vec![Mistake::new("cdiVersion", problem)];
    };
    let needed = needed(document);
    let mut mistakes: Vec<Mistake> = needed
        .into_iter()
        .filter(|(version, _)| version_place(version) > Some(own))
        .map(|(version, what)| {
            let problem = format!("{:?} has no {what}: use {version} or newer", document.version);
            Mistake::new("cdiVersion", problem)
        })
        .collect();
    if all_edits(document).any(|e| e.rdt.as_ref().is_some_and(|rdt| rdt.is_old))
        && Some(own) >= version_place("1.1.0")
    {
        let problem = format!("{:?} no longer has enableCMT and enableMBM", document.version);
        mistakes.push(Mistake::new("cdiVersion", problem));
    }
    mistakes
}

fn version_place(version: &str) -> Option<usize> {
    let version = version.strip_prefix('v').unwrap_or(version);
    VERSIONS.iter().position(|known| *known == version)
}

fn all_edits(document: &Document) -> impl Iterator<Item = &ContainerEdits> {
    let own = document.devices.iter().map(|device| &device.edits);
    own.chain([&document.edits])
}

/// The lowest version for each field that the document has.
fn needed(document: &Document) -> Vec<(&'static str, &'static str)> {
    let any = |has: &dyn Fn(&ContainerEdits) -> bool| all_edits(document).any(has);
    let names = document.devices.iter().map(|device| device.name.as_str());
    let starts_with_digit = |name: &str| name.starts_with(|c: char| c.is_ascii_digit());
    let class = document.kind.split_once('/').map_or("", |(_, class)| class);
    let all = [
        (any(&|e| e.mounts.iter().any(|m| !m.kind.is_empty())), "0.4.0", "type of a mount"),
        (any(&|e| e.nodes.iter().any(|n| n.host_path.is_some())), "0.5.0", "hostPath of a node"),
        (names.into_iter().any(starts_with_digit), "0.5.0", "names that begin with a digit"),
        (document.has_annotations, "0.6.0", "annotations"),
        (class.contains('.'), "0.6.0", "dot in a class"),
        (any(&|e| e.rdt.is_some()), "0.7.0", "intelRdt"),
        (any(&|e| !e.groups.is_empty()), "0.7.0", "additionalGids"),
        (any(&|e| !e.net_devices.is_empty()), "1.1.0", "netDevices"),
        (
            any(&|e| e.rdt.as_ref().is_some_and(|rdt| rdt.is_new)),
            "1.1.0",
            "schemata and enableMonitoring",
        ),
    ];
    let present = all.into_iter().filter(|(is_used, ..)| *is_used);
    present.map(|(_, version, what)| (version, what)).collect()
}

/// The folders that engines read, in ascending priority.
pub const DEFAULT_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

#[derive(Debug)]
pub struct SpecFile {
    pub path: PathBuf,
    /// The position of its folder. A higher one overrides a lower one.
    pub priority: usize,
    pub content: std::result::Result<Document, Broken>,
}

/// What is known about a file that can't be used.
#[derive(Debug)]
pub struct Broken {
    pub mistakes: Vec<Mistake>,
    /// The kind that its text appears to name.
    pub kind: Option<String>,
}

/// Reads every specification of the folders. A missing folder (`None`) has none.
/// Errors: a folder can't be read.
pub fn read_folders(folders: &[Option<PathBuf>]) -> Result<Vec<SpecFile>> {
    let mut specs = Vec::new();
    for (priority, folder) in folders.iter().enumerate() {
        let Some(folder) = folder else { continue };
        let syntax = |name: &str| Syntax::of(name).unwrap_or(Syntax::Json);
        let is_wanted = |name: &str| Syntax::of(name).is_some();
        let make = |name: &str, path: &Path, content: Result<_, Unusable>| SpecFile {
            priority,
            content: content.map_err(|file| Broken {
                kind: kind_in(&file.text, syntax(name)),
                mistakes: file.mistakes,
            }),
            path: path.to_owned(),
        };
        match reader::read(folder, is_wanted, |name, text| parse(text, syntax(name)), make) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(e) => {
                return Err(Error::failed(format!("can't read {}: {e}", folder.display())));
            }
            Ok(files) => specs.extend(files),
        }
    }
    Ok(specs)
}

/// The kind that a text names, even if the text is malformed.
fn kind_in(text: &str, syntax: Syntax) -> Option<String> {
    if let Ok(Json::Object(members)) = syntax.parse(text) {
        let stated = members.iter().find(|(key, _)| key == "kind");
        if let Some(kind) = stated.and_then(|(_, kind)| kind.text()) {
            return Some(kind.to_owned());
        }
    }
    text.split("kind").skip(1).find_map(|rest| {
        let rest = rest.trim_start_matches(['"', '\'']).trim_start();
        let rest = rest.strip_prefix(':')?.trim_start();
        let value = rest.trim_start_matches(['"', '\'']);
        let end = value.find(|c: char| !c.is_ascii_alphanumeric() && !"./_-".contains(c));
        let kind = &value[..end.unwrap_or(value.len())];
        is_kind(kind).then(|| kind.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_broken_text_is_found() {
        for (text, syntax, kind) in [
            ("{\"kind\" : \"a.com/b\", ", Syntax::Json, Some("a.com/b")),
            ("kind: a.com/b\n\t: x", Syntax::Yaml, Some("a.com/b")),
            ("  'kind': 'a/b'\n\t", Syntax::Yaml, Some("a/b")),
            ("mankind: x\n\t", Syntax::Yaml, None),
            ("", Syntax::Json, None),
        ] {
            assert_eq!(kind_in(text, syntax).as_deref(), kind, "{text}");
        }
    }
}
