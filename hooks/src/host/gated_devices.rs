//! Nodes of other drivers that work together with NVIDIA's, and belong to no GPU. A container gets them by
//! a variable beside its GPUs, or by a specification of CDI for them alone.
//!
//! Source:
//! <https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html>

use crate::host::inventory::groups;
use crate::host::Host;
use crate::log::{Level, Note};
use crate::model::edits::{Device, Edits, Mount};
use crate::model::request::{DeviceRequest, ExtraKind};

#[derive(Debug)]
pub struct GatedDevices {
    /// The word of `nvidia-ctk cdi generate --mode`, and of NVIDIA's `features.WORD`.
    pub word: &'static str,
    /// The variable with which a container requests every node, by the value `enabled`.
    pub variable: Option<&'static str>,
    /// Their names below `/dev`.
    pub patterns: &'static [&'static str],
    /// Files that go with them, if the host has them.
    files: &'static [&'static str],
    /// The kernel module that makes them.
    pub module: &'static str,
    /// If set, each node is a device, named by the number that follows this in the node's name.
    pub number_behind: Option<&'static str>,
}

/// Everything that this program knows of such a variable. Its word is also in the help of `nvidia-ctk cdi`.
pub static GATED: [GatedDevices; 5] = [
    GatedDevices {
        word: "gds",
        variable: Some("NVIDIA_GDS"),
        patterns: &["nvidia-fs*"],
        files: &["/run/udev", "/etc/cufile.json"],
        module: "nvidia-fs",
        number_behind: None,
    },
    GatedDevices {
        word: "mofed",
        variable: Some("NVIDIA_MOFED"),
        patterns: &["infiniband/uverbs*", "infiniband/rdma_cm"],
        files: &[],
        module: "ib_uverbs",
        number_behind: None,
    },
    GatedDevices {
        word: "gdrcopy",
        variable: Some("NVIDIA_GDRCOPY"),
        patterns: &["gdrdrv"],
        files: &[],
        module: "gdrdrv",
        number_behind: None,
    },
    GatedDevices {
        word: "imex",
        variable: None,
        patterns: &["nvidia-caps-imex-channels/channel*"],
        files: &[],
        module: "nvidia",
        number_behind: Some("channel"),
    },
    GatedDevices {
        word: "nvswitch",
        variable: Some("NVIDIA_NVSWITCH"),
        patterns: &["nvidia-nvswitch*"],
        files: &[],
        module: "nvidia",
        number_behind: None,
    },
];

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
pub fn edits(host: &Host, request: &DeviceRequest) -> (Edits, Vec<Note>) {
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
