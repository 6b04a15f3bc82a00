//! The units of a vendor that a container can choose: from the device facts if there are any, else
//! from the nodes. The kernel tells which graphics nodes belong to which device.

use rustix::fs::OFlags;

use super::facts::Facts;
use super::Host;
use crate::host::rootfs::listing::names_in;
use crate::host::rootfs::path_of;
use crate::model::decide::units::{Part, Unit};
use crate::model::edits::Device;
use crate::model::vendor::Vendor;

/// The folder of the kernel's graphics nodes.
const DRM: &str = "/dev/dri/";
/// PCI vendor numbers, by the vendor in the kinds of CDI:
/// <https://pcisig.com/membership/member-companies>.
const AMD: &str = "0x1002";
const NVIDIA: &str = "0x10de";
const VENDORS: [(&str, &str); 3] =
    [("amd.com", AMD), ("intel.com", "0x8086"), ("nvidia.com", NVIDIA)];

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
    let unit = |gpu: &super::facts::Gpu| {
        let node = own.iter().find(|(number, _)| *number == gpu.minor);
        let drm = gpu.pci.iter().flat_map(|pci| host.drm_of(pci));
        let parts = gpu.mig.iter().map(|mig| Part {
            index: mig.index,
            uuid: mig.uuid.clone(),
            gpu_instance: mig.gpu_instance,
            compute_instance: mig.compute_instance,
            nodes: mig.nodes.iter().map(|name| format!("/dev/{name}")).collect(),
        });
        Unit {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            nodes: node.map(|(_, path)| (*path).to_owned()).into_iter().chain(drm).collect(),
            parts: parts.collect(),
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
        let folder = format!("sys/bus/pci/devices/{pci}/drm");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.root.open_in(&folder, flags);
        let names = opened.and_then(names_in).unwrap_or_default();
        let paths = names.into_iter().map(|name| format!("{DRM}{name}"));
        let mut paths: Vec<String> = paths.filter(|path| is_drm(path)).collect();
        paths.sort();
        paths
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
        found.is_some_and(|found| found.trim_ascii() != own.as_bytes())
    }

    /// True for a graphics node, unless the kernel attributes it to a vendor whose devices no
    /// scheduler gives.
    pub fn may_be_scheduled(&self, path: &str) -> bool {
        let vendor = self.vendor_of(path);
        vendor.is_none_or(|vendor| {
            let vendor = vendor.trim_ascii();
            [AMD, NVIDIA].iter().any(|known| vendor == known.as_bytes())
        })
    }

    /// The PCI vendor to which the kernel attributes a graphics node.
    pub(super) fn vendor_of(&self, path: &str) -> Option<Vec<u8>> {
        let device = device_of(path)?;
        self.text_of_kernel(&format!("{device}/vendor"))
    }
}

fn device_of(path: &str) -> Option<String> {
    let name = path.strip_prefix(DRM)?;
    Some(format!("sys/class/drm/{name}/device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::os::unix::fs::symlink;

    fn vendor(units: &str) -> Vendor {
        let text = format!(
            r#"{{"activation_flag":"X","driver_feature":[],"units":"{units}","cdi_kind":"amd.com/gpu",
                "inventory":{{"a":{{"devices":["nvidia0","nvidia1","nvidiactl","dri/card0","dri/renderD128"]}}}}}}"#
        );
        crate::config::vendor::parse(&text).unwrap()
    }

    fn node(path: &str) -> Device {
        Device {
            source: path.to_owned(),
            path: path.to_owned(),
            kind: 'c',
            major: 195,
            minor: 0,
            mode: 0o666,
            uid: None,
            gid: None,
            access: crate::model::edits::Access::ALL,
        }
    }

    /// A PCI device with graphics nodes, as the kernel shows it.
    fn device(root: &std::path::Path, pci: &str, vendor: &str, names: &[&str]) {
        let folder = root.join("sys/devices").join(pci);
        fs::create_dir_all(folder.join("drm")).unwrap();
        fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        for folder in ["sys/bus/pci/devices", "sys/class/drm"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let link = root.join("sys/bus/pci/devices").join(pci);
        symlink(format!("../../../devices/{pci}"), link).unwrap();
        for name in names {
            let own = folder.join("drm").join(name);
            fs::create_dir(&own).unwrap();
            symlink("../..", own.join("device")).unwrap();
            let target = format!("../../devices/{pci}/drm/{name}");
            symlink(target, root.join("sys/class/drm").join(name)).unwrap();
        }
    }

    fn shown(units: &[Unit]) -> Vec<String> {
        let shown = |unit: &Unit| format!("{}: {}", unit.index, unit.nodes.join(" "));
        units.iter().map(shown).collect()
    }

    #[test]
    fn devices_that_are_known_by_graphics_are_counted_in_order() {
        let dir = tempfile::tempdir().unwrap();
        device(dir.path(), "0000:00:02.0", "0x8086", &["card0", "renderD128"]);
        device(dir.path(), "0000:03:00.0", "0x1002", &["card2", "renderD129"]);
        device(dir.path(), "0000:04:00.0", "0x1002", &["card1", "renderD130"]);
        let host = Host::open(dir.path()).unwrap();
        let nodes = ["card0", "card1", "card2", "renderD130", "renderD128", "renderD129"];
        let nodes: Vec<Device> = nodes.map(|name| node(&format!("/dev/dri/{name}"))).into();
        let found = units(&host, &vendor("dri/renderD[0-9]*"), &nodes, None);
        let expected =
            ["0: /dev/dri/renderD129 /dev/dri/card2", "1: /dev/dri/renderD130 /dev/dri/card1"];
        assert_eq!(shown(&found), expected);
    }

    #[test]
    fn graphics_are_known_by_name() {
        for (path, is) in [
            ("/dev/dri/card0", true),
            ("/dev/dri/renderD128", true),
            ("/dev/dri/by-path/x", false),
            ("/dev/card0", false),
        ] {
            assert_eq!(is_drm(path), is, "{path}");
        }
        assert_eq!(number("/dev/nvidia12"), Some(12));
        assert_eq!(number("/dev/nvidiactl"), None);
        assert_eq!(number("/dev/nvidia99999999999"), None);
    }
}
