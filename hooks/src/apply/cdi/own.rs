//! The devices of a vendor under our own kind: one for each node that can be chosen, and one for each
//! feature. Each has everything that its use needs.

use super::document::{add, mounts, nodes};
use super::{plain, OWN_VENDOR};
use crate::apply::spec::hooks::own_hook;
use crate::config::cdi::{ContainerEdits, Document};
use crate::error::Result;
use crate::host::inventory::{collect_whole, Report};
use crate::host::nodes::{Class, Nodes};
use crate::host::Host;
use crate::model::decide::units::{Chosen, Unit};
use crate::model::decide::Choice;
use crate::model::edits::{Device, Edits, Hook};
use crate::model::vendor::{Vendor, VendorFile};

/// A document with the devices of these vendor files, and one with everything.
pub(super) fn document(
    host: &Host,
    kind: String,
    chosen: &[(&VendorFile, &Vendor)],
    hook_words: &[String],
) -> Result<Document> {
    let hook = CacheHook::new(hook_words)?;
    let mut document = Document { kind, ..Document::default() };
    let mut all = Edits::default();
    let mut flags = Vec::new();
    for (file, vendor) in chosen {
        let prefix = match chosen {
            [_] => String::new(),
            _ => format!("{}-", file.name),
        };
        let own = add_vendor(&mut document, host, &hook, (file, vendor), &prefix)?;
        all.append(own);
        flags.push(format!("{}=all", vendor.activation_flag));
    }
    all.sort();
    add(&mut document, "all", hook.edits(&all, &flags));
    Ok(document)
}

/// Adds the devices of a vendor. Returns the edits of all its features together.
fn add_vendor(
    document: &mut Document,
    host: &Host,
    hook: &CacheHook,
    (file, vendor): (&VendorFile, &Vendor),
    prefix: &str,
) -> Result<Edits> {
    let collect = |features: Vec<&str>| {
        let choice = Choice { file, vendor, features };
        collect_whole(host, &choice, Report::Missing).map(|(mut edits, _)| {
            edits.sort();
            edits
        })
    };
    let mut by_feature = Vec::new();
    for name in vendor.feature_names() {
        by_feature.push((name, collect(vec![name])?));
    }
    let all = collect(vendor.feature_names().collect())?;
    let mut put = |name: &str, value: &str, edits: &Edits| {
        let flag = format!("{}={value}", vendor.activation_flag);
        add(document, &format!("{prefix}{name}"), hook.edits(edits, &[flag]));
    };
    let (nodes, _) = Nodes::by_facts(host, vendor, &file.name, &all.devices);
    for device in &all.devices {
        if nodes.class(&device.path) != Class::Part {
            let (features, edits) = around(device, &nodes, &by_feature);
            put(&name(&device.path), &features.join(","), &edits);
        }
    }
    for (feature, edits) in &by_feature {
        put(&format!("feature-{feature}"), feature, edits);
    }
    if !prefix.is_empty() {
        put("all", "all", &all);
    }
    Ok(all)
}

/// A node with everything that its use needs: its device's other nodes, and the control nodes and
/// files of its features.
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
    edits.devices.retain(|d| d.path == node.path || nodes.gives(&chosen, &d.path));
    edits.sort();
    (names, edits)
}

/// The name of a device: `dri-card0` for `/dev/dri/card0`. It begins with a letter or digit.
fn name(path: &str) -> String {
    let name = plain(path.trim_start_matches("/dev/"), "_-.:");
    match name.trim_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => "node".to_owned(),
        name => name.to_owned(),
    }
}

/// The hook that makes the library cache, which a specification can't describe.
struct CacheHook<'a> {
    words: &'a [String],
    /// Without words.
    bare: Hook,
}

impl<'a> CacheHook<'a> {
    /// Errors: the path of this program can't be found.
    fn new(words: &'a [String]) -> Result<Self> {
        let bare = own_hook("createRuntime", Vec::new())?;
        Ok(Self { words, bare })
    }

    /// What a container gets, with the hook if it needs one; the flags say to what it is entitled.
    fn edits(&self, edits: &Edits, flags: &[String]) -> ContainerEdits {
        let needs_hook = !edits.libraries.is_empty() || edits.bare_directories().next().is_some();
        let hook = needs_hook.then(|| {
            let mut args = vec![OWN_VENDOR.to_owned(), self.bare.stage.clone()];
            args.extend_from_slice(self.words);
            for flag in flags {
                args.extend(["--library-cache".to_owned(), flag.clone()]);
            }
            Hook { args, ..self.bare.clone() }
        });
        ContainerEdits {
            nodes: nodes(&edits.devices),
            mounts: mounts(&edits.mounts),
            hooks: hook.into_iter().collect(),
            ..ContainerEdits::default()
        }
    }
}
