//! What a CDI specification says, and which version of CDI has which field.

use crate::model::vendor::Mistake;

/// A specification without mistakes.
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

/// The edits, in the terms of CDI.
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

/// The known versions, in ascending order.
pub const VERSIONS: [&str; 8] =
    ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// What generated documents have at least: engines of 2022 can read it too.
const LOWEST: &str = "0.5.0";

impl Document {
    /// The lowest version that has every field of a generated document.
    pub fn lowest_version(&self) -> &'static str {
        let needed = needed(self).into_iter();
        needed.map(|(version, _)| version).fold(LOWEST, Ord::max)
    }
}

/// Checks the document's version: every field that it does not have is a mistake.
pub fn check_version(document: &Document) -> Vec<Mistake> {
    let Some(own) = place(&document.version) else {
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
        .filter(|(version, _)| place(version) > Some(own))
        .map(|(version, what)| {
            let problem = format!("{:?} has no {what}: use {version} or newer", document.version);
            Mistake::new("cdiVersion", problem)
        })
        .collect();
    if all_edits(document).any(|e| e.rdt.as_ref().is_some_and(|rdt| rdt.is_old))
        && Some(own) >= place("1.1.0")
    {
        let problem = format!("{:?} no longer has enableCMT and enableMBM", document.version);
        mistakes.push(Mistake::new("cdiVersion", problem));
    }
    mistakes
}

fn place(version: &str) -> Option<usize> {
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
