//! Generates CDI specifications (Container Device Interface) from the inventories of vendor files:
//! the devices of a vendor under our own kind, one for each node that can be chosen, and one for each
//! feature, each with everything that its use needs; and the specifications that NVIDIA's tool makes.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>

mod files;

use std::cell::OnceCell;
use std::collections::BTreeSet;

use rustc_hash::FxHashSet;
use serde_json::{json, Map, Value};

use crate::config::cdi::Syntax;
use crate::config::reader::is_device;
use crate::config::settings::Settings;
use crate::config::vendor::read;
use crate::error::{Error, Result};
use crate::host::facts::{Facts, WRITE_AGAIN};
use crate::host::nodes::{Chosen, Class, GatedDevices, Nodes, Unit, GATED};
use crate::host::resolve::{
    collect_all_units, collect_inventory, compat, cuda_folder, groups, Report,
};
use crate::host::{own_hook, Host};
use crate::log::brief;
use crate::model::edits::{split, Attribute, Compat, Device, Edits, Hook, FILE_MOUNT};
use crate::model::request::{by_word, Interface};
use crate::model::vendor::{Choice, Vendor, VendorFile};

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
        Ok(document.text(Syntax::Json))
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
fn own_document(
    host: &Host,
    kind: String,
    chosen: &[(&VendorFile, &Vendor)],
) -> Result<Specification> {
    let mut document = Specification { kind, ..Specification::default() };
    let mut all = Edits::default();
    for (file, vendor) in chosen {
        let prefix = match chosen {
            [_] => String::new(),
            _ => format!("{}-", file.name),
        };
        all.append(add_vendor(&mut document, host, (file, vendor), &prefix)?);
    }
    all.sort();
    document.add("all", described(all)?);
    Ok(document)
}

/// Adds the devices of a vendor. Returns the edits of all its features together.
fn add_vendor(
    document: &mut Specification,
    host: &Host,
    (file, vendor): (&VendorFile, &Vendor),
    prefix: &str,
) -> Result<Edits> {
    let collect = |features: Vec<&str>| {
        let choice = Choice { file, vendor, features };
        collect_all_units(host, &choice, Report::Missing).map(|(mut edits, _)| {
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
        document.add(&format!("{prefix}{name}"), described(edits.clone())?);
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
fn described(mut edits: Edits) -> Result<Edits> {
    edits.hooks = hooks([directories_call(&edits), cache_call(&edits)].into_iter().flatten())?;
    Ok(edits)
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

fn cache_call(edits: &Edits) -> Option<Vec<String>> {
    let folders = edits.libraries.iter().filter_map(|it| split(&it.path));
    let folders: BTreeSet<&str> = folders.map(|(folder, _)| folder.trim_end_matches('/')).collect();
    call("update-ldcache", "--folder", folders)
}

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

/// A specification: its devices by name, and the edits that all of them share.
#[derive(Debug, Default)]
pub struct Specification {
    kind: String,
    devices: Vec<(String, Edits)>,
    common: Edits,
}

impl Specification {
    /// Adds a device, unless the name is taken. A device that gives nothing is left out, because
    /// engines refuse the whole document for it.
    fn add(&mut self, name: &str, edits: Edits) {
        let is_taken = self.devices.iter().any(|(device, _)| device == name);
        if members(&edits) != json!({}) && !is_taken {
            self.devices.push((name.to_owned(), edits));
        }
    }

    /// Its text, in the lowest version that has every member. JSON is a part of YAML.
    pub fn text(&self, syntax: Syntax) -> String {
        let mut all = self.devices.iter().map(|(_, edits)| edits).chain([&self.common]);
        // Engines of 2022 read 0.5.0; additionalGids came with 0.7.0.
        let version = if all.any(|edits| !edits.groups.is_empty()) { "0.7.0" } else { "0.5.0" };
        let device = |(name, edits): &(String, Edits)| json!({"name": name, "containerEdits": members(edits)});
        let devices: Vec<Value> = self.devices.iter().map(device).collect();
        let mut document = json!({"cdiVersion": version, "kind": self.kind, "devices": devices});
        let common = members(&self.common);
        if common != json!({}) {
            document["containerEdits"] = common;
        }
        let start = if syntax == Syntax::Yaml { "---\n" } else { "" };
        format!("{start}{document:#}\n")
    }
}

/// The members that generated specifications have. Nodes come without numbers: engines look these
/// up when a container starts, as they change from one boot to the next, and may then belong to
/// another driver.
fn members(edits: &Edits) -> Value {
    let node = |node: &Device| {
        let mut json = json!({"path": node.path});
        if node.source != node.path {
            json["hostPath"] = json!(node.source);
        }
        json
    };
    let options: Vec<_> = Attribute::options(FILE_MOUNT).collect();
    let lists: [(&str, Vec<Value>); 5] = [
        ("env", edits.environment.iter().map(|entry| json!(entry)).collect()),
        ("deviceNodes", edits.devices.iter().map(node).collect()),
        ("mounts", edits.mounts.iter().map(|mount| json!({"hostPath": mount.source, "containerPath": mount.target, "options": options})).collect()),
        ("hooks", edits.hooks.iter().map(|hook| json!({"hookName": hook.stage, "path": hook.path, "args": hook.args, "env": hook.env})).collect()),
        ("additionalGids", edits.groups.iter().map(|group| json!(group)).collect()),
    ];
    let given = lists.into_iter().filter(|(_, items)| !items.is_empty());
    let given = given.map(|(name, items)| (name.to_owned(), Value::Array(items)));
    Value::Object(given.collect::<Map<_, _>>())
}

/// The kind that NVIDIA's users name.
pub const KIND: (&str, &str) = ("nvidia.com", "gpu");
/// The naming that NVIDIA's own tool uses by default.
pub const USUAL: [Naming; 2] = [Naming::Index, Naming::Uuid];
/// Names of vendor files for NVIDIA that do not name the interface.
const FILES: [&str; 2] = ["nvidia", "oci-nvidia"];
/// Prevents NVIDIA's other front ends from giving the container devices too.
const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// The meaning of a word of `--mode`.
#[derive(Debug, Clone, Copy)]
pub enum SpecMode {
    Devices,
    Nodes(&'static GatedDevices),
    Management,
}

impl SpecMode {
    pub fn words() -> String {
        let gated = GATED.iter().map(|it| it.word);
        let words: Vec<_> = ["auto, nvml, wsl, csv, management"].into_iter().chain(gated).collect();
        words.join(", ")
    }

    /// Reads a word in any case, as NVIDIA's tool does.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        match text.as_str() {
            "auto" | "nvml" | "wsl" | "csv" => Some(Self::Devices),
            "management" => Some(Self::Management),
            _ => GATED.iter().find(|it| it.word == text).map(Self::Nodes),
        }
    }
}

/// The specification of a mode. Errors: there is no vendor file for NVIDIA, its driver is not installed,
/// this host lacks the devices or the requested ones, or the mode is not supported.
pub fn generate(settings: &Settings, mode: SpecMode, options: &Options) -> Result<Specification> {
    match mode {
        SpecMode::Devices => of_vendor(&Generator::read(settings)?, options),
        SpecMode::Nodes(which) => of_others_nodes(&Host::open(&settings.root)?, which, options),
        SpecMode::Management => Err(Error::not_found(
            "--mode management is not supported: its device has every node of the driver, those that partition GPUs too",
        )
        .resolve("leave --mode out, as the device \"all\" has every GPU: nvidia-ctk cdi generate")),
    }
}

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
        by_word(
            &[("index", Self::Index), ("uuid", Self::Uuid), ("type-index", Self::TypeIndex)],
            word,
        )
    }
}

#[derive(Debug)]
pub struct Options<'a> {
    pub vendor: &'a str,
    pub class: &'a str,
    pub namings: &'a [Naming],
    /// Indices and UUIDs of the requested devices and parts. Empty, or `all`: every device.
    /// `none`: one device of that name, which gives nothing.
    pub ids: &'a [String],
    pub without_all: bool,
    /// Verbs of hooks to leave out; `all` stands for every hook.
    pub disabled_hooks: &'a [String],
    /// Verbs of hooks to keep in any case.
    pub enabled_hooks: &'a [String],
}

/// The defaults of NVIDIA's own tool.
impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            vendor: KIND.0,
            class: KIND.1,
            namings: &USUAL,
            ids: &[],
            without_all: false,
            disabled_hooks: &[],
            enabled_hooks: &[],
        }
    }
}

impl Options<'_> {
    /// The first special word counts, as in NVIDIA's tool.
    fn special(&self) -> Option<&str> {
        self.ids.iter().map(String::as_str).find(|id| matches!(*id, "all" | "none"))
    }

    /// Errors: vendor and class do not make a CDI kind.
    fn kind(&self) -> Result<String> {
        let kind = format!("{}/{}", self.vendor, self.class);
        let Some(problem) = crate::config::vendor::check_kind(&kind) else {
            return Ok(kind);
        };
        Err(Error::usage(problem)
        .resolve("give other words to --vendor and --class: nvidia-ctk cdi generate --vendor nvidia.com --class gpu"))
    }
}

/// A unit or a part, which can be a device of a specification.
struct Candidate<'a> {
    /// In the order of [`Naming`].
    names: [Option<String>; 3],
    nodes: Vec<&'a Device>,
    /// A unit that is divided into parts. It is a device of a specification only if it is named.
    is_divided: bool,
}

impl<'a> Candidate<'a> {
    /// Every candidate. A unit of the facts without a node can't be given.
    fn all(nodes: &Nodes, given: &'a [Device]) -> Vec<Self> {
        let mut found = Vec::new();
        for (at, unit) in nodes.units.iter().enumerate() {
            if !given.iter().any(|it| unit.nodes.contains(&it.path)) {
                continue;
            }
            let own = |part| {
                let chosen = Chosen::one(&nodes.units, at, part);
                let is_own = |it: &&Device| {
                    chosen.nodes.contains(&it.path) && nodes.class(&it.path) != Class::Common
                };
                given.iter().filter(is_own).collect()
            };
            let index = unit.index;
            found.push(Self {
                names: [Some(index.to_string()), unit.uuid.clone(), Some(format!("gpu{index}"))],
                nodes: own(None),
                is_divided: !unit.parts.is_empty(),
            });
            for (place, part) in unit.parts.iter().enumerate() {
                // Facts that were collected without NVML may lack the driver's number.
                let number = part.index.map_or(place.to_string(), |own| own.to_string());
                found.push(Self {
                    names: [
                        Some(format!("{index}:{number}")),
                        part.uuid.clone(),
                        Some(format!("mig{index}:{number}")),
                    ],
                    nodes: own(Some(place)),
                    is_divided: false,
                });
            }
        }
        found
    }

    fn has(&self, id: &String) -> bool {
        self.names.iter().flatten().any(|name| name == id)
    }
}

pub(super) fn of_vendor(generator: &Generator, options: &Options) -> Result<Specification> {
    let kind = options.kind()?;
    let choice = choose(generator)?;
    let Choice { file, vendor, .. } = choice;
    let host = generator.host()?;
    let (mut edits, _) = collect_inventory(host, &choice, Report::Missing)?;
    edits.sort();
    let facts = facts(host, &file.name)?;
    let nodes = Nodes::of(host, vendor, &edits.devices, facts.as_ref());
    let mut given = edits.devices.clone();
    nodes.limit(&mut given, &Chosen::all(&nodes.units));
    // A unit's own node comes before those of its parts.
    given.sort_by_key(|device| nodes.class(&device.path) != Class::Unit);
    let is_common = |device: &&Device| nodes.class(&device.path) == Class::Common;
    let (common, own): (Vec<_>, Vec<_>) = given.iter().partition(is_common);
    let common = Edits {
        environment: [VOID.to_owned()].into_iter().chain(cuda_folder(&edits.libraries)).collect(),
        hooks: hooks(calls(&edits, &compat(vendor, facts.as_ref()), options))?,
        mounts: edits.mounts,
        ..of_nodes(common)
    };
    let candidates = Candidate::all(&nodes, &given);
    if candidates.is_empty() && options.special() != Some("none") {
        return Err(no_device(host, file, vendor));
    }
    document(kind, common, &candidates, own, options)
}

fn of_others_nodes(host: &Host, which: &GatedDevices, options: &Options) -> Result<Specification> {
    let kind = options.kind()?;
    let devices = which.devices(host);
    if devices.is_empty() {
        return Err(no_nodes(which, host));
    }
    let common = Edits {
        environment: vec![VOID.to_owned()],
        mounts: which.mounts(host),
        ..Edits::default()
    };
    let mut candidates = Vec::new();
    if let Some(name) = which.number_behind {
        for device in &devices {
            let number = device.path.rsplit(name).next();
            let names = [(); 3].map(|()| number.map(str::to_owned));
            candidates.push(Candidate { names, nodes: vec![device], is_divided: false });
        }
    }
    document(kind, common, &candidates, devices.iter().collect(), options)
}

/// A document with the candidates that have the requested ids, or every one, and `all`.
/// Errors: an id that none has.
fn document<'g>(
    kind: String,
    common: Edits,
    candidates: &[Candidate<'g>],
    mut all: Vec<&'g Device>,
    options: &Options,
) -> Result<Specification> {
    let mut document = Specification { kind, common, ..Specification::default() };
    let ids = match options.special() {
        Some("none") => {
            let environment = vec![VOID.to_owned()];
            document.add("none", Edits { environment, ..Edits::default() });
            return Ok(document);
        }
        Some(_) => &[],
        None => options.ids,
    };
    if let Some(unknown) = ids.iter().find(|id| !candidates.iter().any(|it| it.has(id))) {
        let known = candidates.iter().flat_map(|it| it.names.iter().flatten());
        let mut known: Vec<_> = known.map(String::as_str).collect();
        known.dedup();
        if known.is_empty() {
            known.push("all");
        }
        return Err(Error::not_found(format!(
            "this host has no device {:?}; known are {}",
            brief(unknown),
            known.join(", ")
        ))
        .resolve("give --device-id an index or a UUID of these"));
    }
    let is_chosen = |it: &&Candidate| match ids {
        [] => !it.is_divided,
        ids => ids.iter().any(|id| it.has(id)),
    };
    let chosen: Vec<_> = candidates.iter().filter(is_chosen).collect();
    for candidate in &chosen {
        for naming in options.namings {
            if let Some(name) =
                candidate.names[*naming as usize].as_ref().filter(|name| is_device(name))
            {
                document.add(name, of_nodes(candidate.nodes.iter().copied()));
            }
        }
    }
    if !ids.is_empty() {
        let mut known = FxHashSet::default();
        all = chosen.iter().flat_map(|it| &it.nodes).copied().collect();
        all.retain(|device| known.insert(&device.path));
    }
    // Engines refuse a document without devices.
    if document.devices.is_empty() || !options.without_all {
        document.add("all", of_nodes(all));
    }
    Ok(document)
}

fn of_nodes<'d>(devices: impl IntoIterator<Item = &'d Device> + Clone) -> Edits {
    Edits {
        groups: groups(devices.clone()),
        devices: devices.into_iter().cloned().collect(),
        ..Edits::default()
    }
}

/// The calls of hooks that the request does not leave out.
fn calls(edits: &Edits, compat: &Compat, options: &Options) -> Vec<Vec<String>> {
    let params = vec!["disable-device-node-modification".to_owned()];
    let all = [compat_call(compat), directories_call(edits), cache_call(edits), Some(params)];
    let is_on = |words: &Vec<String>| {
        let is_disabled = |hook: &String| hook == "all" || *hook == words[0];
        options.enabled_hooks.contains(&words[0]) || !options.disabled_hooks.iter().any(is_disabled)
    };
    all.into_iter().flatten().filter(is_on).collect()
}

fn compat_call(compat: &Compat) -> Option<Vec<String>> {
    let version = compat.driver.as_deref()?;
    let mut words =
        vec!["enable-cuda-compat".to_owned(), format!("--host-driver-version={version}")];
    let cuda = compat.cuda.iter();
    words.extend(cuda.map(|version| format!("--host-cuda-version={version}")));
    Some(words)
}

/// The error for a host without devices. Engines refuse a specification without one.
fn no_device(host: &Host, file: &VendorFile, vendor: &Vendor) -> Error {
    let (folder, path) = (host.shown("/dev"), &file.path);
    let units = match &vendor.units {
        Some(units) => format!("no node in {folder} that matches {units}, the \"units\" of {path}"),
        None => format!("no \"units\" in {path}, the pattern for the names of single devices"),
    };
    Error::not_found(format!("there is no device for a specification: {units}")).resolve(
        "load the driver: provision load; or correct the file, and see what is missing: oci-decorator check",
    )
}

fn no_nodes(which: &GatedDevices, host: &Host) -> Error {
    let (folder, patterns) = (host.shown("/dev"), which.patterns.join(" and no "));
    let (word, module) = (which.word, which.module);
    Error::not_found(format!(
        "--mode {word}: there is no device for a specification: no {patterns} in {folder}"
    ))
    .resolve(format!(
        "load the driver: modprobe {module}; or leave --mode out for the GPUs: nvidia-ctk cdi generate"
    ))
}

/// The vendor file that answers NVIDIA's interface, if any does.
pub fn answers(files: &[VendorFile]) -> Option<&VendorFile> {
    // A broken file that names the interface is an error here, as at a start.
    files.iter().find(|file| file.interfaces().contains(&Interface::Nvidia))
}

/// The facts about a vendor's devices. `None`: the host has no such file, so a node's number is its
/// index. Errors: the file is broken, or a user other than root may have written it.
fn facts(host: &Host, vendor: &str) -> Result<Option<Facts>> {
    host.facts(vendor).map_err(|problem| {
        Error::failed(format!("the device facts can't be used: {problem}")).resolve(WRITE_AGAIN)
    })
}

/// NVIDIA's vendor file: the one that answers its interface, else the one with its kind or name.
fn choose<'a>(generator: &'a Generator) -> Result<Choice<'a>> {
    let files = &generator.files;
    let own_kind = format!("{}/{}", KIND.0, KIND.1);
    let has_kind = |file: &&VendorFile| {
        let vendor = file.content.as_ref().ok();
        vendor.is_some_and(|vendor| vendor.cdi_kind.as_deref() == Some(&own_kind))
    };
    let has_name = |file: &&VendorFile| FILES.contains(&file.name.as_str());
    let found = answers(files)
        .or_else(|| files.iter().find(has_kind))
        .or_else(|| files.iter().find(has_name));
    let Some(file) = found else {
        let folder = generator.settings.config_dir.display();
        return Err(Error::not_found(format!("{folder} has no vendor file for {own_kind}"))
            .resolve("install the driver, which brings one: provision apply"));
    };
    let vendor = file.usable()?;
    Ok(Choice { file, vendor, features: vendor.feature_names().collect() })
}
