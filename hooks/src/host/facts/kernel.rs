//! Compares device facts with what the kernel says now. A driver may have been loaded again, or a
//! GPU been divided, since the facts were written: a name would then give another device.

use std::collections::BTreeSet;

use super::{Facts, FactsSource, Gpu};
use crate::host::Host;

/// The files of NVIDIA's driver. Without them, it is not loaded, and its nodes lead nowhere.
/// <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html>
const NVIDIA: &str = "proc/driver/nvidia";
const PCI: &str = "sys/bus/pci/devices";

/// The GPU instance, the compute instance, and their nodes.
type Part = (u32, u32, BTreeSet<String>);

impl Host {
    /// Why the facts describe other devices than this host has now.
    pub(super) fn contradicts(&self, facts: &Facts) -> Option<String> {
        let by_sysfs = facts.source == Some(FactsSource::Sysfs);
        let folder = if by_sysfs { PCI.to_owned() } else { format!("{NVIDIA}/gpus") };
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
        let folder = format!("{NVIDIA}/capabilities/gpu{}/mig", gpu.minor);
        let now = self.parts(&folder);
        let node = |name: &String| name.rsplit('/').next().unwrap_or_default().to_owned();
        let parts = gpu.mig.iter().filter_map(|part| {
            let nodes = part.nodes.iter().map(node).collect();
            Some((part.gpu_instance?, part.compute_instance?, nodes))
        });
        let known: BTreeSet<Part> = parts.collect();
        // Facts with problems may lack a part.
        let is_same = known == now || !facts.problems.is_empty() && known.is_subset(&now);
        (!is_same).then(|| format!("/{folder} has other partitions"))
    }

    /// The partitions of a GPU.
    fn parts(&self, folder: &str) -> BTreeSet<Part> {
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

/// The value of a line `NAME: VALUE`.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}
