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
mod syntax;
mod yaml;

pub use document::{ContainerEdits, DeviceNode, Document, NamedDevice, Rdt};
pub use reader::parse;
pub use syntax::Syntax;
