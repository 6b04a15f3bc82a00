//! Which node belongs to which unit, by the rules that a start follows.

use crate::config::vendor::Vendor;
use crate::decide::units::Unit;
use crate::discover::answer::is_capability;
use crate::discover::facts::Facts;
use crate::discover::host::{DeviceFound, Host};
use crate::discover::units::{is_drm, units};
use crate::edits::Device;

/// Whose each node is.
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
        // A unit of the facts whose node is gone can't be given.
        nodes.units.retain(|(_, nodes)| !nodes.is_empty());
        nodes
    }

    /// Inventories needn't list the nodes of parts.
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

    /// A node of a unit that no name stands for is left out: as a common one, each
    /// container would have it. With some of those below `nvidia-caps` a container partitions every GPU.
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
