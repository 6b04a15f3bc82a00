//! What a device node is for, and the units of a vendor that a container can choose: from the device
//! facts if there are any, else from the nodes. Starts by flag and by other programs' interfaces,
//! both kinds of CDI specification and `check` give nodes by this one classification, and find the
//! devices that a request names by this one choice.

use std::collections::BTreeSet;

use rustix::fs::OFlags;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::Error;
use crate::host::facts::{field, Facts, FactsSource, Gpu};
use crate::host::resolve::groups;
use crate::host::rootfs::path_of;
use crate::host::Host;
use crate::log::{brief, Level, Note};
use crate::model::edits::{Device, Edits, Mount};
use crate::model::request::{Channels, DeviceList, DeviceRequest, ExtraKind, Interface};
use crate::model::vendor::{device_name, Vendor};

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
        let found = if devices.iter().any(depends) { host.facts(name) } else { Ok(None) };
        let nodes = Self::of(host, vendor, devices, found.as_ref().ok().and_then(Option::as_ref));
        (nodes, found.err())
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
                Ok(device) => devices.push(device),
                Err(problem) => missing.push((path, problem)),
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
        .filter_map(|node| Some((trailing_number(&node.path)?, node.path.as_str())))
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

pub fn trailing_number(path: &str) -> Option<u32> {
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
    #[serde(deserialize_with = "node_paths")]
    pub nodes: Vec<String>,
}

/// An empty text says nothing.
pub fn filled<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// The paths of nodes that are written as names under `/dev`.
fn node_paths<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
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

fn whole_number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn by_index(name: &str, units: &[Unit]) -> Option<usize> {
    let index = whole_number(name)?;
    units.iter().position(|unit| unit.index == index)
}

fn by_indices(index: &str, part: &str, units: &[Unit]) -> Option<UnitOrPart> {
    let at = by_index(index, units)?;
    let wanted = whole_number(part)?;
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
    let (gpu, compute) = (whole_number(words.next()?)?, whole_number(words.next()?)?);
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

/// Nodes of other drivers that work together with NVIDIA's, and belong to no GPU. A container gets them
/// by a variable beside its GPUs, or by a specification of CDI for them alone:
/// <https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html>
#[derive(Debug)]
pub struct GatedDevices {
    /// The word of `nvidia-ctk cdi generate --mode`, and of NVIDIA's `features.WORD`.
    pub word: &'static str,
    /// The variable with which a container requests every node, by the value `enabled`.
    pub variable: Option<&'static str>,
    /// Their names below `/dev`.
    pub patterns: &'static [&'static str],
    files: &'static [&'static str],
    /// The kernel module that makes them.
    pub module: &'static str,
    /// If set, each node is a device, named by the number that follows this in the node's name.
    pub number_behind: Option<&'static str>,
}

/// Everything that this program knows of such a variable. Its word is also in the help of `nvidia-ctk cdi`.
pub static GATED: [GatedDevices; 5] = [
    GatedDevices {
        files: &["/run/udev", "/etc/cufile.json"],
        ..gated("gds", Some("NVIDIA_GDS"), &["nvidia-fs*"], "nvidia-fs")
    },
    gated(
        "mofed",
        Some("NVIDIA_MOFED"),
        &["infiniband/uverbs*", "infiniband/rdma_cm"],
        "ib_uverbs",
    ),
    gated("gdrcopy", Some("NVIDIA_GDRCOPY"), &["gdrdrv"], "gdrdrv"),
    GatedDevices {
        number_behind: Some("channel"),
        ..gated("imex", None, &["nvidia-caps-imex-channels/channel*"], "nvidia")
    },
    gated("nvswitch", Some("NVIDIA_NVSWITCH"), &["nvidia-nvswitch*"], "nvidia"),
];

const fn gated(
    word: &'static str,
    variable: Option<&'static str>,
    patterns: &'static [&'static str],
    module: &'static str,
) -> GatedDevices {
    GatedDevices { word, variable, patterns, files: &[], module, number_behind: None }
}

impl GatedDevices {
    pub fn devices(&self, host: &Host) -> Vec<Device> {
        self.patterns.iter().flat_map(|it| host.nodes(it)).collect()
    }

    pub fn mounts(&self, host: &Host) -> Vec<Mount> {
        let Ok(tree) = host.tree(None) else {
            return Vec::new();
        };
        let files = self.files.iter().filter_map(|path| {
            Some(Mount { source: tree.find(path).ok()?.source?, target: (*path).to_owned() })
        });
        files.collect()
    }
}

/// What a container gets by the variables. Notes: what the host lacks.
pub fn gated_edits(host: &Host, request: &DeviceRequest) -> (Edits, Vec<Note>) {
    let mut edits = Edits::default();
    let mut notes = Vec::new();
    let gates = request.extras.iter().filter(|extra| extra.kind == ExtraKind::Gated);
    let gates: Vec<&str> = gates.map(|extra| extra.by.as_str()).collect();
    let is_open = |it: &&GatedDevices| it.variable.is_some_and(|name| gates.contains(&name));
    for gated in GATED.iter().filter(is_open) {
        let devices = gated.devices(host);
        if devices.is_empty() {
            let (by, module) = (gated.variable.unwrap_or_default(), gated.module);
            let patterns = gated.patterns.join(" and no ");
            let message = format!("{by} has no effect: the host has no {patterns} in /dev; load the driver: modprobe {module}");
            notes.push(Note::new(Level::Warning, message));
            continue;
        }
        edits.devices.extend(devices);
        edits.mounts.extend(gated.mounts(host));
    }
    if request.groups {
        edits.groups = groups(&edits.devices);
    }
    (edits, notes)
}
