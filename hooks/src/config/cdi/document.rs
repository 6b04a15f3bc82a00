//! What a CDI specification says.

/// A specification without mistakes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    pub version: String,
    /// `vendor.com/class`.
    pub kind: String,
    pub devices: Vec<NamedDevice>,
    /// What each of the devices brings along, once.
    pub edits: ContainerEdits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedDevice {
    pub name: String,
    pub edits: ContainerEdits,
}

/// In the words of CDI.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerEdits {
    pub env: Vec<String>,
    pub nodes: Vec<DeviceNode>,
    pub mounts: Vec<crate::edits::DescribedMount>,
    pub hooks: Vec<crate::edits::Hook>,
    pub groups: Vec<u32>,
    pub rdt: Option<Rdt>,
    pub net_devices: Vec<crate::edits::NetDevice>,
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
    /// `None`: all. Letters of `rwm`, or `none`.
    pub permissions: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// Intel's cache and memory bandwidth: a JSON object as `linux.intelRdt` has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rdt {
    pub json: String,
    /// It has fields of version 1.1.
    pub is_new: bool,
    /// It has fields that version 1.1 has no more.
    pub is_old: bool,
}
