//! One vendor file: what it may say, and every mistake in it at once.
//!
//! `schema/vendor.schema.json` says the same to editors and other programs;
//! `tests/schema.rs` holds the two together.

mod check;
mod reader;

use rustc_hash::FxHashMap;

use crate::discover::glob;
use crate::log::level::Level;
use crate::oci::json::Json;
use crate::request::Interface;

pub use check::{check_kind, is_flag};
use reader::Reader;

/// Names at the top of a vendor file.
pub const FIELDS: [&str; 12] = [
    "$schema",
    "version",
    "log_level",
    "activation_flag",
    "driver_feature",
    "inventory",
    "root",
    "sonames",
    "cdi_kind",
    "units",
    "interfaces",
    "aliases",
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// Device nodes that can be chosen one by one, as a pattern of names under `/dev`.
    pub units: Option<String>,
    /// Interfaces of others by which the vendor's devices can be asked for.
    pub interfaces: Vec<Interface>,
    /// Names by which those ask, and the features that they stand for.
    pub aliases: Vec<(String, Vec<String>)>,
}

impl Vendor {
    pub fn feature(&self, name: &str) -> Option<&Inventory> {
        self.inventory
            .iter()
            .find(|(feature, _)| feature == name)
            .map(|(_, inventory)| inventory)
    }

    /// True for a node, by its path, that can be chosen by itself. Every other node of a
    /// feature is a control node, which each choice gets. A file without `units` counts
    /// the nodes as units whose names end with a number.
    pub fn is_unit(&self, path: &str) -> bool {
        let name = check::device_name(path);
        match &self.units {
            Some(units) => glob::matches(check::device_name(units), name),
            None => name.ends_with(|c: char| c.is_ascii_digit()),
        }
    }

    /// The features that an interface's name stands for: the one that is called so, or
    /// those of an alias. Empty: there is nothing of that name.
    pub fn features_for<'a>(&'a self, name: &str) -> Vec<&'a str> {
        let mut names = self.feature_names();
        if let Some(name) = names.find(|known| *known == name) {
            return vec![name];
        }
        let mut aliases = self.aliases.iter();
        let alias = aliases.find(|(known, _)| known == name);
        alias
            .into_iter()
            .flat_map(|(_, features)| features.iter().map(String::as_str))
            .collect()
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

/// The first mistake of a file, and how many more there are.
pub fn summary(mistakes: &[Mistake]) -> String {
    match mistakes {
        [] => "it has mistakes".to_owned(),
        [only] => only.to_string(),
        [first, more @ ..] => format!("{first} (and {} more)", more.len()),
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
