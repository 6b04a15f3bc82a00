//! Vendor files. All mistakes of a file are reported together.
//!
//! `schema/vendor.schema.json` has the same rules for editors and other programs. `tests/schema.rs`
//! compares the two.

mod check;
mod reader;

use rustc_hash::FxHashMap;

use crate::host::glob;
use crate::log::level::Level;
use crate::model::request::Interface;
use crate::spec::json::Json;

pub use check::{check_kind, is_flag};
use reader::Reader;

/// The members of a vendor file.
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
/// The required members.
pub const REQUIRED: [&str; 3] = ["activation_flag", "driver_feature", "inventory"];
/// The members of a feature of the inventory.
pub const INVENTORY_FIELDS: [&str; 5] = [
    "devices",
    "directories",
    "binaries",
    "libraries",
    "miscellaneous",
];
/// Values of a flag that do not name a feature.
pub const RESERVED_FEATURES: [&str; 3] = ["all", "none", "void"];

/// The files and devices of one feature.
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
    /// Folder of the host with the inventory's files.
    pub root: Option<String>,
    /// The sonames of libraries of the host's own architecture, by their paths. They are copied
    /// from the headers, so that a start does not have to read these.
    pub sonames: FxHashMap<String, String>,
    /// The CDI kind of the vendor's devices: the part of a name before the `=`.
    pub cdi_kind: Option<String>,
    /// The device nodes that can be chosen one by one: a pattern of names under `/dev`.
    pub units: Option<String>,
    /// Other programs' interfaces that can ask for the vendor's devices.
    pub interfaces: Vec<Interface>,
    /// Names that these interfaces use, and the features that each stands for.
    pub aliases: Vec<(String, Vec<String>)>,
}

impl Vendor {
    pub fn feature(&self, name: &str) -> Option<&Inventory> {
        self.inventory
            .iter()
            .find(|(feature, _)| feature == name)
            .map(|(_, inventory)| inventory)
    }

    /// True for the path of a node that can be chosen by itself. Every other node of a feature is a
    /// control node, which comes with each choice. In a file without `units`, nodes whose names end
    /// with a number are units.
    pub fn is_unit(&self, path: &str) -> bool {
        let name = check::device_name(path);
        match &self.units {
            Some(units) => glob::matches(check::device_name(units), name),
            None => name.ends_with(|c: char| c.is_ascii_digit()),
        }
    }

    /// The features that a name of an interface stands for: the feature of that name, or those of
    /// an alias. Empty: the file has neither.
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

/// One mistake, with its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// For example `inventory.compute.devices[2]`. Empty if the whole file is wrong.
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

/// Reads the text of a vendor file. Errors: every mistake in it.
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
