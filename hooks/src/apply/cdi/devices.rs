//! The devices of a CDI specification, and what each gives a container.

use serde_json::{json, Value};

use super::{plain, OWN_VENDOR};
use crate::apply::spec::hooks::own_hook;
use crate::error::{Error, Result};
use crate::host::inventory::{collect_whole, Report};
use crate::host::nodes::{Class, Nodes};
use crate::host::Host;
use crate::model::decide::units::{Chosen, Unit};
use crate::model::decide::Choice;
use crate::model::edits::{self, Attribute, Device, Edits, Mount, FILE_MOUNT};
use crate::model::vendor::{Vendor, VendorFile};

pub(super) struct Devices<'a> {
    host: &'a Host,
    hook: Hook<'a>,
    found: Vec<Value>,
}

impl<'a> Devices<'a> {
    pub fn new(host: &'a Host, hook: Hook<'a>) -> Self {
        Self {
            host,
            hook,
            found: Vec::new(),
        }
    }

    /// The devices that were added. Errors: there is no device, and engines refuse a specification
    /// without one.
    pub fn found(self) -> Result<Vec<Value>> {
        if self.found.is_empty() {
            return Err(
                Error::not_found("this host has nothing that the vendor files list").resolve(
                    "load the driver: provision load; see what is missing: oci-decorator check",
                ),
            );
        }
        Ok(self.found)
    }

    /// Adds the vendor's devices. Returns the edits of all its features together.
    pub fn add_vendor(
        &mut self,
        file: &VendorFile,
        vendor: &Vendor,
        prefix: &str,
    ) -> Result<Edits> {
        let collect = |features: Vec<&str>| {
            let choice = Choice {
                file,
                vendor,
                features,
            };
            collect_whole(self.host, &choice, Report::Missing).map(|(mut edits, _)| {
                edits.sort();
                edits
            })
        };
        let mut by_feature = Vec::new();
        for name in vendor.feature_names() {
            by_feature.push((name, collect(vec![name])?));
        }
        let all = collect(vendor.feature_names().collect())?;
        let (nodes, _) = Nodes::by_facts(self.host, vendor, &file.name, &all.devices);
        for device in &all.devices {
            if nodes.class(&device.path) == Class::Part {
                continue;
            }
            let (features, edits) = around(device, &nodes, &by_feature);
            let flag = format!("{}={}", vendor.activation_flag, features.join(","));
            self.add(&format!("{prefix}{}", name(device)), &edits, &[flag]);
        }
        for (feature, edits) in &by_feature {
            let flag = format!("{}={feature}", vendor.activation_flag);
            self.add(&format!("{prefix}feature-{feature}"), edits, &[flag]);
        }
        if !prefix.is_empty() {
            let flag = format!("{}=all", vendor.activation_flag);
            self.add(&format!("{prefix}all"), &all, &[flag]);
        }
        Ok(all)
    }

    /// Adds a device, unless the name is taken: nodes come before features. A device that gives
    /// nothing is left out, because engines refuse the whole document for it.
    pub fn add(&mut self, name: &str, edits: &Edits, flags: &[String]) {
        let members = self.container_edits(edits, flags);
        if !members.is_empty() && self.found.iter().all(|device| device["name"] != name) {
            self.found
                .push(json!({"name": name, "containerEdits": members}));
        }
    }

    fn container_edits(&self, edits: &Edits, flags: &[String]) -> serde_json::Map<String, Value> {
        let mut members = serde_json::Map::new();
        let mut put = |name: &str, items: Vec<Value>| {
            if !items.is_empty() {
                members.insert(name.to_owned(), Value::Array(items));
            }
        };
        put(
            "deviceNodes",
            edits.devices.iter().map(device_node).collect(),
        );
        put("mounts", edits.mounts.iter().map(mount).collect());
        let needs_hook = !edits.libraries.is_empty() || edits.bare_directories().next().is_some();
        put(
            "hooks",
            if needs_hook {
                vec![self.hook.entry(flags)]
            } else {
                Vec::new()
            },
        );
        members
    }
}

/// A node with everything that its use needs: its parts, and the control nodes and files of its
/// features.
fn around<'a>(
    node: &Device,
    nodes: &Nodes,
    features: &[(&'a str, Edits)],
) -> (Vec<&'a str>, Edits) {
    let mut names = Vec::new();
    let mut edits = Edits::default();
    for (name, feature) in features {
        if feature.devices.iter().any(|d| d.path == node.path) {
            names.push(*name);
            edits.append(feature.clone());
        }
    }
    let own = |unit: &Unit| unit.nodes.contains(&node.path);
    let at = nodes.units.iter().position(own);
    let chosen = at.map(|at| Chosen::one(&nodes.units, at, None));
    let chosen = chosen.unwrap_or_default();
    edits
        .devices
        .retain(|d| d.path == node.path || nodes.gives(&chosen, &d.path));
    edits.sort();
    (names, edits)
}

/// The name of a device: `dri-card0` for `/dev/dri/card0`. It begins with a letter or digit.
fn name(device: &Device) -> String {
    let name = device.path.trim_start_matches("/dev/");
    let name = plain(name, "_-.:");
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() {
        "node".to_owned()
    } else {
        name.to_owned()
    }
}

/// The path of the node, without its numbers. Engines look these up when a container starts: they
/// change from one boot to the next, and may then belong to another driver.
pub(super) fn device_node(device: &Device) -> Value {
    let mut node = json!({"path": device.path});
    if device.source != device.path {
        node["hostPath"] = json!(device.source);
    }
    node
}

pub(super) fn mount(mount: &Mount) -> Value {
    json!({
        "hostPath": mount.source,
        "containerPath": mount.target,
        "options": Attribute::options(FILE_MOUNT).collect::<Vec<_>>(),
    })
}

/// A hook in the form of CDI.
pub(super) fn hook(hook: &edits::Hook) -> Value {
    json!({"hookName": hook.stage, "path": hook.path, "args": hook.args, "env": hook.env})
}

/// The hook that makes the library cache, which a specification can't describe.
pub(super) struct Hook<'a> {
    words: &'a [String],
    /// Without words.
    bare: edits::Hook,
}

impl<'a> Hook<'a> {
    /// Errors: the path of this program can't be found.
    pub fn new(words: &'a [String]) -> Result<Self> {
        let bare = own_hook("createRuntime", Vec::new())?;
        Ok(Self { words, bare })
    }

    fn entry(&self, flags: &[String]) -> Value {
        let mut words = vec![OWN_VENDOR.to_owned(), self.bare.stage.clone()];
        words.extend_from_slice(self.words);
        for flag in flags {
            words.extend(["--library-cache".to_owned(), flag.clone()]);
        }
        hook(&edits::Hook {
            args: words,
            ..self.bare.clone()
        })
    }
}

#[cfg(test)]
mod tests;
