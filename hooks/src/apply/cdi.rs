//! Generates CDI specifications (Container Device Interface) from the inventories of vendor files:
//! the devices of a vendor under our own kind, one for each node that can be chosen, and one for each
//! feature, each with everything that its use needs. `nvidia` makes those that NVIDIA's tool makes.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>

mod files;
pub mod nvidia;

use std::cell::OnceCell;
use std::collections::BTreeSet;

use serde_json::{json, Map, Value};

use crate::apply::spec::members::own_hook;
use crate::config::cdi::{ContainerEdits, DeviceNode, Document, NamedDevice, Syntax};
use crate::config::settings::Settings;
use crate::config::vendor::read;
use crate::error::{Error, Result};
use crate::host::inventory::{collect_whole, Report};
use crate::host::nodes::{Class, Nodes};
use crate::host::Host;
use crate::model::decide::units::{Chosen, Unit};
use crate::model::decide::Choice;
use crate::model::edits::paths::split;
use crate::model::edits::{Attribute, DescribedMount, Device, Edits, Hook, Mount, FILE_MOUNT};
use crate::model::vendor::{Vendor, VendorFile};

pub use files::{remove_each, write, write_each};

const OWN_VENDOR: &str = "oci-decorator";

/// Makes specifications from vendor files, which are read once for all of them.
pub struct Generator<'a> {
    settings: &'a Settings,
    files: Vec<VendorFile>,
    host: OnceCell<Host>,
}

impl<'a> Generator<'a> {
    pub fn read(settings: &'a Settings) -> Result<Self> {
        Ok(Self { settings, files: read(&settings.config_dir)?, host: OnceCell::new() })
    }

    /// Errors: the root can't be opened, which is said only where the vendor files are well.
    fn host(&self) -> Result<&Host> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let host = Host::open(&self.settings.root)?;
        Ok(self.host.get_or_init(|| host))
    }

    /// The specification of the vendor file with this name, without `.json`, or one of all files.
    /// Errors: a vendor file has mistakes, a driver is not installed, or this host has nothing of
    /// the inventory: engines refuse a specification without devices.
    pub fn specification(&self, vendor: Option<&str>) -> Result<String> {
        let chosen = self.choose(vendor)?;
        let document = own_document(self.host()?, kind(&chosen)?, &chosen)?;
        if document.devices.is_empty() {
            return Err(Error::not_found("this host has nothing that the vendor files list")
                .resolve(
                    "load the driver: provision load; see what is missing: oci-decorator check",
                ));
        }
        Ok(text(&document, Syntax::Json))
    }

    /// The vendor file of this name, or all of them. Errors: there is none, or one has mistakes.
    fn choose(&self, vendor: Option<&str>) -> Result<Vec<(&VendorFile, &Vendor)>> {
        let folder = self.settings.config_dir.display();
        let mut chosen = Vec::new();
        for file in &self.files {
            if vendor.is_none_or(|name| name == file.name) {
                chosen.push((file, file.usable()?));
            }
        }
        match (chosen.is_empty(), vendor) {
            (false, _) => Ok(chosen),
            (true, Some(name)) => Err(Error::not_found(format!("{folder} has no {name}.json"))
                .resolve(format!("see which vendor files there are: oci-decorator check --config-dir {folder}"))),
            (true, None) => Err(Error::not_found(format!("{folder} has no vendor files"))
                .resolve(format!("install a driver, which brings one: provision apply; or copy one of ours, for example: cp /usr/share/oci-decorator/vendors/oci-amd.json {folder}"))),
        }
    }
}

/// The vendor's own kind, or a kind made from the name of its file. Several vendors share our kind.
fn kind(chosen: &[(&VendorFile, &Vendor)]) -> Result<String> {
    let [(file, vendor)] = chosen else {
        return Ok(format!("{OWN_VENDOR}/driver"));
    };
    if let Some(kind) = &vendor.cdi_kind {
        return Ok(kind.clone());
    }
    let kind = format!("{OWN_VENDOR}/{}", plain(&file.name, "_-"));
    match crate::config::vendor::check_kind(&kind) {
        None => Ok(kind),
        Some(problem) => Err(Error::usage(format!("{}: {problem}", file.path))
            .resolve("give the file a \"cdi_kind\"")),
    }
}

/// The text with a dash for every character except letters, digits and `others`.
fn plain(text: &str, others: &str) -> String {
    let known = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.chars().map(|c| if known(c) { c } else { '-' }).collect()
}

/// A document with the devices of these vendor files, and one with everything.
fn own_document(host: &Host, kind: String, chosen: &[(&VendorFile, &Vendor)]) -> Result<Document> {
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

/// Paths without numbers. Engines look these up when a container starts: they change from one boot
/// to the next, and may then belong to another driver.
fn nodes<'d>(devices: impl IntoIterator<Item = &'d Device>) -> Vec<DeviceNode> {
    let node = |device: &Device| DeviceNode {
        path: device.path.clone(),
        host_path: (device.source != device.path).then(|| device.source.clone()),
        ..DeviceNode::default()
    };
    devices.into_iter().map(node).collect()
}

fn mounts(mounts: &[Mount]) -> Vec<DescribedMount> {
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
fn hooks(calls: impl IntoIterator<Item = Vec<String>>) -> Result<Vec<Hook>> {
    let hook = |mut words: Vec<String>| {
        words.insert(0, "nvidia-cdi-hook".to_owned());
        own_hook("createContainer", words)
    };
    calls.into_iter().map(hook).collect()
}

/// The call that puts the libraries into the library cache.
fn cache_call(edits: &Edits) -> Option<Vec<String>> {
    let folders = edits.libraries.iter().filter_map(|it| split(&it.path));
    let folders: BTreeSet<&str> = folders.map(|(folder, _)| folder.trim_end_matches('/')).collect();
    call("update-ldcache", "--folder", folders)
}

/// The call that makes the directories that no mount makes.
fn directories_call(edits: &Edits) -> Option<Vec<String>> {
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
fn add(document: &mut Document, name: &str, edits: ContainerEdits) {
    let is_taken = document.devices.iter().any(|device| device.name == name);
    if !edits.is_empty() && !is_taken {
        let name = name.to_owned();
        document.devices.push(NamedDevice { name, edits });
    }
}

/// The document in the lowest version that suffices.
fn json(document: &Document) -> Value {
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

/// The text of a document. JSON is a part of YAML.
pub fn text(document: &Document, syntax: Syntax) -> String {
    let start = if syntax == Syntax::Yaml { "---\n" } else { "" };
    format!("{start}{:#}\n", json(document))
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
