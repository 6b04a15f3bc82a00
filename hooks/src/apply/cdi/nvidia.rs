//! A specification as NVIDIA's own tool makes it. Of the vendor file: a device for each unit by its
//! index and its UUID, a device for each part, and `all`. Of nodes of other drivers, which a vendor file
//! does not have to list (`nvidia-ctk cdi generate --mode`): by their numbers, and `all`. The common edits
//! have what all devices share.
//!
//! Source:
//! <https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html>

use rustc_hash::FxHashSet;

use crate::apply::cdi::{add, cache_call, directories_call, hooks, mounts, nodes, Generator};
use crate::config::cdi::{is_device, ContainerEdits, Document};
use crate::config::settings::Settings;
use crate::error::{Error, Result};
use crate::host::facts::{Facts, WRITE_AGAIN};
use crate::host::gated_devices::{GatedDevices, GATED};
use crate::host::inventory::{collect_one, compat, cuda_folder, groups, Report};
use crate::host::nodes::{Class, Nodes};
use crate::host::Host;
use crate::log::brief;
use crate::model::decide::units::Chosen;
use crate::model::decide::Choice;
use crate::model::edits::{Compat, Device, Edits};
use crate::model::request::{by_word, Interface};
use crate::model::vendor::{Vendor, VendorFile};

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
    /// The devices of the vendor file.
    Devices,
    Nodes(&'static GatedDevices),
    /// Not supported.
    Management,
}

impl SpecMode {
    /// Every word, for error messages.
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
pub fn generate(settings: &Settings, mode: SpecMode, options: &Options) -> Result<Document> {
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
    /// Leaves the device `all` out.
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

pub(super) fn of_vendor(generator: &Generator, options: &Options) -> Result<Document> {
    let kind = options.kind()?;
    let choice = choose(generator)?;
    let Choice { file, vendor, .. } = choice;
    let host = generator.host()?;
    let (mut edits, _) = collect_one(host, &choice, Report::Missing)?;
    edits.sort();
    let facts = facts(host, &file.name)?;
    let nodes = Nodes::of(host, vendor, &edits.devices, facts.as_ref());
    let mut given = edits.devices.clone();
    nodes.limit(&mut given, &Chosen::all(&nodes.units));
    // A unit's own node comes before those of its parts.
    given.sort_by_key(|device| nodes.class(&device.path) != Class::Unit);
    let is_common = |device: &&Device| nodes.class(&device.path) == Class::Common;
    let (common, own): (Vec<_>, Vec<_>) = given.iter().partition(is_common);
    let common = ContainerEdits {
        env: [VOID.to_owned()].into_iter().chain(cuda_folder(&edits.libraries)).collect(),
        mounts: mounts(&edits.mounts),
        hooks: hooks(calls(&edits, &compat(vendor, facts.as_ref()), options))?,
        ..of_nodes(common)
    };
    let candidates = Candidate::all(&nodes, &given);
    if candidates.is_empty() && options.special() != Some("none") {
        return Err(no_device(host, file, vendor));
    }
    document(kind, common, &candidates, own, options)
}

fn of_others_nodes(host: &Host, which: &GatedDevices, options: &Options) -> Result<Document> {
    let kind = options.kind()?;
    let devices = which.devices(host);
    if devices.is_empty() {
        return Err(no_nodes(which, host));
    }
    let common = ContainerEdits {
        env: vec![VOID.to_owned()],
        mounts: mounts(&which.mounts(host)),
        ..ContainerEdits::default()
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
    edits: ContainerEdits,
    candidates: &[Candidate<'g>],
    mut all: Vec<&'g Device>,
    options: &Options,
) -> Result<Document> {
    let mut document = Document { kind, edits, ..Document::default() };
    let ids = match options.special() {
        Some("none") => {
            let env = vec![VOID.to_owned()];
            add(&mut document, "none", ContainerEdits { env, ..ContainerEdits::default() });
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
                add(&mut document, name, of_nodes(candidate.nodes.iter().copied()));
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
        add(&mut document, "all", of_nodes(all));
    }
    Ok(document)
}

fn of_nodes<'d>(devices: impl IntoIterator<Item = &'d Device> + Clone) -> ContainerEdits {
    ContainerEdits {
        groups: groups(devices.clone()),
        nodes: nodes(devices),
        ..ContainerEdits::default()
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
    host.facts(vendor).sound().map_err(|problem| {
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
