//! The configuration of a host: settings, vendor files and CDI specifications.

pub mod cdi;
pub mod folder;
pub mod nvidia;
pub mod policy;
mod reader;
pub mod settings;
pub mod toml_value;
pub mod vendor;
pub mod vendor_dir;
