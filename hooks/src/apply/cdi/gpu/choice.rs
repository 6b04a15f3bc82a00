//! Which devices and parts a specification is to have.

use super::nodes::Nodes;
use super::Naming;
use crate::decide::units::{Part, Unit};
use crate::error::{Error, Result};
use crate::log::brief;

const NAMINGS: [Naming; 3] = [Naming::Index, Naming::Uuid, Naming::TypeIndex];

/// The wanted ones.
pub(super) enum Chosen<'a> {
    All,
    Nothing,
    These(&'a [String]),
}

impl<'a> Chosen<'a> {
    /// The first special word counts, as there. Errors: a word names nothing of this host.
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

/// The number by which a part is named.
pub(super) fn number(place: usize, part: &Part) -> u32 {
    // Facts without NVML may lack the driver's number.
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
