//! A specification as NVIDIA's own tool writes it: a device for each unit by its index and its
//! UUID, one for each part of it, and `all`; what they share lies in the common part.

mod nodes;

use serde_json::{json, Map, Value};

use nodes::Nodes;

use super::devices::{device_node, hook, mount};
use crate::apply::spec::hooks::own_hook;
use crate::config::settings::Settings;
use crate::config::vendor::Vendor;
use crate::config::vendor_dir;
use crate::decide::units::{Part, Unit};
use crate::decide::{Choice, VendorFile};
use crate::discover::facts::{Facts, Found};
use crate::discover::host::Host;
use crate::discover::inventory::{collect_one, Report};
use crate::edits::{Device, Edits, Hook};
use crate::error::{Error, Result};
use crate::request::Interface;
use crate::rootfs::split;

/// The kind that NVIDIA's users name.
pub const KIND: (&str, &str) = ("nvidia.com", "gpu");
/// Names of vendor files that are NVIDIA's without saying so.
const FILES: [&str; 2] = ["nvidia", "oci-nvidia"];
/// Keeps NVIDIA's other front ends from giving the container devices as well.
const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// What devices are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `0`, and `0:1` for a part.
    Index,
    /// `GPU-…`, and `MIG-…` for a part.
    Uuid,
    /// `gpu0`, and `mig0:1` for a part.
    TypeIndex,
}

impl Naming {
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "index" => Some(Self::Index),
            "uuid" => Some(Self::Uuid),
            "type-index" => Some(Self::TypeIndex),
            _ => None,
        }
    }

    fn unit(self, unit: &Unit) -> Option<String> {
        match self {
            Self::Index => Some(unit.index.to_string()),
            Self::Uuid => unit.uuid.clone(),
            Self::TypeIndex => Some(format!("gpu{}", unit.index)),
        }
    }

    fn part(self, unit: &Unit, number: u32, part: &Part) -> Option<String> {
        match self {
            Self::Index => Some(format!("{}:{number}", unit.index)),
            Self::Uuid => part.uuid.clone(),
            Self::TypeIndex => Some(format!("mig{}:{number}", unit.index)),
        }
    }
}

/// What is to be generated.
#[derive(Debug)]
pub struct Request<'a> {
    pub settings: &'a Settings,
    pub vendor: &'a str,
    pub class: &'a str,
    pub namings: &'a [Naming],
    /// Verbs of hooks that are left out; `all` for every one.
    pub disabled_hooks: &'a [String],
}

/// The specification. Errors: no vendor file of NVIDIA's, its driver isn't installed, or this
/// host has none of its devices.
pub fn generate(request: &Request) -> Result<Value> {
    let kind = format!("{}/{}", request.vendor, request.class);
    if !crate::config::cdi::name::is_kind(&kind) {
        return Err(Error::usage(format!(
            "{kind:?} is not a kind of CDI, like vendor.com/class"
        ))
        .resolve("give other words to --vendor and --class"));
    }
    let files = vendor_dir::read(&request.settings.config_dir)?;
    let (file, vendor) = choose(&files, request.settings)?;
    let host = Host::open(&request.settings.root)?;
    let choice = Choice {
        file,
        vendor,
        features: vendor.feature_names().collect(),
    };
    let (mut edits, _) = collect_one(&host, &choice, Report::Missing)?;
    edits.sort();
    let facts = facts(&host, &file.name)?;
    let nodes = Nodes::sort(&host, vendor, edits.devices.clone(), facts.as_ref());
    let devices = devices(&nodes, request.namings);
    if devices.is_empty() {
        return Err(
            Error::not_found("this host has no device node that can be chosen")
                .resolve("load the driver; `oci-decorator check` lists what is missing"),
        );
    }
    let hooks = hooks(&edits, facts.as_ref(), request.disabled_hooks)?;
    let common = common(&nodes.common, &edits, &hooks);
    let all_nodes = nodes.units.iter().flat_map(|(_, nodes)| nodes);
    let groups = needs_groups(nodes.common.iter().chain(all_nodes));
    Ok(json!({
        "cdiVersion": if groups { "0.7.0" } else { super::VERSION },
        "kind": kind,
        "devices": devices,
        "containerEdits": common,
    }))
}

/// The facts about a vendor's devices. `None`: the host has no such file, so that the number
/// of a node is its index. Errors: the file is broken, or others than root may have written it.
fn facts(host: &Host, vendor: &str) -> Result<Option<Facts>> {
    match host.facts(vendor) {
        Found::Absent => Ok(None),
        Found::Facts(facts) => Ok(Some(facts)),
        Found::Broken(problem) => Err(Error::failed(format!(
            "the device facts can't be used: {problem}"
        ))
        .resolve("write them again: `provision devices refresh`")),
    }
}

/// NVIDIA's vendor file: the one that says so, else the one with NVIDIA's kind or name.
fn choose<'a>(
    files: &'a [VendorFile],
    settings: &Settings,
) -> Result<(&'a VendorFile, &'a Vendor)> {
    let own_kind = format!("{}/{}", KIND.0, KIND.1);
    // A broken one that says so is an error here, as it is at a start.
    let answers = |file: &&VendorFile| match &file.content {
        Ok(vendor) => vendor.interfaces.contains(&Interface::Nvidia),
        Err(broken) => broken.interfaces.contains(&Interface::Nvidia),
    };
    let has_kind = |file: &&VendorFile| {
        let vendor = file.content.as_ref().ok();
        vendor.is_some_and(|vendor| vendor.cdi_kind.as_deref() == Some(&own_kind))
    };
    let has_name = |file: &&VendorFile| FILES.contains(&file.name.as_str());
    let found = files
        .iter()
        .find(answers)
        .or_else(|| files.iter().find(has_kind))
        .or_else(|| files.iter().find(has_name));
    let Some(file) = found else {
        let folder = settings.config_dir.display();
        return Err(
            Error::not_found(format!("{folder} has no vendor file for {own_kind}"))
                .resolve("install the driver with `provision apply`, or write an nvidia.json"),
        );
    };
    let vendor = file.content.as_ref().map_err(|broken| {
        let mistake = broken.mistakes.first().map(|m| format!(": {m}"));
        let mistake = mistake.unwrap_or_default();
        Error::usage(format!("{} can't be used{mistake}", file.path))
            .resolve("`oci-decorator check` lists every mistake")
    })?;
    Ok((file, vendor))
}

fn devices(nodes: &Nodes, namings: &[Naming]) -> Vec<Value> {
    let mut devices = Vec::new();
    let mut add = |name: Option<String>, own: &[&Device]| {
        let Some(name) = name.filter(|name| crate::config::cdi::name::is_device(name)) else {
            return;
        };
        if !devices.iter().any(|device: &Value| device["name"] == name) {
            devices.push(json!({"name": name, "containerEdits": node_edits(own)}));
        }
    };
    for (unit, own) in &nodes.units {
        let own: Vec<&Device> = own.iter().collect();
        // Whoever has a device has its parts, as at a start.
        let is_of_it = |d: &&Device| unit.parts.iter().any(|part| part.nodes.contains(&d.path));
        let of_it = nodes.others.iter().filter(is_of_it);
        let whole: Vec<&Device> = own.iter().copied().chain(of_it).collect();
        for naming in namings {
            add(naming.unit(unit), &whole);
        }
        for (place, part) in unit.parts.iter().enumerate() {
            // Facts without NVML may lack the driver's number.
            let number = part.index.or_else(|| u32::try_from(place).ok());
            let is_its = |d: &&Device| part.nodes.contains(&d.path);
            let parts = nodes.others.iter().filter(is_its);
            let with: Vec<&Device> = own.iter().copied().chain(parts).collect();
            for naming in namings {
                add(naming.part(unit, number.unwrap_or(u32::MAX), part), &with);
            }
        }
    }
    let units = nodes.units.iter().flat_map(|(_, own)| own);
    let all: Vec<&Device> = units.chain(&nodes.others).collect();
    if !all.is_empty() {
        add(Some("all".to_owned()), &all);
    }
    devices
}

fn node_edits(nodes: &[&Device]) -> Map<String, Value> {
    let mut members = Map::new();
    let listed = nodes.iter().map(|d| device_node(d)).collect();
    members.insert("deviceNodes".to_owned(), Value::Array(listed));
    let groups = groups(nodes.iter().copied());
    if !groups.is_empty() {
        members.insert("additionalGids".to_owned(), json!(groups));
    }
    members
}

/// Groups that a process must have to open the nodes.
fn groups<'a>(nodes: impl Iterator<Item = &'a Device>) -> Vec<u32> {
    let closed = nodes.filter(|d| d.mode & 0o006 != 0o006 && d.mode & 0o060 == 0o060);
    let mut groups: Vec<u32> = closed
        .filter_map(|d| d.gid.filter(|gid| *gid != 0))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn needs_groups<'a>(nodes: impl Iterator<Item = &'a Device>) -> bool {
    !groups(nodes).is_empty()
}

fn common(nodes: &[Device], edits: &Edits, hooks: &[Hook]) -> Map<String, Value> {
    let nodes: Vec<&Device> = nodes.iter().collect();
    let mut members = Map::new();
    members.insert("env".to_owned(), json!([VOID]));
    if !nodes.is_empty() {
        members.extend(node_edits(&nodes));
    }
    if !edits.mounts.is_empty() {
        let mounts = edits.mounts.iter().map(mount).collect();
        members.insert("mounts".to_owned(), Value::Array(mounts));
    }
    if !hooks.is_empty() {
        members.insert("hooks".to_owned(), hooks.iter().map(hook).collect());
    }
    members
}

/// Ours, in the words that NVIDIA's has.
fn hooks(edits: &Edits, facts: Option<&Facts>, disabled: &[String]) -> Result<Vec<Hook>> {
    let mut calls: Vec<Vec<String>> = Vec::new();
    if let Some(version) = facts.and_then(|facts| facts.driver_version.as_deref()) {
        let mut words = vec![
            "enable-cuda-compat".to_owned(),
            format!("--host-driver-version={version}"),
        ];
        if let Some(cuda) = facts.and_then(|facts| facts.cuda_version.as_deref()) {
            words.push(format!("--host-cuda-version={cuda}"));
        }
        calls.push(words);
    }
    let folders = edits
        .libraries
        .iter()
        .filter_map(|library| split(&library.path));
    let mut folders: Vec<&str> = folders
        .map(|(folder, _)| folder.trim_end_matches('/'))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    if !folders.is_empty() {
        let mut words = vec!["update-ldcache".to_owned()];
        for folder in folders {
            words.extend(["--folder".to_owned(), folder.to_owned()]);
        }
        calls.push(words);
    }
    calls.push(vec!["disable-device-node-modification".to_owned()]);
    let is_on = |words: &Vec<String>| !disabled.iter().any(|d| d == "all" || *d == words[0]);
    let hook = |words: Vec<String>| {
        let args = ["nvidia-cdi-hook".to_owned()]
            .into_iter()
            .chain(words)
            .collect();
        own_hook("createContainer", args)
    };
    calls.into_iter().filter(is_on).map(hook).collect()
}
