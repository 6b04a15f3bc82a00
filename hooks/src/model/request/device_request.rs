//! One request for devices, in the form that every front end makes of what it reads.

use std::collections::BTreeSet;

use super::{RequestSource, Requirement};
use crate::error::{Error, Result};

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

/// A variable, mount or annotation that requests devices, before and after it is judged.
// Each is a setting of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Whose devices. `None`: those of the vendor file with the flag `by`.
    pub interface: Option<Interface>,
    /// The sources, all of which the policy has to allow. A flag's is judged with its value.
    pub sources: Vec<RequestSource>,
    /// What requests them, for messages.
    pub by: String,
    pub devices: DeviceList,
    pub features: Features,
    pub backend: Backend,
    pub requirements: Vec<Requirement>,
    /// More than devices, each with a source of its own.
    pub extras: Vec<Extra>,
    /// The container's process joins the groups that own the nodes.
    pub groups: bool,
    /// Newer user-space libraries of the driver in the image come before the host's.
    pub compat: bool,
    /// Every list of host files, not only the base lists (`Backend::Csv`).
    pub every_list: bool,
    /// Allowed where only a scheduler gives devices: the scheduler's own request, and names of CDI
    /// devices that it does not give.
    pub is_beside_scheduler: bool,
    /// Ignored in unprivileged containers: NVIDIA's own rule, beside the policy's.
    pub needs_privilege: bool,
    /// What is wrong with it. It refuses the start only if the policy allows the request.
    pub problem: Option<Error>,
}

impl DeviceRequest {
    pub fn is_schedulers(&self) -> bool {
        self.sources.contains(&RequestSource::Scheduler)
    }
}

/// The requested devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeviceList {
    Nothing,
    #[default]
    All,
    /// Control nodes only.
    None,
    /// The devices with these names, of any kind, each once.
    These(Vec<String>),
}

impl DeviceList {
    /// Reads lists. `void` in any position means nothing. Otherwise the first `all` or `none`
    /// stands for the whole. A name that is given twice is one device; NVIDIA's hook makes an empty
    /// name of it.
    pub fn of<'w>(lists: impl IntoIterator<Item = &'w str>) -> Self {
        let mut names = Vec::new();
        let mut special = None;
        for word in lists.into_iter().flat_map(|list| list.split(',')) {
            match word.trim() {
                "void" => return Self::Nothing,
                "all" => _ = special.get_or_insert(Self::All),
                "none" => _ = special.get_or_insert(Self::None),
                name => names.push(name),
            }
        }
        special.unwrap_or_else(|| Self::of_names(names))
    }

    /// Reads names, each once, without empty ones. No word is special.
    pub fn of_names<'w>(words: impl IntoIterator<Item = &'w str>) -> Self {
        // Ordered and not hashed, because a container's author could choose names that collide.
        let mut known = BTreeSet::new();
        let mut names = Vec::new();
        for word in words.into_iter().map(str::trim) {
            if !word.is_empty() && known.insert(word) {
                names.push(word.to_owned());
            }
        }
        if names.is_empty() {
            Self::Nothing
        } else {
            Self::These(names)
        }
    }

    pub fn names(&self) -> &[String] {
        match self {
            Self::These(names) => names,
            _ => &[],
        }
    }
}

/// What the devices are looked up in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    #[default]
    VendorFile,
    /// Lists of host files, as NVIDIA's Jetson boards have them.
    Csv,
    /// CDI specifications, by the devices' names.
    Cdi,
}

/// Which features of the vendor file are requested.
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

/// A request for more than devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    pub source: RequestSource,
    pub by: String,
    pub kind: ExtraKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraKind {
    /// Errors: a word is not a channel.
    Channels(Result<Channels>),
    /// A right over every GPU's partitions, with the variable's value.
    MigRight(MigRight, String),
    /// The nodes of another driver, whose variable requests them.
    Gated,
}

/// IMEX channels, through which GPUs of several hosts share memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channels {
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

    pub fn variable(self) -> &'static str {
        match self {
            Self::Config => "NVIDIA_MIG_CONFIG_DEVICES",
            Self::Monitor => "NVIDIA_MIG_MONITOR_DEVICES",
        }
    }
}
