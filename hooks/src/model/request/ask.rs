//! What a container asks for through another program's interface: the variables of NVIDIA, AMD or
//! a scheduler.

use super::{Requirement, Source};
use crate::error::Result;

/// Another program's interface that a vendor file can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    Nvidia,
    Amd,
}

impl Interface {
    pub const WORDS: [(&'static str, Self); 2] = [("nvidia", Self::Nvidia), ("amd", Self::Amd)];

    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize].0
    }

    /// The first part of the vendor's CDI kinds.
    pub fn domain(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia.com",
            Self::Amd => "amd.com",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        let mut words = Self::WORDS.into_iter();
        words.find(|(known, _)| *known == word).map(|(_, it)| it)
    }
}

/// One thing asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub interface: Interface,
    pub source: Source,
    /// The variable or annotation that asks, for messages.
    pub by: String,
    pub units: Units,
    pub way: Way,
    /// The details of the request. An error counts only if something is given at all.
    pub details: Result<Details>,
}

/// Which of a vendor's devices are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Units {
    All,
    /// The devices with these names, of any kind, each once.
    These(Vec<String>),
    /// Control nodes only.
    None,
}

/// How the devices are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    VendorFile,
    /// By lists of host files, as NVIDIA's Jetson boards have them.
    Csv,
    /// By CDI specifications; `units` has the names.
    Cdi,
}

// Each is a setting of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub features: Features,
    pub requirements: Vec<Requirement>,
    pub channels: Channels,
    /// What asks for the channels, for messages.
    pub channels_by: String,
    pub mig_rights: Vec<MigRight>,
    /// The variables that ask for nodes of related drivers.
    pub related: Vec<&'static str>,
    /// The container's process joins the groups that own the nodes.
    pub groups: bool,
    /// Newer user-space libraries of the driver in the image come before the host's.
    pub compat: bool,
    /// Every list of host files counts, not only the base lists (`Way::Csv`).
    pub every_list: bool,
}

/// Which features of the vendor file are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Features {
    /// Its `driver_feature`.
    #[default]
    Usual,
    All,
    /// These, in the interface's own words. If the container names them one by one, a missing one is
    /// reported.
    These {
        words: Vec<String>,
        by_name: bool,
    },
}

/// IMEX channels, through which GPUs of several hosts share memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Channels {
    #[default]
    None,
    All,
    These(Vec<u32>),
}

/// What a container may do with the MIG partitions of all GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigRight {
    Config,
    Monitor,
}

impl MigRight {
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Monitor => "monitor",
        }
    }

    /// The variable that asks for it.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Config => "NVIDIA_MIG_CONFIG_DEVICES",
            Self::Monitor => "NVIDIA_MIG_MONITOR_DEVICES",
        }
    }
}
