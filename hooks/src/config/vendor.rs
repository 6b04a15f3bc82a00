//! Vendor files. All mistakes of a file are reported together.
//!
//! `schema/vendor.schema.json` has the same rules for editors and other programs. `tests/schema.rs`
//! compares the two.

mod check;
mod reader;

use super::reader::Reader;
use crate::model::vendor::{Mistake, Vendor};
use crate::spec::json::Json;

pub use check::{check_kind, is_flag};

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
pub const INVENTORY_FIELDS: [&str; 5] =
    ["devices", "directories", "binaries", "libraries", "miscellaneous"];
/// Values of a flag that do not name a feature.
pub const RESERVED_FEATURES: [&str; 3] = ["all", "none", "void"];

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
