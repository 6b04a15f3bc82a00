//! Assigns nodes to units by the rules of a start, and chooses the units and parts of a
//! specification.

use super::Naming;
use crate::config::vendor::Vendor;
use crate::decide::units::{Part, Unit};
use crate::discover::capabilities::is_capability;
use crate::discover::facts::Facts;
use crate::discover::host::{DeviceFound, Host};
use crate::discover::units::{is_drm, units};
use crate::edits::Device;
use crate::error::{Error, Result};
use crate::log::brief;

/// The nodes of the host, by what they belong to.
pub(super) struct Nodes {
    pub common: Vec<Device>,
    pub units: Vec<(Unit, Vec<Device>)>,
    /// Nodes of parts.
    pub others: Vec<Device>,
}

impl Nodes {
    pub fn sort(host: &Host, vendor: &Vendor, all: Vec<Device>, facts: Option<&Facts>) -> Self {
        let known = units(host, vendor, &all, facts);
        let mut nodes = Self {
            common: Vec::new(),
            units: known.into_iter().map(|unit| (unit, Vec::new())).collect(),
            others: Vec::new(),
        };
        nodes.add_parts(host);
        for device in all {
            nodes.put(vendor, device);
        }
        // A unit of the facts without a node can't be given.
        nodes.units.retain(|(_, nodes)| !nodes.is_empty());
        nodes
    }

    /// Adds the nodes of parts, which an inventory does not have to list.
    fn add_parts(&mut self, host: &Host) {
        let parts = self.units.iter().flat_map(|(unit, _)| &unit.parts);
        for path in parts.flat_map(|part| &part.nodes) {
            for (_, found) in host.devices(path) {
                if let DeviceFound::Node(device) = found {
                    self.others.push(device);
                }
            }
        }
    }

    /// Assigns a node. A unit's node without a name is left out: as a common node, every container
    /// would get it, and with some nodes below `nvidia-caps` a container can partition every GPU.
    fn put(&mut self, vendor: &Vendor, device: Device) {
        let path = &device.path;
        if self.others.iter().any(|other| other.path == *path) {
            return;
        }
        let mut units = self.units.iter_mut();
        let own = units.find(|(unit, _)| unit.nodes.contains(path));
        if let Some((_, nodes)) = own {
            nodes.push(device);
        } else if !is_capability(path) && !is_drm(path) && !vendor.is_unit(path) {
            self.common.push(device);
        }
    }
}

const NAMINGS: [Naming; 3] = [Naming::Index, Naming::Uuid, Naming::TypeIndex];

/// The chosen devices.
pub(super) enum Chosen<'a> {
    All,
    Nothing,
    These(&'a [String]),
}

impl<'a> Chosen<'a> {
    /// The first special word counts, as in NVIDIA's tool. Errors: an id that no device has.
    pub fn of(nodes: &Nodes, ids: &'a [String]) -> Result<Self> {
        let special = ids.iter().find(|id| matches!(id.as_str(), "all" | "none"));
        match special.map(String::as_str) {
            Some("none") => return Ok(Self::Nothing),
            None if !ids.is_empty() && !nodes.units.is_empty() => {}
            _ => return Ok(Self::All),
        }
        let mut known: Vec<String> = Vec::new();
        for (unit, _) in &nodes.units {
            known.extend(names(unit));
            let parts = unit.parts.iter().enumerate();
            known.extend(parts.flat_map(|(place, part)| part_names(unit, place, part)));
        }
        match ids.iter().find(|id| !known.contains(id)) {
            None => Ok(Self::These(ids)),
            Some(unknown) => Err(Error::not_found(format!(
                "this host has no device {:?}; known are {}",
                brief(unknown),
                known.join(", ")
            ))
            .resolve("give --device-id an index or a UUID of these; `nvidia-ctk info` lists them")),
        }
    }

    pub fn has_unit(&self, unit: &Unit) -> bool {
        self.has(names(unit))
    }

    pub fn has_part(&self, unit: &Unit, place: usize, part: &Part) -> bool {
        self.has(part_names(unit, place, part))
    }

    fn has(&self, mut names: impl Iterator<Item = String>) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::These(ids) => names.any(|name| ids.contains(&name)),
        }
    }
}

/// The number in a part's name.
pub(super) fn number(place: usize, part: &Part) -> u32 {
    // Facts that were collected without NVML may lack the driver's number.
    let number = part.index.or_else(|| u32::try_from(place).ok());
    number.unwrap_or(u32::MAX)
}

fn names(unit: &Unit) -> impl Iterator<Item = String> + '_ {
    NAMINGS.iter().filter_map(|naming| naming.unit(unit))
}

fn part_names<'a>(
    unit: &'a Unit,
    place: usize,
    part: &'a Part,
) -> impl Iterator<Item = String> + 'a {
    let number = number(place, part);
    NAMINGS
        .iter()
        .filter_map(move |naming| naming.part(unit, number, part))
}
