//! Looks up device nodes, files and libraries of an inventory on the host.

pub mod answer;
pub mod capabilities;
pub mod elf;
pub mod facts;
pub mod glob;
pub mod host;
pub mod inventory;
pub mod libraries;
pub mod nodes;
pub mod related;
pub mod requirements;
pub mod reserved;
mod tree;
pub mod units;
