//! One vendor file: what it may say, and every mistake in it at once.
//!
//! `schema/vendor.schema.json` says the same to editors and other programs;
//! `tests/schema.rs` holds the two together.

mod check;
mod reader;

use rustc_hash::FxHashMap;

use crate::json::Json;
use crate::level::Level;

pub use check::{check_kind, is_flag};
use reader::Reader;

/// Names at the top of a vendor file.
pub const FIELDS: [&str; 9] = [
    "$schema",
    "version",
    "log_level",
    "activation_flag",
    "driver_feature",
    "inventory",
    "root",
    "sonames",
    "cdi_kind",
];
/// Those that must be there.
pub const REQUIRED: [&str; 3] = ["activation_flag", "driver_feature", "inventory"];
/// Names within a feature of the inventory.
pub const INVENTORY_FIELDS: [&str; 5] = [
    "devices",
    "directories",
    "binaries",
    "libraries",
    "miscellaneous",
];
/// Values of a flag that mean something else than a feature.
pub const RESERVED_FEATURES: [&str; 3] = ["all", "none", "void"];

/// What one feature needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    pub devices: Vec<String>,
    pub directories: Vec<String>,
    pub binaries: Vec<String>,
    pub libraries: Vec<String>,
    pub miscellaneous: Vec<String>,
}

impl Inventory {
    /// Every path that is bind-mounted.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        [&self.binaries, &self.libraries, &self.miscellaneous]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// A vendor file without mistakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vendor {
    pub version: Option<String>,
    pub log_level: Level,
    pub activation_flag: String,
    pub driver_feature: Vec<String>,
    /// In the order of the file.
    pub inventory: Vec<(String, Inventory)>,
    /// Host folder under which the inventory's files lie.
    pub root: Option<String>,
    /// Names by which the loader is to find libraries of the host's own architecture, by
    /// their paths: what their headers say, so that a start needn't read them.
    pub sonames: FxHashMap<String, String>,
    /// What the vendor's devices are called in CDI, before the `=`.
    pub cdi_kind: Option<String>,
}

impl Vendor {
    pub fn feature(&self, name: &str) -> Option<&Inventory> {
        self.inventory
            .iter()
            .find(|(feature, _)| feature == name)
            .map(|(_, inventory)| inventory)
    }

    pub fn feature_names(&self) -> impl Iterator<Item = &str> {
        self.inventory.iter().map(|(name, _)| name.as_str())
    }
}

/// One mistake: where, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// `inventory.compute.devices[2]`; empty when it is about the whole file.
    pub key: String,
    pub problem: String,
}

impl Mistake {
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.key, self.problem)
        }
    }
}

/// Reads a vendor file's text. Errors: every mistake that it has.
pub fn parse(text: &str) -> Result<Vendor, Vec<Mistake>> {
    let value: Json = serde_json::from_str(text)
        .map_err(|e| vec![Mistake::new("", format!("not valid JSON: {e}"))])?;
    let mut reader = Reader::default();
    let vendor = reader.vendor(&value);
    if reader.mistakes.is_empty() {
        Ok(vendor)
    } else {
        Err(reader.mistakes)
    }
}

#[cfg(test)]
mod tests;
