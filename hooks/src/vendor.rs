//! One vendor file: what it may say, and every mistake in it at once.
//!
//! `schema/vendor.schema.json` says the same to editors and other programs;
//! `tests/schema.rs` holds the two together.

use std::collections::HashSet;

use crate::json::Json;
use crate::level::Level;

/// Names at the top of a vendor file.
pub const FIELDS: [&str; 7] = [
    "$schema",
    "version",
    "log_level",
    "activation_flag",
    "driver_feature",
    "inventory",
    "root",
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

/// Walks the tree and notes what is wrong; what it returns counts only when nothing is.
#[derive(Default)]
struct Reader {
    mistakes: Vec<Mistake>,
}

impl Reader {
    fn note(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.mistakes.push(Mistake::new(key, problem));
    }

    fn vendor(&mut self, value: &Json) -> Vendor {
        let mut vendor = Vendor {
            version: None,
            log_level: Level::Info,
            activation_flag: String::new(),
            driver_feature: Vec::new(),
            inventory: Vec::new(),
            root: None,
        };
        let members = self.members("", value, &FIELDS);
        for (key, value) in &members {
            match *key {
                "version" => vendor.version = self.string(key, value),
                "log_level" => vendor.log_level = self.level(key, value),
                "activation_flag" => vendor.activation_flag = self.flag(key, value),
                "driver_feature" => {
                    vendor.driver_feature = self.strings(key, value, check_feature);
                }
                "inventory" => vendor.inventory = self.inventory(key, value),
                "root" => vendor.root = self.root(key, value),
                "$schema" => _ = self.string(key, value),
                _ => {}
            }
        }
        if matches!(value, Json::Object(_)) {
            for required in REQUIRED {
                if !members.iter().any(|(key, _)| *key == required) {
                    self.note(required, "missing");
                }
            }
        }
        self.defaults_exist(&vendor);
        vendor
    }

    /// The members of an object, without the unknown and the repeated ones.
    fn members<'a>(
        &mut self,
        key: &str,
        value: &'a Json,
        known: &[&str],
    ) -> Vec<(&'a str, &'a Json)> {
        let Json::Object(members) = value else {
            self.expected(key, "an object", value);
            return Vec::new();
        };
        let mut seen = HashSet::new();
        let mut kept = Vec::new();
        for (name, value) in members {
            let place = join(key, name);
            if !seen.insert(name.as_str()) {
                self.note(place, "given twice");
            } else if !known.is_empty() && !known.contains(&name.as_str()) {
                self.note(
                    place,
                    format!("unknown field; known are {}", known.join(", ")),
                );
            } else {
                kept.push((name.as_str(), value));
            }
        }
        kept
    }

    fn expected(&mut self, key: &str, what: &str, found: &Json) {
        self.note(key, format!("expected {what}, found {}", found.kind()));
    }

    fn string(&mut self, key: &str, value: &Json) -> Option<String> {
        if value.text().is_none() {
            self.expected(key, "a string", value);
        }
        value.text().map(str::to_owned)
    }

    fn flag(&mut self, key: &str, value: &Json) -> String {
        let flag = self.string(key, value).unwrap_or_default();
        if value.text().is_some() && !is_flag(&flag) {
            self.note(key, format!("{flag:?} is not the name of an environment variable: letters, digits and _, no digit first"));
        }
        flag
    }

    fn level(&mut self, key: &str, value: &Json) -> Level {
        let Some(name) = self.string(key, value) else {
            return Level::Info;
        };
        Level::from_syslog(&name).unwrap_or_else(|| {
            let known: Vec<_> = Level::syslog_names().collect();
            self.note(
                key,
                format!("unknown level {name:?}; known are {}", known.join(", ")),
            );
            Level::Info
        })
    }

    fn root(&mut self, key: &str, value: &Json) -> Option<String> {
        let root = self.string(key, value)?;
        if let Some(problem) = check_path(&root) {
            self.note(key, problem);
        }
        Some(root)
    }

    fn strings(
        &mut self,
        key: &str,
        value: &Json,
        check: fn(&str) -> Option<String>,
    ) -> Vec<String> {
        let Json::Array(items) = value else {
            self.expected(key, "a list of strings", value);
            return Vec::new();
        };
        let mut strings = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let place = format!("{key}[{i}]");
            if let Some(text) = self.string(&place, item) {
                if let Some(problem) = check(&text) {
                    self.note(place, problem);
                }
                strings.push(text);
            }
        }
        strings
    }

    fn inventory(&mut self, key: &str, value: &Json) -> Vec<(String, Inventory)> {
        let mut inventory = Vec::new();
        for (name, value) in self.members(key, value, &[]) {
            let place = join(key, name);
            if let Some(problem) = check_feature(name) {
                self.note(&place, problem);
            }
            inventory.push((name.to_owned(), self.feature(&place, value)));
        }
        inventory
    }

    fn feature(&mut self, key: &str, value: &Json) -> Inventory {
        let mut feature = Inventory::default();
        for (name, value) in self.members(key, value, &INVENTORY_FIELDS) {
            let place = join(key, name);
            match name {
                "devices" => feature.devices = self.strings(&place, value, check_device),
                "directories" => feature.directories = self.strings(&place, value, check_target),
                "binaries" => feature.binaries = self.strings(&place, value, check_target),
                "libraries" => feature.libraries = self.strings(&place, value, check_target),
                _ => feature.miscellaneous = self.strings(&place, value, check_target),
            }
        }
        feature
    }

    fn defaults_exist(&mut self, vendor: &Vendor) {
        for (i, name) in vendor.driver_feature.iter().enumerate() {
            if check_feature(name).is_none() && vendor.feature(name).is_none() {
                let known: Vec<_> = vendor.feature_names().collect();
                let known = known.join(", ");
                self.note(
                    format!("driver_feature[{i}]"),
                    format!("{name:?} is not in the inventory, which has {known}"),
                );
            }
        }
    }
}

fn join(key: &str, name: &str) -> String {
    if key.is_empty() {
        name.to_owned()
    } else {
        format!("{key}.{name}")
    }
}

/// True for what can be the name of an environment variable.
pub fn is_flag(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_feature(name: &str) -> Option<String> {
    let wellformed = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !wellformed {
        Some(format!(
            "{name:?} is not a feature name: letters, digits, '.', '_' and '-'"
        ))
    } else if RESERVED_FEATURES.contains(&name) {
        Some(format!(
            "{name:?} has a meaning of its own as a value of the flag"
        ))
    } else {
        None
    }
}

/// What is wrong with the parts of a path, leading slash aside.
fn check_parts(path: &str) -> Option<String> {
    if path.chars().any(|c| c.is_ascii_control()) {
        Some(format!("{path:?} has a control character in it"))
    } else if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        Some(format!("{path:?} has an empty part, '.' or '..' in it"))
    } else {
        None
    }
}

fn check_path(path: &str) -> Option<String> {
    match path.strip_prefix('/') {
        None => Some(format!("{path:?} is not an absolute path")),
        Some(rest) => check_parts(rest),
    }
}

/// A path that may be mounted over or created in a container.
fn check_target(path: &str) -> Option<String> {
    check_path(path).or_else(|| {
        ["/dev", "/proc", "/sys"]
            .iter()
            .find(|folder| crate::edits::lies_in(path, folder))
            .map(|folder| format!("{path:?} lies in {folder}, which the runtime makes"))
    })
}

fn check_device(device: &str) -> Option<String> {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    if name.starts_with('/') {
        Some(format!(
            "{device:?} is neither a name under /dev nor a path that begins with /dev/"
        ))
    } else {
        check_parts(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        parse(text)
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn both_shipped_configs_are_read() {
        let nvidia = parse(include_str!("../vendors/oci-nvidia.json")).unwrap();
        assert_eq!(nvidia.activation_flag, "OCI_NVIDIA");
        assert_eq!(nvidia.driver_feature, ["compute", "utility"]);
        assert_eq!(nvidia.feature("compute").unwrap().libraries.len(), 6);
        let onload = parse(include_str!("../vendors/oci-onload.json")).unwrap();
        assert_eq!(onload.activation_flag, "OCI_SOLARFLARE");
        assert_eq!(onload.log_level, Level::Debug);
    }

    #[test]
    fn every_mistake_is_reported_with_its_key() {
        let text = r#"{
            "version": 3, "log_level": "LOUD", "colour": "red",
            "driver_feature": ["compute", "graphics"],
            "inventory": {
                "all": {},
                "compute": {"devices": ["ok", 1, "../sda", "/etc/x"], "fans": [], "binaries": "x"},
                "compute": {}
            },
            "root": "relative"
        }"#;
        let found = mistakes(text);
        let expected = [
            "version: expected a string, found a number",
            "log_level: unknown level \"LOUD\"",
            "colour: unknown field",
            "inventory.all: \"all\" has a meaning of its own",
            "inventory.compute.devices[1]: expected a string, found a number",
            "inventory.compute.devices[2]: \"../sda\" has an empty part",
            "inventory.compute.devices[3]: \"/etc/x\" is neither a name under /dev",
            "inventory.compute.fans: unknown field",
            "inventory.compute.binaries: expected a list of strings, found a string",
            "inventory.compute: given twice",
            "root: \"relative\" is not an absolute path",
            "activation_flag: missing",
            "driver_feature[1]: \"graphics\" is not in the inventory, which has all, compute",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for start in expected {
            assert!(
                found.iter().any(|f| f.starts_with(start)),
                "{start}\n{found:#?}"
            );
        }
    }

    #[test]
    fn what_is_no_object_is_one_mistake() {
        assert_eq!(mistakes("[]"), ["expected an object, found a list"]);
        assert_eq!(mistakes("").len(), 1);
        assert!(mistakes(&"[".repeat(1_000_000))[0].contains("recursion limit"));
    }

    #[test]
    fn targets_stay_out_of_what_the_runtime_makes() {
        for path in [
            "/proc/x",
            "/sys",
            "/dev/null",
            "/",
            "/a/../b",
            "/a//b",
            "/a/",
            "a",
            "/a\nb",
        ] {
            assert!(check_target(path).is_some(), "{path:?}");
        }
        for path in ["/process", "/usr/lib64/libcuda.so", "/opt/a b/ü"] {
            assert_eq!(check_target(path), None, "{path:?}");
        }
    }
}
