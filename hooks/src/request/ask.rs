//! What is asked for through an interface of others: NVIDIA's variables, AMD's, a
//! scheduler's.

use super::{Requirement, Source};
use crate::error::Result;

/// An interface of others that a vendor's file can answer.
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

    /// How kinds of CDI begin that are the vendor's.
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
    /// What people wrote, for messages: a variable or an annotation.
    pub by: String,
    pub units: Units,
    pub way: Way,
    /// What else was said. Errors count only where something is given at all.
    pub details: Result<Details>,
}

impl Ask {
    /// No container is refused for it.
    pub fn is_implied(&self) -> bool {
        self.details
            .as_ref()
            .is_ok_and(|details| details.is_implied)
    }
}

/// Which of a vendor's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Units {
    All,
    /// Those with these names, of whatever kind, each once.
    These(Vec<String>),
    /// Control nodes only.
    None,
}

/// By what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    VendorFile,
    /// Lists of the host's files, as NVIDIA's boards have them.
    Csv,
    /// Specifications of CDI, by the names that `units` has.
    Cdi,
    /// A hook, which is added to the spec.
    Hook,
}

// Each is a setting of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Features by the interface's names. Empty: the vendor file's `driver_feature`.
    pub capabilities: Vec<String>,
    /// They were named one by one: what is missing is worth a word.
    pub by_name: bool,
    pub requirements: Vec<Requirement>,
    pub channels: Channels,
    /// What asks for the channels, for messages.
    pub channels_by: String,
    pub mig_rights: Vec<MigRight>,
    /// The container's process joins the groups that own the nodes.
    pub groups: bool,
    /// Newer user space parts of the driver that the image has come before the host's.
    pub compat: bool,
    /// Every list of the host's files counts, not only those of the base (`Way::Csv`).
    pub every_list: bool,
    /// The host's setting asks, and no container did: what can't be given is left out.
    pub is_implied: bool,
}

/// Channels by which GPUs of several hosts share memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Channels {
    #[default]
    None,
    All,
    These(Vec<u32>),
}

/// What a container may do to the partitions of all GPUs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_has_a_word() {
        for (word, interface) in Interface::WORDS {
            assert_eq!(interface.word(), word);
            assert_eq!(Interface::from_word(word), Some(interface));
        }
        assert_eq!(Interface::from_word("Nvidia"), None);
    }
}
