//! What an admin or `provision` configures: settings, vendor files, and whose files count.

pub mod cdi;
pub mod nvidia;
pub mod policy;
pub mod settings;
pub mod trust;
pub mod vendor;
pub mod vendor_dir;
