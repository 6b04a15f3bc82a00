//! Reads the CDI specifications that admins and other programs write into `/etc/cdi` and
//! `/var/run/cdi`. All mistakes of a file are reported together.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! Like vendor files, they belong to a host's configuration, and their authors must be trusted.
//! `frontends::cdi` decides what a container gets from them.

mod document;
pub mod folder;
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

/// The parts of a name: `vendor.com/class=device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qualified<'a> {
    /// `vendor.com/class`.
    pub kind: &'a str,
    pub device: &'a str,
}

/// Reads a name. `None`: it is not a CDI name.
pub fn qualified(text: &str) -> Option<Qualified<'_>> {
    let (kind, device) = text.split_once('=')?;
    (is_kind(kind) && is_device(device)).then_some(Qualified { kind, device })
}

/// True for `vendor.com/class`.
pub fn is_kind(text: &str) -> bool {
    let is_part =
        |part: &str| part.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(part, "_-.");
    text.split_once('/').is_some_and(|(vendor, class)| is_part(vendor) && is_part(class))
}

/// True for the name of a device within its kind.
pub fn is_device(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_word(text, "_-.:")
}

fn is_word(text: &str, others: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.ends_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of one letter are names, although another reader's program crashes with them.
    #[test]
    fn names_and_texts_that_are_not_names() {
        let names =
            "nvidia.com/gpu=0 nvidia.com/gpu=all nvidia.com/gpu=0:1 nvidia.com/gpu=GPU-0a.b_c \
            a/b=c v/c.d=1 V-1_x.y/C-1_z=dev";
        for text in names.split_whitespace() {
            let found = qualified(text).map(|name| format!("{}={}", name.kind, name.device));
            assert_eq!(found.as_deref(), Some(text));
        }
        let others = "all 0 nvidia.com/gpu nvidia.com/gpu= nvidia.com=0 /gpu=0 nvidia.com/=0 \
            1nvidia.com/gpu=0 _v/gpu=0 v-/gpu=0 v/1gpu=0 v/gpu-=0 v/gpu=-0 v/gpu=0- v/gpu=a=b \
            v/gpu/x=0 v/gpu=\u{e9} \u{e9}/gpu=0";
        for text in others.split_whitespace().chain(["", "v/gpu=a b", " v/gpu=0"]) {
            assert_eq!(qualified(text), None, "{text}");
        }
    }
}
