//! What a device node is for. Starts by flag and by other programs' interfaces, both kinds of CDI
//! specification and `check` give nodes by this one classification.

use super::capabilities::is_right;
use super::facts::{Facts, FactsState, Source};
use super::units::{is_drm, units};
use super::{DeviceFound, Host};
use crate::model::decide::units::{Chosen, Unit};
use crate::model::edits::Device;
use crate::model::vendor::Vendor;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A control node, which every choice gets.
    Common,
    /// A device that can be chosen.
    Unit,
    /// Belongs to a unit, and comes with it: a graphics node, or a node of a MIG partition.
    Part,
    /// A permission. An inventory never gives it: a container has to ask for it by name.
    Right,
    /// A device of another vendor.
    Foreign,
}

impl Class {
    /// Why no choice of devices gives such a node.
    pub fn left_out(self) -> Option<&'static str> {
        match self {
            Self::Common | Self::Unit | Self::Part => None,
            Self::Right => Some("a permission, which a container gets only by name"),
            Self::Foreign => Some("a device of another vendor"),
        }
    }
}

/// A vendor's nodes on this host.
#[derive(Debug)]
pub struct Nodes<'a> {
    host: &'a Host,
    vendor: &'a Vendor,
    pub units: Vec<Unit>,
    /// The PCI vendor of the devices that the facts list, for a vendor file that does not say it.
    pci_vendor: Option<Vec<u8>>,
}

impl<'a> Nodes<'a> {
    pub fn of(
        host: &'a Host,
        vendor: &'a Vendor,
        devices: &[Device],
        facts: Option<&Facts>,
    ) -> Self {
        let by_sysfs = facts.filter(|facts| facts.source == Some(Source::Sysfs));
        let mut known = by_sysfs.into_iter().flat_map(|facts| &facts.devices);
        let pci = known.find_map(|gpu| gpu.pci.as_deref());
        Self {
            host,
            vendor,
            units: units(host, vendor, devices, facts),
            pci_vendor: pci
                .and_then(|pci| host.text_of_kernel(&format!("sys/bus/pci/devices/{pci}/vendor"))),
        }
    }

    /// The same with the facts about the vendor's devices, which are only read if the class of a
    /// node depends on them. Returns why these facts can't be used, too.
    pub fn by_facts(
        host: &'a Host,
        vendor: &'a Vendor,
        name: &str,
        devices: &[Device],
    ) -> (Self, Option<String>) {
        let depends = |device: &Device| is_right(&device.path) || is_drm(&device.path);
        let found = if devices.iter().any(depends) { host.facts(name) } else { FactsState::Absent };
        let nodes = Self::of(host, vendor, devices, found.facts());
        let problem = match found {
            FactsState::Broken(problem) => Some(problem),
            FactsState::Absent | FactsState::Facts(_) => None,
        };
        (nodes, problem)
    }

    pub fn class(&self, path: &str) -> Class {
        let is = |node: &String| node == path;
        let owner = |unit: &&Unit| unit.nodes.iter().any(is);
        let has_part = |unit: &Unit| unit.parts.iter().any(|part| part.nodes.iter().any(is));
        match self.units.iter().find(owner) {
            Some(unit) if unit.nodes.first().is_some_and(is) => Class::Unit,
            Some(_) => Class::Part,
            None if self.units.iter().any(has_part) => Class::Part,
            None if is_right(path) => Class::Right,
            None if self.is_others(path) => Class::Foreign,
            None if is_drm(path) || self.vendor.is_unit(path) => Class::Unit,
            None => Class::Common,
        }
    }

    fn is_others(&self, path: &str) -> bool {
        let differs = |own: &Vec<u8>| {
            let found = self.host.vendor_of(path);
            found.is_some_and(|found| found != *own)
        };
        self.host.is_others(self.vendor, path) || self.pci_vendor.as_ref().is_some_and(differs)
    }

    /// True if a container with these chosen devices gets the node.
    pub fn gives(&self, chosen: &Chosen, path: &str) -> bool {
        match self.class(path) {
            Class::Common => true,
            Class::Unit | Class::Part => chosen.is_all || chosen.nodes.contains(path),
            Class::Right | Class::Foreign => false,
        }
    }

    /// Leaves the nodes that a container with these chosen devices gets. Adds those of parts, which
    /// an inventory does not have to list. Returns what the host lacks of these: paths, and why.
    pub fn limit(&self, devices: &mut Vec<Device>, chosen: &Chosen) -> Vec<(String, String)> {
        devices.retain(|device| self.gives(chosen, &device.path));
        let parts = self.units.iter().flat_map(|unit| &unit.parts);
        let paths = parts.flat_map(|part| &part.nodes);
        add(self.host, devices, paths.filter(|path| chosen.nodes.contains(*path)))
    }
}

/// Adds nodes. Returns the paths of those that the host lacks, and why.
pub fn add<'p>(
    host: &Host,
    devices: &mut Vec<Device>,
    paths: impl Iterator<Item = &'p String>,
) -> Vec<(String, String)> {
    let mut missing = Vec::new();
    for path in paths {
        if devices.iter().any(|device| device.path == *path) {
            continue;
        }
        for (path, found) in host.devices(path) {
            match found {
                DeviceFound::Node(device) => devices.push(device),
                DeviceFound::Missing => {
                    missing.push((path, "the host has no such device".to_owned()));
                }
                DeviceFound::Unusable(problem) => missing.push((path, problem)),
            }
        }
    }
    missing
}
