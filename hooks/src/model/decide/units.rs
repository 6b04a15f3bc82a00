//! Finds the devices that a request names: from names of any kind to nodes. Pure.

use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::Error;
use crate::log::brief;
use crate::model::request::{DeviceList, DeviceRequest, Interface};
use crate::model::vendor::device_name;

/// The prefixes of UUIDs. A prefix by itself names nothing.
const UUIDS: [&str; 2] = ["GPU-", "MIG-"];
/// The prefix of a name that has the device's UUID and the part's instances.
const INSTANCES: &str = "MIG-GPU-";

/// A device that a container can choose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unit {
    pub index: u32,
    pub uuid: Option<String>,
    /// `0000:01:00.0`
    pub pci: Option<String>,
    /// Paths of its nodes. The first is the one that identifies it.
    pub nodes: Vec<String>,
    pub parts: Vec<Part>,
}

/// A part of a device (a MIG partition) that a container can choose like a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Part {
    /// Its number on its device. `None`: its position among the other parts.
    pub index: Option<u32>,
    #[serde(deserialize_with = "filled")]
    pub uuid: Option<String>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// Paths of the nodes that it needs in addition to its device's own.
    #[serde(deserialize_with = "nodes")]
    pub nodes: Vec<String>,
}

/// An empty text says nothing.
pub fn filled<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// The paths of nodes that are written as names under `/dev`.
fn nodes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let path = |node: String| {
        let name = device_name(&node);
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if name.split('/').all(is_part) && !name.contains(char::is_control) {
            Ok(format!("/dev/{name}"))
        } else {
            Err(D::Error::custom(format!("{node:?} is not a name under /dev")))
        }
    };
    Vec::<String>::deserialize(from)?.into_iter().map(path).collect()
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    pub is_all: bool,
    /// Positions in the list of units.
    pub units: BTreeSet<usize>,
    /// Paths of every node that the choice needs.
    pub nodes: BTreeSet<String>,
}

/// Looks the names of a request up on a host that has device facts, or only nodes. Errors: a name that
/// matches no unit, or several.
pub fn choose(request: &DeviceRequest, units: &[Unit], has_facts: bool) -> Result<Chosen, Error> {
    let mut chosen = Chosen::default();
    match &request.devices {
        DeviceList::None | DeviceList::Nothing => {}
        DeviceList::All => chosen = Chosen::all(units),
        DeviceList::These(names) => {
            for name in names {
                let (at, part) = find(name, units, request, has_facts)?;
                chosen.add(units, at, part);
            }
        }
    }
    Ok(chosen)
}

impl Chosen {
    /// Every unit, with every part.
    pub fn all(units: &[Unit]) -> Self {
        let mut chosen = Self { is_all: true, ..Self::default() };
        for (at, unit) in units.iter().enumerate() {
            chosen.add(units, at, None);
            for part in 0..unit.parts.len() {
                chosen.add(units, at, Some(part));
            }
        }
        chosen
    }

    /// One unit, or one of its parts.
    pub fn one(units: &[Unit], at: usize, part: Option<usize>) -> Self {
        let mut chosen = Self::default();
        chosen.add(units, at, part);
        chosen
    }

    /// A part also needs its device's node. A device by itself comes without its parts, as with
    /// NVIDIA's tools.
    fn add(&mut self, units: &[Unit], at: usize, part: Option<usize>) {
        let unit = &units[at];
        self.units.insert(at);
        self.nodes.extend(unit.nodes.iter().cloned());
        let parts = part.into_iter().flat_map(|part| &unit.parts[part].nodes);
        self.nodes.extend(parts.cloned());
    }
}

type UnitOrPart = (usize, Option<usize>);

fn find(
    name: &str,
    units: &[Unit],
    request: &DeviceRequest,
    has_facts: bool,
) -> Result<UnitOrPart, Error> {
    let by = &request.by;
    let found = if let Some((index, part)) = name.split_once(':') {
        by_indices(index, part, units).or_else(|| Some((by_pci(name, units)?, None)))
    } else if let Some(rest) = name.strip_prefix(INSTANCES) {
        // UUIDs that newer drivers give to parts may begin like this too.
        by_instances(rest, units).or(by_uuid(name, units, by)?)
    } else if UUIDS.iter().any(|start| name.starts_with(start)) {
        by_uuid(name, units, by)?
    } else {
        by_index(name, units).map(|at| (at, None))
    };
    found.ok_or_else(|| unknown(name, units, request, has_facts))
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn by_index(name: &str, units: &[Unit]) -> Option<usize> {
    let index = number(name)?;
    units.iter().position(|unit| unit.index == index)
}

fn by_indices(index: &str, part: &str, units: &[Unit]) -> Option<UnitOrPart> {
    let at = by_index(index, units)?;
    let wanted = number(part)?;
    let mut parts = (0..).zip(&units[at].parts);
    let place = parts.position(|(place, part)| part.index.unwrap_or(place) == wanted)?;
    Some((at, Some(place)))
}

/// Finds a PCI address, whose domain may be missing or have eight digits.
fn by_pci(name: &str, units: &[Unit]) -> Option<usize> {
    let canonical = |address: &str| {
        let address = address.to_ascii_lowercase();
        match address.matches(':').count() {
            1 => format!(":{address}"),
            _ => address.trim_start_matches('0').to_owned(),
        }
    };
    let wanted = canonical(name);
    units.iter().position(|unit| unit.pci.as_deref().is_some_and(|pci| canonical(pci) == wanted))
}

/// Finds `<UUID of the GPU>/<GPU instance>/<compute instance>`, as drivers before 470 write it.
fn by_instances(rest: &str, units: &[Unit]) -> Option<UnitOrPart> {
    let mut words = rest.split('/');
    let uuid = format!("GPU-{}", words.next()?);
    let (gpu, compute) = (number(words.next()?)?, number(words.next()?)?);
    let is_it = |unit: &Unit| unit.uuid.as_deref() == Some(&uuid);
    let at = units.iter().position(is_it)?;
    let mut parts = units[at].parts.iter();
    let part =
        parts.position(|p| (p.gpu_instance, p.compute_instance) == (Some(gpu), Some(compute)))?;
    (words.next().is_none()).then_some((at, Some(part)))
}

/// Finds a whole UUID, or a prefix that only one UUID has.
fn by_uuid(name: &str, units: &[Unit], by: &str) -> Result<Option<UnitOrPart>, Error> {
    let mut found: Vec<(&str, UnitOrPart)> = Vec::new();
    if UUIDS.contains(&name) {
        return Ok(None);
    }
    for (at, unit) in units.iter().enumerate() {
        let own = unit.uuid.iter().map(|uuid| (uuid, (at, None)));
        let parts = unit.parts.iter().enumerate();
        let parts = parts.filter_map(|(part, p)| Some((p.uuid.as_ref()?, (at, Some(part)))));
        for (uuid, place) in own.chain(parts) {
            if uuid == name {
                return Ok(Some(place));
            }
            if uuid.starts_with(name) {
                found.push((uuid, place));
            }
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [(_, place)] => Ok(Some(*place)),
        several => {
            let uuids: Vec<&str> = several.iter().map(|(uuid, _)| *uuid).collect();
            let uuids = uuids.join(", ");
            let message =
                format!("{by} asks for the device {:?}, which may be {uuids}", brief(name));
            Err(Error::usage(message).resolve("write more of the UUID"))
        }
    }
}

fn unknown(name: &str, units: &[Unit], request: &DeviceRequest, has_facts: bool) -> Error {
    let by = &request.by;
    let asks = format!("{by} asks for the device {:?}", brief(name));
    if units.is_empty() {
        return Error::usage(format!("{asks}; the host has no device of this vendor"))
            .resolve("load the driver: `provision load`; `oci-decorator check` lists the nodes");
    }
    let words: Vec<String> = units.iter().map(shown).collect();
    let error = Error::usage(format!("{asks}; the host has {}", words.join(", ")));
    let is_uuid = UUIDS.iter().any(|start| name.starts_with(start));
    let needs_facts = !has_facts && (is_uuid || name.contains(':'));
    match request.interface {
        Some(Interface::Amd) => error.resolve("name one of these numbers; `rocm-smi` lists the devices of a host"),
        _ if needs_facts => error.resolve("UUIDs and parts of devices are known only once `provision load` has written the device facts; until then, name an index"),
        _ => error.resolve("name one of them; `nvidia-smi -L` lists the devices of a host"),
    }
}

/// "0 (GPU-…; 0:0 MIG-…)"
fn shown(unit: &Unit) -> String {
    let index = unit.index;
    let uuid = unit.uuid.iter().cloned();
    let parts = unit.parts.iter().enumerate();
    let parts = parts.map(|(at, part)| {
        let own = part.index.map_or(at.to_string(), |own| own.to_string());
        match &part.uuid {
            Some(uuid) => format!("{index}:{own} {uuid}"),
            None => format!("{index}:{own}"),
        }
    });
    let words: Vec<String> = uuid.chain(parts).collect();
    if words.is_empty() {
        index.to_string()
    } else {
        format!("{index} ({})", words.join("; "))
    }
}
