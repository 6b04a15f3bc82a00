//! A vendor and its inventory: what a vendor file says, and what is known about a broken one.

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::log::Level;
use crate::model::edits::glob_matches;
use crate::model::request::Interface;

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
        self.inventory.iter().find(|(feature, _)| feature == name).map(|(_, inventory)| inventory)
    }

    /// True for the path of a node that can be chosen by itself. Every other node of a feature is a
    /// control node, which comes with each choice. In a file without `units`, nodes whose names end
    /// with a number are units.
    pub fn is_unit(&self, path: &str) -> bool {
        let name = device_name(path);
        match &self.units {
            Some(units) => glob_matches(device_name(units), name),
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
        alias.into_iter().flat_map(|(_, features)| features.iter().map(String::as_str)).collect()
    }

    pub fn feature_names(&self) -> impl Iterator<Item = &str> {
        self.inventory.iter().map(|(name, _)| name.as_str())
    }
}

/// One mistake, with its place in the file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Mistake {
    /// For example `inventory.compute.devices[2]`. Empty if the whole file is wrong.
    pub key: String,
    pub problem: String,
}

impl Mistake {
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
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

/// A vendor file as it was found, with or without mistakes.
#[derive(Debug)]
pub struct VendorFile {
    /// The file's name without `.json`.
    pub name: String,
    pub path: String,
    pub content: std::result::Result<Vendor, Broken>,
}

/// What is known about a file that can't be used.
#[derive(Debug, Default)]
pub struct Broken {
    pub mistakes: Vec<Mistake>,
    pub flags: Vec<String>,
    pub interfaces: Vec<Interface>,
}

impl VendorFile {
    pub fn flags(&self) -> &[String] {
        match &self.content {
            Ok(vendor) => std::slice::from_ref(&vendor.activation_flag),
            Err(broken) => &broken.flags,
        }
    }

    /// The interfaces that it answers, or appears to answer.
    pub fn interfaces(&self) -> &[Interface] {
        match &self.content {
            Ok(vendor) => &vendor.interfaces,
            Err(broken) => &broken.interfaces,
        }
    }

    /// The vendor, for commands that need a file without mistakes.
    /// Errors: the file has mistakes, the first of which is named.
    pub fn usable(&self) -> Result<&Vendor> {
        self.content.as_ref().map_err(|broken| {
            let mistake = broken.mistakes.first().map(|m| format!(": {m}"));
            let mistake = mistake.unwrap_or_default();
            Error::usage(format!("{} can't be used{mistake}", self.path))
                .resolve("`oci-decorator check` lists every mistake")
        })
    }

    pub fn kind(&self) -> String {
        let own = self.content.as_ref().ok();
        let own = own.and_then(|vendor| vendor.cdi_kind.clone());
        own.unwrap_or_else(|| format!("oci-decorator/{}", self.name))
    }
}

/// Features of a vendor file.
#[derive(Debug)]
pub struct Choice<'a> {
    pub file: &'a VendorFile,
    pub vendor: &'a Vendor,
    /// In the order of the request; each is in the inventory.
    pub features: Vec<&'a str>,
}

impl<'a> Choice<'a> {
    /// Every feature. `None`: the file has mistakes.
    pub fn whole(file: &'a VendorFile) -> Option<Self> {
        let vendor = file.content.as_ref().ok()?;
        Some(Self { file, vendor, features: vendor.feature_names().collect() })
    }
}

/// A device's name under `/dev`, with or without `/dev/` in front.
pub fn device_name(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}
