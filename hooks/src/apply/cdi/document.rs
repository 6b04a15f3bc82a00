//! A specification that is being made, and its form as JSON.

use std::collections::BTreeSet;

use serde_json::{json, Map, Value};

use crate::apply::spec::hooks::own_hook;
use crate::config::cdi::{ContainerEdits, DeviceNode, Document, NamedDevice};
use crate::error::Result;
use crate::model::edits::paths::split;
use crate::model::edits::{Attribute, DescribedMount, Device, Edits, Hook, Mount, FILE_MOUNT};

/// Paths without numbers. Engines look these up when a container starts: they change from one boot
/// to the next, and may then belong to another driver.
pub fn nodes<'d>(devices: impl IntoIterator<Item = &'d Device>) -> Vec<DeviceNode> {
    let node = |device: &Device| DeviceNode {
        path: device.path.clone(),
        host_path: (device.source != device.path).then(|| device.source.clone()),
        ..DeviceNode::default()
    };
    devices.into_iter().map(node).collect()
}

pub fn mounts(mounts: &[Mount]) -> Vec<DescribedMount> {
    let mount = |mount: &Mount| DescribedMount {
        source: mount.source.clone(),
        target: mount.target.clone(),
        kind: String::new(),
        options: Attribute::options(FILE_MOUNT).map(str::to_owned).collect(),
    };
    mounts.iter().map(mount).collect()
}

/// The hooks for what a specification can't describe, in the form that NVIDIA's tool writes: calls
/// of `nvidia-cdi-hook`. Errors: the path of this program can't be found.
pub fn hooks(calls: impl IntoIterator<Item = Vec<String>>) -> Result<Vec<Hook>> {
    let hook = |mut words: Vec<String>| {
        words.insert(0, "nvidia-cdi-hook".to_owned());
        own_hook("createContainer", words)
    };
    calls.into_iter().map(hook).collect()
}

/// The call that puts the libraries into the library cache.
pub fn cache_call(edits: &Edits) -> Option<Vec<String>> {
    let folders = edits.libraries.iter().filter_map(|it| split(&it.path));
    let folders: BTreeSet<&str> = folders.map(|(folder, _)| folder.trim_end_matches('/')).collect();
    call("update-ldcache", "--folder", folders)
}

/// The call that makes the directories that no mount makes.
pub fn directories_call(edits: &Edits) -> Option<Vec<String>> {
    call("create-directories", "--path", edits.bare_directories())
}

/// A command with its option for each value. `None`: there are no values.
fn call<'v>(
    command: &str,
    option: &str,
    values: impl IntoIterator<Item = &'v str>,
) -> Option<Vec<String>> {
    let options = values.into_iter().flat_map(|value| [option, value]);
    let words: Vec<_> = [command].into_iter().chain(options).map(str::to_owned).collect();
    (words.len() > 1).then_some(words)
}

/// Adds a device, unless the name is taken. A device that gives nothing is left out, because
/// engines refuse the whole document for it.
pub fn add(document: &mut Document, name: &str, edits: ContainerEdits) {
    let is_taken = document.devices.iter().any(|device| device.name == name);
    if !edits.is_empty() && !is_taken {
        let name = name.to_owned();
        document.devices.push(NamedDevice { name, edits });
    }
}

/// The document in the lowest version that suffices.
pub fn json(document: &Document) -> Value {
    let devices = document.devices.iter();
    let devices: Vec<Value> = devices
        .map(|device| json!({"name": device.name, "containerEdits": members(&device.edits)}))
        .collect();
    let mut json = json!({
        "cdiVersion": document.lowest_version(),
        "kind": document.kind,
        "devices": devices,
    });
    if !document.edits.is_empty() {
        json["containerEdits"] = members(&document.edits);
    }
    json
}

/// A document as YAML, of which JSON is a part.
pub fn yaml(document: &Value) -> String {
    format!("---\n{document:#}\n")
}

/// The members that generated specifications have.
fn members(edits: &ContainerEdits) -> Value {
    let node = |node: &DeviceNode| match &node.host_path {
        Some(source) => json!({"path": node.path, "hostPath": source}),
        None => json!({"path": node.path}),
    };
    let lists: [(&str, Vec<Value>); 5] = [
        ("env", edits.env.iter().map(|entry| json!(entry)).collect()),
        ("deviceNodes", edits.nodes.iter().map(node).collect()),
        ("mounts", edits.mounts.iter().map(|mount| json!({"hostPath": mount.source, "containerPath": mount.target, "options": mount.options})).collect()),
        ("hooks", edits.hooks.iter().map(|hook| json!({"hookName": hook.stage, "path": hook.path, "args": hook.args, "env": hook.env})).collect()),
        ("additionalGids", edits.groups.iter().map(|group| json!(group)).collect()),
    ];
    let given = lists.into_iter().filter(|(_, items)| !items.is_empty());
    let given = given.map(|(name, items)| (name.to_owned(), Value::Array(items)));
    Value::Object(given.collect::<Map<_, _>>())
}
