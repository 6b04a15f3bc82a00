//! CDI specifications as admins and other programs write them into `/etc/cdi` and
//! `/var/run/cdi`: what one may say, and every mistake in it at once.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! They lie here beside the vendor files: files of a host's configuration, whose authors must
//! be trusted. What a container gets by them is `frontends::cdi`'s to say.

mod document;
pub mod folder;
pub mod name;
mod node;
mod reader;
mod yaml;

pub use document::{ContainerEdits, DeviceNode, Document, NamedDevice, Rdt};
pub use node::{Node, Syntax};
pub use reader::parse;
