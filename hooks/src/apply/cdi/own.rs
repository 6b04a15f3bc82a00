//! The devices of a vendor under our own kind: one for each node that can be chosen, and one for each
//! feature. Each has everything that its use needs.

use super::document::{add, cache_call, directories_call, hooks, mounts, nodes};
use super::plain;
use crate::config::cdi::{ContainerEdits, Document};
use crate::error::Result;
use crate::host::inventory::{collect_whole, Report};
use crate::host::nodes::{Class, Nodes};
use crate::host::Host;
use crate::model::decide::units::{Chosen, Unit};
use crate::model::decide::Choice;
use crate::model::edits::{Device, Edits};
use crate::model::vendor::{Vendor, VendorFile};

/// A document with the devices of these vendor files, and one with everything.
pub(super) fn document(
    host: &Host,
    kind: String,
    chosen: &[(&VendorFile, &Vendor)],
) -> Result<Document> {
    let mut document = Document { kind, ..Document::default() };
    let mut all = Edits::default();
    for (file, vendor) in chosen {
        let prefix = match chosen {
            [_] => String::new(),
            _ => format!("{}-", file.name),
        };
        all.append(add_vendor(&mut document, host, (file, vendor), &prefix)?);
    }
    all.sort();
    add(&mut document, "all", described(&all)?);
    Ok(document)
}

/// Adds the devices of a vendor. Returns the edits of all its features together.
fn add_vendor(
    document: &mut Document,
    host: &Host,
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
    let mut put = |name: &str, edits: &Edits| -> Result<()> {
        add(document, &format!("{prefix}{name}"), described(edits)?);
        Ok(())
    };
    let (nodes, _) = Nodes::by_facts(host, vendor, &file.name, &all.devices);
    for device in &all.devices {
        if nodes.class(&device.path) != Class::Part {
            put(&name(&device.path), &around(device, &nodes, &by_feature))?;
        }
    }
    for (feature, edits) in &by_feature {
        put(&format!("feature-{feature}"), edits)?;
    }
    if !prefix.is_empty() {
        put("all", &all)?;
    }
    Ok(all)
}

/// A node with everything that its use needs: its device's other nodes, and the control nodes and
/// files of its features.
fn around(node: &Device, nodes: &Nodes, features: &[(&str, Edits)]) -> Edits {
    let mut edits = Edits::default();
    for (_, feature) in features {
        if feature.devices.iter().any(|d| d.path == node.path) {
            edits.append(feature.clone());
        }
    }
    let own = |unit: &Unit| unit.nodes.contains(&node.path);
    let at = nodes.units.iter().position(own);
    let chosen = at.map(|at| Chosen::one(&nodes.units, at, None));
    let chosen = chosen.unwrap_or_default();
    edits.devices.retain(|d| d.path == node.path || nodes.gives(&chosen, &d.path));
    edits.sort();
    edits
}

/// The name of a device: `dri-card0` for `/dev/dri/card0`. It begins with a letter or digit.
fn name(path: &str) -> String {
    let name = plain(path.trim_start_matches("/dev/"), "_-.:");
    match name.trim_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => "node".to_owned(),
        name => name.to_owned(),
    }
}

/// What a container gets, with the hooks for what a specification can't describe.
fn described(edits: &Edits) -> Result<ContainerEdits> {
    Ok(ContainerEdits {
        nodes: nodes(&edits.devices),
        mounts: mounts(&edits.mounts),
        hooks: hooks([directories_call(edits), cache_call(edits)].into_iter().flatten())?,
        ..ContainerEdits::default()
    })
}
