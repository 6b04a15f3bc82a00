//! Device facts: what is known about a vendor's devices beyond their nodes. `provision` writes the
//! file when it loads a driver.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::host::nodes::{filled, Part};
use crate::host::rootfs::{read_regular, untrusted};
use crate::host::Host;
use crate::model::edits::split;

/// The folder of the files, below the host's root.
pub const FOLDER: &str = "/run/oci-decorator/devices";
/// What to do about facts that can't be used.
pub const WRITE_AGAIN: &str = "write the device facts again: `provision devices --rescan`";
/// A change of this file makes `provision-devices.path` have the facts written again.
const REFRESH: (&str, &str) = ("run/oci-decorator", "refresh");
/// Largest file that is read, in bytes. A device takes some hundred bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// A vendor's devices, as the file has them. Unknown members are for other programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub source: Option<FactsSource>,
    #[serde(deserialize_with = "filled")]
    pub driver_version: Option<String>,
    #[serde(deserialize_with = "filled")]
    pub cuda_version: Option<String>,
    pub devices: Vec<Gpu>,
    /// What the writer could not find out.
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FactsSource {
    /// NVIDIA's files in `/proc`, which know no parts.
    Proc,
    /// The kernel's graphics nodes.
    Sysfs,
    /// NVIDIA's driver, in another way.
    #[serde(other)]
    Driver,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Gpu {
    pub index: u32,
    pub minor: u32,
    #[serde(default, deserialize_with = "filled")]
    pub uuid: Option<String>,
    /// `0000:01:00.0`
    #[serde(default, deserialize_with = "filled")]
    pub pci: Option<String>,
    #[serde(default, deserialize_with = "filled")]
    pub brand: Option<String>,
    /// Compute capability: `8.0`.
    #[serde(default, deserialize_with = "filled")]
    pub arch: Option<String>,
    #[serde(default)]
    pub mig: Vec<Part>,
}

impl Host {
    /// Reads the facts about a vendor's devices, and compares them with the kernel. No link in the
    /// path is followed, and only root may be able to change the file and the folders above it.
    /// Errors: the path of the file, and why it can't be used.
    pub fn facts(&self, vendor: &str) -> Result<Option<Facts>, String> {
        let path = format!("{FOLDER}/{vendor}.json");
        let broken = |problem: String| format!("{}: {problem}", self.shown(&path));
        let bytes = match self.trusted_bytes(&path) {
            Ok(bytes) => bytes.map_err(broken)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::INVAL) => return Err(broken("not a regular file".to_owned())),
            Err(Errno::FBIG) => return Err(broken(format!("larger than {MAX_SIZE} bytes"))),
            Err(error) => return Err(broken(format!("can't be read: {error}"))),
        };
        let facts = parse(&bytes).map_err(broken)?;
        if let Some(reason) = self.contradicts(&facts) {
            self.have_facts_written();
            return Err(broken(format!("out of date: {reason}")));
        }
        Ok(Some(facts))
    }

    /// Has the facts written again, where `provision`'s units are at work and this is root.
    fn have_facts_written(&self) {
        let (folder, name) = REFRESH;
        let Ok(folder) = self.root.open_plain(folder, OFlags::PATH) else {
            return;
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // systemd watches for the end of the write. Truncating sets the time of the change, by which
        // a service that is writing facts sees that they have to be written again.
        let flags = flags | OFlags::TRUNC;
        let _ = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o644));
    }

    /// The inner error says why a user other than root may have written the file.
    fn trusted_bytes(&self, path: &str) -> rustix::io::Result<Result<Vec<u8>, String>> {
        let mut step = path;
        while let Some((folder, _)) = split(step) {
            let stat = rustix::fs::fstat(self.root.open_plain(step, OFlags::PATH)?)?;
            if let Some(problem) = untrusted(&stat) {
                return Ok(Err(format!("{step} {problem}")));
            }
            step = folder;
        }
        let fd = self.root.open_plain(path, OFlags::PATH)?;
        read_regular(&fd, MAX_SIZE).map(|(bytes, _)| Ok(bytes))
    }

    /// Why the facts describe other devices than this host has now.
    pub(super) fn contradicts(&self, facts: &Facts) -> Option<String> {
        let by_sysfs = facts.source == Some(FactsSource::Sysfs);
        let folder = if by_sysfs { PCI.to_owned() } else { format!("{DRIVER}/gpus") };
        if !self.is_there(&folder) {
            return None;
        }
        facts.devices.iter().find_map(|gpu| {
            let pci = gpu.pci.as_deref()?;
            // A name of one folder.
            if pci.contains('/') || pci.starts_with('.') {
                return Some(format!("{pci:?} is no PCI address"));
            }
            if by_sysfs {
                let node = format!("{folder}/{pci}/drm/renderD{}", gpu.minor);
                let is_there = self.is_there(&node);
                return (!is_there).then(|| format!("the host has no /{node}"));
            }
            self.contradicts_gpu(&folder, pci, gpu, facts)
        })
    }

    fn contradicts_gpu(&self, folder: &str, pci: &str, gpu: &Gpu, facts: &Facts) -> Option<String> {
        let path = format!("{folder}/{pci}/information");
        let Some(text) = self.text_of_kernel(&path) else {
            return Some(format!("the host has no /{path}"));
        };
        let differs = |what: &str, known: &str| {
            let now = field(&text, what)?;
            // The driver shows question marks for a UUID that it has not read yet.
            let is_other = !now.contains('?') && !now.eq_ignore_ascii_case(known);
            is_other.then(|| format!("/{path} has {what} {now}, and not {known}"))
        };
        let minor = gpu.minor.to_string();
        let uuid = gpu.uuid.as_deref();
        differs("Device Minor", &minor)
            .or_else(|| differs("GPU UUID", uuid?))
            .or_else(|| self.contradicts_parts(gpu, facts))
    }

    fn contradicts_parts(&self, gpu: &Gpu, facts: &Facts) -> Option<String> {
        // Without NVML, nothing is known about parts.
        if facts.source == Some(FactsSource::Proc) {
            return None;
        }
        let folder = format!("{DRIVER}/capabilities/gpu{}/mig", gpu.minor);
        let now = self.parts(&folder);
        let node = |name: &String| name.rsplit('/').next().unwrap_or_default().to_owned();
        let parts = gpu.mig.iter().filter_map(|part| {
            let nodes = part.nodes.iter().map(node).collect();
            Some((part.gpu_instance?, part.compute_instance?, nodes))
        });
        let known: BTreeSet<Partition> = parts.collect();
        // Facts with problems may lack a part.
        let is_same = known == now || !facts.problems.is_empty() && known.is_subset(&now);
        (!is_same).then(|| format!("/{folder} has other partitions"))
    }

    fn parts(&self, folder: &str) -> BTreeSet<Partition> {
        let numbered = |folder: &str, start: &str| -> Vec<(u32, String)> {
            let names = self.names_in(folder).unwrap_or_default().into_iter();
            let number = |name: &String| name.strip_prefix(start)?.parse().ok();
            let found = names.filter_map(|name| Some((number(&name)?, format!("{folder}/{name}"))));
            found.collect()
        };
        let node = |folder: &str| {
            let text = self.text_of_kernel(&format!("{folder}/access"))?;
            Some(format!("nvidia-cap{}", field(&text, "DeviceFileMinor")?))
        };
        let instances = numbered(folder, "gi").into_iter();
        let parts = instances.flat_map(|(gpu, instance)| {
            let own = node(&instance);
            numbered(&instance, "ci").into_iter().map(move |(compute, path)| {
                let nodes = own.iter().cloned().chain(node(&path));
                (gpu, compute, nodes.collect())
            })
        });
        parts.collect()
    }
}

/// Reads the text. Errors: it is not one of facts, or two devices have the same number.
fn parse(text: &[u8]) -> Result<Facts, String> {
    let facts: Facts = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let (mut indices, mut minors) = (BTreeMap::new(), BTreeMap::new());
    for (at, gpu) in facts.devices.iter().enumerate() {
        for (what, number, known) in
            [("index", gpu.index, &mut indices), ("minor", gpu.minor, &mut minors)]
        {
            if let Some(other) = known.insert(number, at) {
                return Err(format!(
                    "devices[{other}] and devices[{at}] have the same {what}, {number}"
                ));
            }
        }
    }
    Ok(facts)
}

// Compares device facts with what the kernel says now. A driver may have been loaded again, or a
// GPU been divided, since the facts were written: a name would then give another device.

/// The files of NVIDIA's driver. Without them, it is not loaded, and its nodes lead nowhere.
/// <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html>
const DRIVER: &str = "proc/driver/nvidia";
const PCI: &str = "sys/bus/pci/devices";

/// The GPU instance, the compute instance, and their nodes.
type Partition = (u32, u32, BTreeSet<String>);

/// The value of a line `NAME: VALUE`.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}
