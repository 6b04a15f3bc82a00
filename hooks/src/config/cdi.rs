//! Reads the CDI specifications that admins and other programs write into `/etc/cdi` and
//! `/var/run/cdi`. All mistakes of a file are reported together.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! Like vendor files, they belong to a host's configuration, and their authors must be trusted.
//! `frontends::cdi` decides what a container gets from them.

mod document;
pub mod folder;
pub mod name;
mod reader;
mod yaml;

pub use document::{ContainerEdits, DeviceNode, Document, NamedDevice, Rdt};
pub use reader::parse;

use crate::spec::json::Json;

/// The syntax of a file.
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
            Self::Yaml => yaml::parse(text).map_err(|e| format!("not valid YAML: {e}")),
        }
    }
}
