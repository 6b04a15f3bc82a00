//! Generates a specification as NVIDIA's own tool does: a device for each unit by its index and its
//! UUID, a device for each part, and `all`. The common edits have what all devices share.

mod edits;
pub mod modes;
mod units;

use serde_json::{json, Value};

use edits::{common, devices, hooks, needs_groups};
use units::{Chosen, Given};

use super::Sources;
use crate::config::settings::Settings;
use crate::error::{Error, Result};
use crate::host::facts::{Facts, FactsState, WRITE_AGAIN};
use crate::host::inventory::{collect_one, Report};
use crate::host::nodes::Nodes;
use crate::host::Host;
use crate::model::decide::units::{Part, Unit};
use crate::model::decide::Choice;
use crate::model::request::Interface;
use crate::model::vendor::{Vendor, VendorFile};

/// The kind that NVIDIA's users name.
pub const KIND: (&str, &str) = ("nvidia.com", "gpu");
/// The naming that NVIDIA's own tool uses by default.
pub const USUAL: [Naming; 2] = [Naming::Index, Naming::Uuid];
/// Names of vendor files for NVIDIA that do not name the interface.
const FILES: [&str; 2] = ["nvidia", "oci-nvidia"];
/// Prevents NVIDIA's other front ends from giving the container devices too.
const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// How devices are named.
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

/// What to generate.
#[derive(Debug)]
pub struct Request<'a> {
    pub settings: &'a Settings,
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

impl<'a> Request<'a> {
    /// The default request of NVIDIA's own tool.
    pub fn of(settings: &'a Settings) -> Self {
        Self {
            settings,
            vendor: KIND.0,
            class: KIND.1,
            namings: &USUAL,
            ids: &[],
            without_all: false,
            disabled_hooks: &[],
            enabled_hooks: &[],
        }
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

/// The specification. Errors: there is no vendor file for NVIDIA, its driver is not installed, or
/// this host lacks its devices or the requested ones.
pub(super) fn generate(sources: &Sources, request: &Request) -> Result<Value> {
    let kind = request.kind()?;
    let (file, vendor) = choose(&sources.files, sources.settings)?;
    let host = sources.host()?;
    let choice = Choice {
        file,
        vendor,
        features: vendor.feature_names().collect(),
    };
    let (mut edits, _) = collect_one(host, &choice, Report::Missing)?;
    edits.sort();
    let facts = facts(host, &file.name)?;
    let nodes = Nodes::of(host, vendor, &edits.devices, facts.as_ref());
    let given = Given::of(nodes, edits.devices.clone());
    let devices = match Chosen::of(&given, request.ids)? {
        Chosen::Nothing => vec![json!({"name": "none", "containerEdits": {"env": [VOID]}})],
        _ if given.units().next().is_none() => return Err(no_device(host, file, vendor)),
        chosen => devices(&given, &chosen, request),
    };
    let hooks = hooks(&edits, facts.as_ref(), request)?;
    let common = common(&given.common().collect::<Vec<_>>(), &edits, &hooks);
    let groups = needs_groups(given.common().chain(given.own()));
    Ok(json!({
        "cdiVersion": if groups { "0.7.0" } else { super::VERSION },
        "kind": kind,
        "devices": devices,
        "containerEdits": common,
    }))
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

/// The vendor file that answers NVIDIA's interface, if any does.
pub fn answers(files: &[VendorFile]) -> Option<&VendorFile> {
    // A broken file that names the interface is an error here, as at a start.
    files.iter().find(|file| match &file.content {
        Ok(vendor) => vendor.interfaces.contains(&Interface::Nvidia),
        Err(broken) => broken.interfaces.contains(&Interface::Nvidia),
    })
}

/// The facts about a vendor's devices. `None`: the host has no such file, so a node's number is its
/// index. Errors: the file is broken, or a user other than root may have written it.
fn facts(host: &Host, vendor: &str) -> Result<Option<Facts>> {
    match host.facts(vendor) {
        FactsState::Absent => Ok(None),
        FactsState::Facts(facts) => Ok(Some(facts)),
        FactsState::Broken(problem) => Err(Error::failed(format!(
            "the device facts can't be used: {problem}"
        ))
        .resolve(WRITE_AGAIN)),
    }
}

/// NVIDIA's vendor file: the one that answers its interface, else the one with its kind or name.
fn choose<'a>(
    files: &'a [VendorFile],
    settings: &Settings,
) -> Result<(&'a VendorFile, &'a Vendor)> {
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
        let folder = settings.config_dir.display();
        return Err(
            Error::not_found(format!("{folder} has no vendor file for {own_kind}"))
                .resolve("install the driver, which brings one: provision apply"),
        );
    };
    Ok((file, file.usable()?))
}
