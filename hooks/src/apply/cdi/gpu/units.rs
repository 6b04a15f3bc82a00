//! The nodes that a specification has, and the chosen units and parts.

use super::Naming;
use crate::error::{Error, Result};
use crate::host::nodes::{Class, Nodes};
use crate::log::brief;
use crate::model::decide::units::{self, Part, Unit};
use crate::model::edits::Device;

/// What every container with a device of the specification may get.
pub(super) struct Given<'a> {
    nodes: Nodes<'a>,
    devices: Vec<Device>,
}

impl<'a> Given<'a> {
    pub fn of(nodes: Nodes<'a>, mut devices: Vec<Device>) -> Self {
        nodes.limit(&mut devices, &units::Chosen::all(&nodes.units));
        // A unit's own node comes before those of its parts.
        devices.sort_by_key(|device| nodes.class(&device.path) != Class::Unit);
        Self { nodes, devices }
    }

    /// The units with their positions. One of the facts without a node can't be given.
    pub fn units(&self) -> impl Iterator<Item = (usize, &Unit)> {
        let has_node = |unit: &Unit| self.devices.iter().any(|it| unit.nodes.contains(&it.path));
        let units = self.nodes.units.iter().enumerate();
        units.filter(move |(_, unit)| has_node(unit))
    }

    pub fn common(&self) -> impl Iterator<Item = &Device> {
        let is_common = |it: &&Device| self.nodes.class(&it.path) == Class::Common;
        self.devices.iter().filter(is_common)
    }

    /// The nodes of every unit and part.
    pub fn own(&self) -> impl Iterator<Item = &Device> {
        let is_common = |it: &Device| self.nodes.class(&it.path) == Class::Common;
        self.devices.iter().filter(move |it| !is_common(it))
    }

    /// The nodes of a unit, with those of all its parts or of one.
    pub fn of_unit(&self, at: usize, part: Option<usize>) -> Vec<&Device> {
        let chosen = units::Chosen::one(&self.nodes.units, at, part);
        let own = self.own().filter(|it| chosen.nodes.contains(&it.path));
        own.collect()
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
    pub fn of(given: &Given, ids: &'a [String]) -> Result<Self> {
        let special = ids.iter().find(|id| matches!(id.as_str(), "all" | "none"));
        match special.map(String::as_str) {
            Some("none") => return Ok(Self::Nothing),
            None if !ids.is_empty() && given.units().next().is_some() => {}
            _ => return Ok(Self::All),
        }
        let mut known: Vec<String> = Vec::new();
        for (_, unit) in given.units() {
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
