//! Looks up on the host what an inventory names: device nodes, files, libraries.

pub mod answer;
pub mod capabilities;
pub mod elf;
pub mod facts;
pub mod glob;
pub mod host;
pub mod inventory;
pub mod libraries;
pub mod requirements;
pub mod reserved;
mod tree;
pub mod units;
