//! Vendor files. All mistakes of a file are reported together.
//!
//! `schema/vendor.schema.json` has the same rules for editors and other programs. `tests/schema.rs`
//! compares the two.

use std::path::Path;

use rustc_hash::{FxBuildHasher, FxHashMap};
use rustix::io::Errno;

use crate::config::reader::{self, is_device, is_kind, join, Json, Reader, Unusable};
use crate::error::{Error, Result};
use crate::log::Level;
use crate::model::edits::{glob_matches, has_open_bracket, is_pattern, lies_in};
use crate::model::request::Interface;
use crate::model::vendor::{device_name, Broken, Inventory, Mistake, Vendor, VendorFile};

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
pub const REQUIRED: [&str; 3] = ["activation_flag", "driver_feature", "inventory"];
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

impl Reader {
    fn vendor(&mut self, value: &Json) -> Vendor {
        let mut vendor = Vendor::default();
        let members = self.members("", value, &FIELDS);
        for (key, value) in &members {
            match *key {
                "version" => vendor.version = self.string(key, value),
                "log_level" => vendor.log_level = self.level(key, value),
                "activation_flag" => vendor.activation_flag = self.flag(key, value),
                "driver_feature" => {
                    vendor.driver_feature = self.strings(key, value, check_feature);
                }
                "inventory" => vendor.inventory = self.by_feature(key, value, Self::feature),
                "root" => vendor.root = self.checked(key, value, check_path),
                "sonames" => vendor.sonames = self.sonames(key, value),
                "cdi_kind" => vendor.cdi_kind = self.checked(key, value, check_kind),
                "units" => vendor.units = self.checked(key, value, check_units),
                "interfaces" => vendor.interfaces = self.interfaces(key, value),
                "aliases" => {
                    let names = |it: &mut Self, key: &str, value: &Json| {
                        it.strings(key, value, check_feature)
                    };
                    vendor.aliases = self.by_feature(key, value, names);
                }
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
        self.features_exist("driver_feature", &vendor.driver_feature, &vendor);
        self.units_exist(&vendor);
        for (alias, features) in &vendor.aliases {
            self.features_exist(&format!("aliases.{alias}"), features, &vendor);
        }
        vendor
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
            self.note(key, format!("unknown level {name:?}; known are {}", known.join(", ")));
            Level::Info
        })
    }

    fn checked(
        &mut self,
        key: &str,
        value: &Json,
        check: fn(&str) -> Option<String>,
    ) -> Option<String> {
        let text = self.string(key, value)?;
        if let Some(problem) = check(&text) {
            self.note(key, problem);
        }
        Some(text)
    }

    fn sonames(&mut self, key: &str, value: &Json) -> FxHashMap<String, String> {
        let members = self.members(key, value, &[]);
        let mut sonames = FxHashMap::with_capacity_and_hasher(members.len(), FxBuildHasher);
        for (path, value) in members {
            let Some(name) = value.text() else {
                self.expected(&join(key, path), "a string", value);
                continue;
            };
            for problem in check_target(path).into_iter().chain(check_soname(name)) {
                self.note(join(key, path), problem);
            }
            sonames.insert(path.to_owned(), name.to_owned());
        }
        sonames
    }

    fn interfaces(&mut self, key: &str, value: &Json) -> Vec<Interface> {
        let words = self.strings(key, value, |word| Interface::from_word(word).err());
        words.iter().flat_map(|word| Interface::from_word(word)).collect()
    }

    /// The members of an object, whose names are those of features.
    fn by_feature<T>(
        &mut self,
        key: &str,
        value: &Json,
        read: fn(&mut Self, &str, &Json) -> T,
    ) -> Vec<(String, T)> {
        let mut found = Vec::new();
        for (name, value) in self.members(key, value, &[]) {
            let place = join(key, name);
            if let Some(problem) = check_feature(name) {
                self.note(&place, problem);
            }
            found.push((name.to_owned(), read(self, &place, value)));
        }
        found
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

    /// Notes the names of a list that are no features.
    fn features_exist(&mut self, key: &str, names: &[String], vendor: &Vendor) {
        for (i, name) in names.iter().enumerate() {
            if check_feature(name).is_none() && vendor.feature(name).is_none() {
                let known = vendor.feature_names().collect::<Vec<_>>().join(", ");
                let problem = format!("{name:?} is not in the inventory, which has {known}");
                self.note(format!("{key}[{i}]"), problem);
            }
        }
    }

    fn units_exist(&mut self, vendor: &Vendor) {
        let Some(units) = vendor.units.as_deref() else {
            return;
        };
        let mut devices = vendor.inventory.iter().flat_map(|(_, f)| &f.devices);
        if check_units(units).is_none() && !devices.any(|device| may_match(units, device)) {
            self.note("units", format!("{units:?} matches no device of the inventory"));
        }
    }
}

/// True if the text can be the name of an environment variable.
pub fn is_flag(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Checks a feature's name, which ends the name of a CDI device too.
fn check_feature(name: &str) -> Option<String> {
    if !is_device(name) || name.contains(':') {
        Some(format!(
            "{name:?} is not a feature name: letters, digits, and '.', '_' and '-' between them"
        ))
    } else if RESERVED_FEATURES.contains(&name) {
        Some(format!("{name:?} has a meaning of its own as a value of the flag"))
    } else {
        None
    }
}

/// Checks a CDI kind
/// (<https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md#kind>). Names of one
/// letter make some readers panic, and a dot in the class is new in CDI 0.6.
pub fn check_kind(kind: &str) -> Option<String> {
    let parts = kind.split_once('/').filter(|_| is_kind(kind));
    let wellformed = parts
        .is_some_and(|(vendor, class)| vendor.len() > 1 && class.len() > 1 && !class.contains('.'));
    (!wellformed).then(|| format!("{kind:?} is not a kind of CDI, like vendor.com/class"))
}

/// What is wrong with the parts of a path after its leading slash.
fn check_parts(path: &str) -> Option<String> {
    // Compared by bytes, because every start reads hundreds of paths.
    let mut parts = path.as_bytes().split(|byte| *byte == b'/');
    if path.bytes().any(|byte| byte.is_ascii_control()) {
        Some(format!("{path:?} has a control character in it"))
    } else if parts.any(|part| matches!(part, b"" | b"." | b"..")) {
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

/// Checks a path that is mounted or created in a container.
fn check_target(path: &str) -> Option<String> {
    check_path(path).or_else(|| {
        ["/dev", "/proc", "/sys"]
            .iter()
            .find(|folder| lies_in(path, folder))
            .map(|folder| format!("{path:?} is in {folder}, which the runtime makes"))
    })
}

/// Checks the name of a library, which has no folder.
fn check_soname(name: &str) -> Option<String> {
    let plain = !name.contains('/') && check_parts(name).is_none();
    (!plain).then(|| format!("{name:?} is not the name of a library, like libcuda.so.1"))
}

/// Checks `units`, a pattern of device nodes.
fn check_units(units: &str) -> Option<String> {
    check_device(units).or_else(|| {
        // With a pattern that matches nothing, every node is a control node and given to everyone.
        (!is_pattern(units) || has_open_bracket(units))
            .then(|| format!("{units:?} is not a pattern of names under /dev, like nvidia[0-9]*"))
    })
}

/// False only if no node can match both the pattern and a line of `devices`.
fn may_match(units: &str, device: &str) -> bool {
    let (units, device) = (device_name(units), device_name(device));
    if !is_pattern(device) {
        return glob_matches(units, device);
    }
    // Only the beginnings of two patterns are compared, so that none is refused wrongly.
    let (one, other) = (literal(units), literal(device));
    one.starts_with(other) || other.starts_with(one)
}

/// The text before a pattern's first special character.
fn literal(pattern: &str) -> &str {
    pattern.split(['*', '?', '[']).next().unwrap_or_default()
}

fn check_device(device: &str) -> Option<String> {
    let name = device_name(device);
    if name.starts_with('/') {
        Some(format!("{device:?} is neither a name under /dev nor a path that begins with /dev/"))
    } else {
        check_parts(name)
    }
}

/// Reads every vendor file of the folder. A missing folder has none. If a user other than root may
/// change the folder or one above it, none of its files can be used.
/// Errors: the folder can't be read.
pub fn read(folder: &Path) -> Result<Vec<VendorFile>> {
    let is_wanted = |name: &str| name.strip_suffix(".json").is_some();
    let make = |name: &str, path: &Path, content: Result<_, Unusable>| VendorFile {
        content: content.map_err(broken),
        path: path.display().to_string(),
        name: name.trim_end_matches(".json").to_owned(),
    };
    match reader::read(folder, is_wanted, |_, text| parse(text), make) {
        Err(Errno::NOENT) => Ok(Vec::new()),
        files => files.map_err(|error| cannot_read(folder, error)),
    }
}

fn broken(file: Unusable) -> Broken {
    let mut flags = strings_in(&file.text, "activation_flag");
    flags.retain(|flag| is_flag(flag));
    let interfaces = strings_in(&file.text, "interfaces");
    let interfaces = interfaces.iter().flat_map(|word| Interface::from_word(word)).collect();
    Broken { flags, interfaces, mistakes: file.mistakes }
}

fn cannot_read(folder: &Path, error: Errno) -> Error {
    let shown = folder.display();
    let failed = Error::failed(format!("can't open {shown}: {error}"));
    match error {
        Errno::ACCESS => failed.resolve(format!("let every user read it: chmod a+rx {shown}")),
        Errno::NOTDIR => failed.resolve(format!("name a folder; see what it is: ls -ld {shown}")),
        _ => failed,
    }
}

/// The strings that a member holds, even if the text is not valid JSON.
fn strings_in(text: &str, key: &str) -> Vec<String> {
    if let Ok(Json::Object(members)) = serde_json::from_str(text) {
        let values = members.iter().filter(|(known, _)| known == key);
        let values = values.flat_map(|(_, value)| match value {
            Json::Array(items) => items.iter().collect(),
            value => vec![value],
        });
        return values.filter_map(Json::text).map(str::to_owned).collect();
    }
    let value = |rest: &'_ str| {
        let rest = rest.trim_start().strip_prefix(':')?.trim_start();
        let text = match rest.strip_prefix('[') {
            Some(list) => list.split(']').next()?,
            None => rest.strip_prefix('"')?.split('"').next()?,
        };
        Some(text.split('"').map(str::to_owned).collect::<Vec<_>>())
    };
    text.split(&format!("\"{key}\"")).skip(1).filter_map(value).flatten().collect()
}
