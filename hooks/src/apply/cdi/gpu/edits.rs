//! The edits of a specification: those of each device, and those that all devices share.

use rustc_hash::FxHashSet;
use serde_json::{json, Map, Value};

use super::units::{number, Chosen, Given};
use super::{Request, VOID};
use crate::apply::cdi::devices::{device_node, hook, mount};
use crate::apply::spec::hooks::own_hook;
use crate::config::cdi::name::is_device;
use crate::error::Result;
use crate::host::facts::Facts;
use crate::model::edits::paths::split;
use crate::model::edits::{Device, Edits, Hook};

pub(super) fn devices(given: &Given, chosen: &Chosen, request: &Request) -> Vec<Value> {
    let mut devices = Vec::new();
    let mut all: Vec<&Device> = Vec::new();
    let mut add = |names: &mut dyn Iterator<Item = Option<String>>, own: &[&Device]| {
        for name in names.flatten() {
            let is_there = devices.iter().any(|device: &Value| device["name"] == name);
            if is_device(&name) && !is_there {
                devices.push(json!({"name": name, "containerEdits": node_edits(own)}));
            }
        }
    };
    for (at, unit) in given.units() {
        if chosen.has_unit(unit) {
            // A whole device comes with its parts, as at a start.
            let whole = given.of_unit(at, None);
            add(&mut request.namings.iter().map(|by| by.unit(unit)), &whole);
            all.extend(whole);
        }
        for (place, part) in unit.parts.iter().enumerate() {
            if chosen.has_part(unit, place, part) {
                let number = number(place, part);
                let own = given.of_unit(at, Some(place));
                let mut names = request.namings.iter().map(|by| by.part(unit, number, part));
                add(&mut names, &own);
                all.extend(own);
            }
        }
    }
    if matches!(chosen, Chosen::All) {
        all = given.own().collect();
    }
    if !request.without_all {
        let mut known = FxHashSet::default();
        all.retain(|device| known.insert(&device.path));
        add(&mut [Some("all".to_owned())].into_iter(), &all);
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

/// Groups that a process must be in to open the nodes.
fn groups<'a>(nodes: impl Iterator<Item = &'a Device>) -> Vec<u32> {
    let closed = nodes.filter(|d| d.mode & 0o006 != 0o006 && d.mode & 0o060 == 0o060);
    let mut groups: Vec<u32> = closed
        .filter_map(|d| d.gid.filter(|gid| *gid != 0))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

pub(super) fn needs_groups<'a>(nodes: impl Iterator<Item = &'a Device>) -> bool {
    !groups(nodes).is_empty()
}

pub(super) fn common(nodes: &[&Device], edits: &Edits, hooks: &[Hook]) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("env".to_owned(), json!([VOID]));
    if !nodes.is_empty() {
        members.extend(node_edits(nodes));
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

/// The hooks, in the form that NVIDIA's tool writes.
pub(super) fn hooks(edits: &Edits, facts: Option<&Facts>, request: &Request) -> Result<Vec<Hook>> {
    let mut calls: Vec<Vec<String>> = Vec::new();
    calls.extend(facts.and_then(compat_call));
    calls.extend(cache_call(edits));
    calls.push(vec!["disable-device-node-modification".to_owned()]);
    let is_on = |words: &Vec<String>| {
        let is_disabled = |hook: &String| hook == "all" || *hook == words[0];
        request.enabled_hooks.contains(&words[0]) || !request.disabled_hooks.iter().any(is_disabled)
    };
    let hook = |words: Vec<String>| {
        let args = ["nvidia-cdi-hook".to_owned()]
            .into_iter()
            .chain(words)
            .collect();
        own_hook("createContainer", args)
    };
    calls.into_iter().filter(is_on).map(hook).collect()
}

fn compat_call(facts: &Facts) -> Option<Vec<String>> {
    let version = facts.driver_version.as_deref()?;
    let mut words = vec![
        "enable-cuda-compat".to_owned(),
        format!("--host-driver-version={version}"),
    ];
    if let Some(cuda) = &facts.cuda_version {
        words.push(format!("--host-cuda-version={cuda}"));
    }
    Some(words)
}

fn cache_call(edits: &Edits) -> Option<Vec<String>> {
    let folders = edits.libraries.iter();
    let folders = folders.filter_map(|library| split(&library.path));
    let mut folders: Vec<&str> = folders
        .map(|(folder, _)| folder.trim_end_matches('/'))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    if folders.is_empty() {
        return None;
    }
    let mut words = vec!["update-ldcache".to_owned()];
    for folder in folders {
        words.extend(["--folder".to_owned(), folder.to_owned()]);
    }
    Some(words)
}
