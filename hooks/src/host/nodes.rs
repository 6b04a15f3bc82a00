//! What a device node is for, and the units of a vendor that a container can choose: from the device
//! facts if there are any, else from the nodes. Starts by flag and by other programs' interfaces,
//! both kinds of CDI specification and `check` give nodes by this one classification.

use rustix::fs::OFlags;

use crate::error::Error;
use crate::host::facts::{field, Facts, FactsSource, FactsState, Gpu};
use crate::host::rootfs::path_of;
use crate::host::{DeviceFound, Host};
use crate::model::decide::units::{Chosen, Unit};
use crate::model::edits::Device;
use crate::model::request::Channels;
use crate::model::vendor::Vendor;

/// The folder of the kernel's graphics nodes.
const DRM: &str = "/dev/dri/";
/// PCI vendor numbers, by the vendor in the kinds of CDI:
/// <https://pcisig.com/membership/member-companies>.
const AMD: &str = "0x1002";
const NVIDIA: &str = "0x10de";
const VENDORS: [(&str, &str); 3] =
    [("amd.com", AMD), ("intel.com", "0x8086"), ("nvidia.com", NVIDIA)];

/// Folders of nodes that are permissions: with some of them a container can partition every GPU.
const CAPABILITIES: [&str; 2] = ["/dev/nvidia-caps/", CHANNELS];
const CHANNELS: &str = "/dev/nvidia-caps-imex-channels/";
/// The folder where the driver names the node of each right.
const MIG_FOLDER: &str = "proc/driver/nvidia/capabilities/mig";

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
    pci_vendor: Option<String>,
}

impl<'a> Nodes<'a> {
    pub fn of(
        host: &'a Host,
        vendor: &'a Vendor,
        devices: &[Device],
        facts: Option<&Facts>,
    ) -> Self {
        let by_sysfs = facts.filter(|facts| facts.source == Some(FactsSource::Sysfs));
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
        let differs = |own: &String| {
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

/// True for a graphics node of the kernel, which belongs to one device.
pub fn is_drm(path: &str) -> bool {
    path.strip_prefix(DRM)
        .is_some_and(|name| name.starts_with("card") || name.starts_with("renderD"))
}

/// The vendor's units on this host, from its nodes there.
pub fn units(host: &Host, vendor: &Vendor, nodes: &[Device], facts: Option<&Facts>) -> Vec<Unit> {
    let by_drm = vendor.units.as_deref().is_some_and(|units| units.contains("dri/"));
    let is_unit = |path: &str| vendor.is_unit(path) && is_drm(path) == by_drm;
    let mut own: Vec<(u32, &str)> = nodes
        .iter()
        .filter(|node| is_unit(&node.path) && !host.is_others(vendor, &node.path))
        .filter_map(|node| Some((number(&node.path)?, node.path.as_str())))
        .collect();
    own.sort_unstable();
    own.dedup();
    match facts {
        Some(facts) if !facts.devices.is_empty() => by_facts(host, &own, facts),
        _ if by_drm => own.iter().zip(0..).map(|(node, at)| of_drm(host, node.1, at)).collect(),
        _ => own.iter().map(|&(number, path)| of_node(path, number)).collect(),
    }
}

fn of_node(path: &str, index: u32) -> Unit {
    Unit { index, nodes: vec![path.to_owned()], ..Unit::default() }
}

/// A unit that is known by a graphics node, with the other graphics nodes of its device.
fn of_drm(host: &Host, path: &str, index: u32) -> Unit {
    let mut unit = of_node(path, index);
    if let Some(pci) = host.pci_of(path) {
        let others = host.drm_of(&pci).into_iter();
        unit.nodes.extend(others.filter(|other| other != path));
    }
    unit
}

fn by_facts(host: &Host, own: &[(u32, &str)], facts: &Facts) -> Vec<Unit> {
    let unit = |gpu: &Gpu| {
        let node = own.iter().find(|(number, _)| *number == gpu.minor);
        let drm = gpu.pci.iter().flat_map(|pci| host.drm_of(pci));
        Unit {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            pci: gpu.pci.clone(),
            nodes: node.map(|(_, path)| (*path).to_owned()).into_iter().chain(drm).collect(),
            parts: gpu.mig.clone(),
        }
    };
    facts.devices.iter().map(unit).collect()
}

/// The number at the end of a name.
pub fn number(path: &str) -> Option<u32> {
    let at = path.rfind(|c: char| !c.is_ascii_digit())? + 1;
    path[at..].parse().ok()
}

impl Host {
    /// The graphics nodes of the device with a PCI address.
    pub fn drm_of(&self, pci: &str) -> Vec<String> {
        if pci.contains('/') || pci.starts_with('.') {
            return Vec::new();
        }
        let names = self.names_in(&format!("sys/bus/pci/devices/{pci}/drm")).unwrap_or_default();
        let paths = names.into_iter().map(|name| format!("{DRM}{name}"));
        paths.filter(|path| is_drm(path)).collect()
    }

    /// The PCI address of the device that a graphics node belongs to.
    fn pci_of(&self, path: &str) -> Option<String> {
        let fd = self.root.open_in(&device_of(path)?, OFlags::PATH).ok()?;
        let path = path_of(fd)?;
        path.rsplit('/').next().map(str::to_owned)
    }

    /// True for a graphics node that the kernel attributes to another vendor than this one.
    pub fn is_others(&self, vendor: &Vendor, path: &str) -> bool {
        if !is_drm(path) {
            return false;
        }
        let kind = vendor.cdi_kind.as_deref().and_then(|it| it.split('/').next());
        let interfaces = vendor.interfaces.iter().map(|it| it.domain());
        let mut domains = kind.into_iter().chain(interfaces);
        let number = |domain| VENDORS.iter().find(|(known, _)| *known == domain);
        let Some((_, own)) = domains.find_map(number) else {
            return false;
        };
        let found = self.vendor_of(path);
        found.is_some_and(|found| found.trim_ascii() != *own)
    }

    /// True for a graphics node, unless the kernel attributes it to a vendor whose devices no
    /// scheduler gives.
    pub fn may_be_scheduled(&self, path: &str) -> bool {
        let vendor = self.vendor_of(path);
        vendor.is_none_or(|vendor| [AMD, NVIDIA].contains(&vendor.trim_ascii()))
    }

    /// The PCI vendor to which the kernel attributes a graphics node.
    pub(super) fn vendor_of(&self, path: &str) -> Option<String> {
        let device = device_of(path)?;
        self.text_of_kernel(&format!("{device}/vendor"))
    }
}

fn device_of(path: &str) -> Option<String> {
    let name = path.strip_prefix(DRM)?;
    Some(format!("sys/class/drm/{name}/device"))
}

/// True for a node that is a permission, unless it belongs to a part of a device.
pub fn is_right(path: &str) -> bool {
    CAPABILITIES.iter().any(|folder| path.starts_with(folder))
}

pub fn channels(host: &Host, wanted: &Channels, by: &str) -> crate::error::Result<Vec<String>> {
    match wanted {
        Channels::All => {
            let found = host.devices(&format!("{CHANNELS}channel[0-9]*"));
            Ok(found.into_iter().map(|(path, _)| path).collect())
        }
        Channels::These(numbers) => {
            let paths = numbers.iter().map(|number| format!("{CHANNELS}channel{number}"));
            let paths: Vec<String> = paths.collect();
            let is_missing = |path: &&String| host.nodes(path).next().is_none();
            if let Some(path) = paths.iter().find(is_missing) {
                let message =
                    format!("{by} asks for an IMEX channel, and the host has no node {path}");
                return Err(Error::not_found(message).resolve(
                    "make it (`nvidia-modprobe -i 1 -s` makes the first), or set NVreg_CreateImexChannel0=1 for the module nvidia",
                ));
            }
            Ok(paths)
        }
    }
}

/// The node that gives a container a right over all GPUs. Errors: why the right has no effect.
pub fn right_node(host: &Host, right: &str, by: &str) -> Result<String, String> {
    let path = format!("{MIG_FOLDER}/{right}");
    let text = host.text_of_kernel(&path);
    let number = text.as_deref().and_then(|text| field(text, "DeviceFileMinor"));
    let number = number.and_then(|number| number.parse::<u32>().ok()).ok_or_else(|| {
        format!("{by} has no effect: no GPU of the host has MIG, as there is no /{path}")
    })?;
    Ok(format!("{}nvidia-cap{number}", CAPABILITIES[0]))
}
