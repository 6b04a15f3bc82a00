//! Turns the JSON of a vendor file into a [`Vendor`], and collects every mistake.

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::check::{
    check_device, check_feature, check_kind, check_path, check_soname, check_target, check_units,
    is_flag, may_match,
};
use super::{FIELDS, INVENTORY_FIELDS, REQUIRED};
use crate::config::reader::{join, Reader};
use crate::log::level::Level;
use crate::model::request::Interface;
use crate::model::vendor::{Inventory, Vendor};
use crate::spec::json::Json;

impl Reader {
    pub(super) fn vendor(&mut self, value: &Json) -> Vendor {
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
                "inventory" => vendor.inventory = self.inventory(key, value),
                "root" => vendor.root = self.checked(key, value, check_path),
                "sonames" => vendor.sonames = self.sonames(key, value),
                "cdi_kind" => vendor.cdi_kind = self.checked(key, value, check_kind),
                "units" => vendor.units = self.checked(key, value, check_units),
                "interfaces" => vendor.interfaces = self.interfaces(key, value),
                "aliases" => vendor.aliases = self.aliases(key, value),
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
        self.units_exist(&vendor);
        self.aliases_exist(&vendor);
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
        let words = self.strings(key, value, |word| {
            let known = Interface::WORDS.map(|(word, _)| word).join(", ");
            let is_known = Interface::from_word(word).is_some();
            (!is_known).then(|| format!("unknown interface {word:?}; known are {known}"))
        });
        let known = words.iter().filter_map(|word| Interface::from_word(word));
        known.collect()
    }

    fn aliases(&mut self, key: &str, value: &Json) -> Vec<(String, Vec<String>)> {
        let mut aliases = Vec::new();
        for (name, value) in self.members(key, value, &[]) {
            let place = join(key, name);
            if let Some(problem) = check_feature(name) {
                self.note(&place, problem);
            }
            let features = self.strings(&place, value, check_feature);
            aliases.push((name.to_owned(), features));
        }
        aliases
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

    fn aliases_exist(&mut self, vendor: &Vendor) {
        for (alias, features) in &vendor.aliases {
            let unknown = features.iter().enumerate().filter(|(_, name)| {
                check_feature(name).is_none() && vendor.feature(name).is_none()
            });
            for (i, name) in unknown {
                let known: Vec<_> = vendor.feature_names().collect();
                let known = known.join(", ");
                let problem = format!("{name:?} is not in the inventory, which has {known}");
                self.note(format!("aliases.{alias}[{i}]"), problem);
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
