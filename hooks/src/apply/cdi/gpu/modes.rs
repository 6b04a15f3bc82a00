//! The modes of `nvidia-ctk cdi generate --mode`: the devices of the vendor file, or nodes of
//! related drivers, which a vendor file does not have to list.
//!
//! Source:
//! <https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html>

use serde_json::{json, Value};

use super::super::devices::device_node;
use super::super::VERSION;
use super::Request;
use crate::discover::host::{DeviceFound, Host};
use crate::edits::Device;
use crate::error::{Error, Result};

/// The meaning of a word of `--mode`.
#[derive(Debug, Clone, Copy)]
pub enum Mode {
    /// The devices of the vendor file.
    Devices,
    Nodes(&'static Nodes),
    /// Not supported.
    Management,
}

/// Nodes that do not belong to a GPU.
#[derive(Debug)]
pub struct Nodes {
    word: &'static str,
    /// Their names below `/dev`.
    patterns: &'static [&'static str],
    /// Files that go with them, if the host has them.
    files: &'static [&'static str],
    /// The kernel module that makes them.
    module: &'static str,
    /// If set, each node is a device, named by the number that follows this in the node's name.
    number_behind: Option<&'static str>,
}

static NODES: [Nodes; 4] = [
    Nodes {
        word: "gds",
        patterns: &["nvidia-fs*"],
        files: &["/run/udev", "/etc/cufile.json"],
        module: "nvidia-fs",
        number_behind: None,
    },
    Nodes {
        word: "mofed",
        patterns: &["infiniband/uverbs*", "infiniband/rdma_cm"],
        files: &[],
        module: "ib_uverbs",
        number_behind: None,
    },
    Nodes {
        word: "imex",
        patterns: &["nvidia-caps-imex-channels/channel*"],
        files: &[],
        module: "nvidia",
        number_behind: Some("channel"),
    },
    Nodes {
        word: "nvswitch",
        patterns: &["nvidia-nvswitch*"],
        files: &[],
        module: "nvidia",
        number_behind: None,
    },
];

impl Mode {
    /// Every word, for error messages.
    pub const WORDS: &'static str = "auto, nvml, wsl, csv, management, gds, mofed, imex, nvswitch";

    /// Reads a word in any case, as NVIDIA's tool does.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        match text.as_str() {
            "auto" | "nvml" | "wsl" | "csv" => Some(Self::Devices),
            "management" => Some(Self::Management),
            _ => NODES.iter().find(|it| it.word == text).map(Self::Nodes),
        }
    }
}

/// The specification of a mode. Errors: those of [`super::generate`], the host has none of the
/// nodes, or the mode is not supported.
pub fn generate(mode: Mode, request: &Request) -> Result<Value> {
    match mode {
        Mode::Devices => super::generate(request),
        Mode::Nodes(which) => of_nodes(which, request),
        Mode::Management => Err(Error::not_found(
            "--mode management is not supported: its device has every node of the driver, those that partition GPUs too",
        )
        .resolve("leave --mode out, as the device \"all\" has every GPU: nvidia-ctk cdi generate")),
    }
}

fn of_nodes(which: &Nodes, request: &Request) -> Result<Value> {
    let kind = request.kind()?;
    let host = Host::open(&request.settings.root)?;
    let found = which.patterns.iter().flat_map(|it| host.devices(it));
    let mut nodes: Vec<Device> = found
        .filter_map(|(_, found)| match found {
            DeviceFound::Node(device) => Some(device),
            _ => None,
        })
        .collect();
    if nodes.is_empty() {
        return Err(which.nothing(&host));
    }
    which.choose(&mut nodes, request.ids)?;
    let all = || nodes.iter().collect::<Vec<_>>();
    let mut devices = Vec::new();
    if let Some(name) = which.number_behind {
        let number = |node: &Device| node.path.rsplit(name).next().map(str::to_owned);
        let each = nodes.iter().filter_map(|it| Some((number(it)?, vec![it])));
        devices.extend(each.map(|(number, node)| device(&number, &node)));
    }
    if devices.is_empty() || !request.without_all {
        devices.push(device("all", &all()));
    }
    let mut document = json!({"cdiVersion": VERSION, "kind": kind, "devices": devices});
    let files = which.files.iter().filter(|path| host.stat(path).is_ok());
    let mounts: Vec<Value> = files.map(|path| mount(&host, path)).collect();
    if !mounts.is_empty() {
        document["containerEdits"] = json!({"mounts": mounts});
    }
    Ok(document)
}

impl Nodes {
    fn nothing(&self, host: &Host) -> Error {
        let (folder, patterns) = (host.shown("/dev"), self.patterns.join(" and no "));
        let (word, module) = (self.word, self.module);
        Error::not_found(format!(
            "--mode {word}: there is no device for a specification: no {patterns} in {folder}"
        ))
        .resolve(format!(
            "load the driver: modprobe {module}; or leave --mode out for the GPUs: nvidia-ctk cdi generate"
        ))
    }

    /// Keeps the requested nodes. Errors: an id that no node has.
    fn choose(&self, nodes: &mut Vec<Device>, ids: &[String]) -> Result<()> {
        if ids.is_empty() || ids.iter().any(|id| id == "all") {
            return Ok(());
        }
        let is = |node: &Device, id: &String| {
            let name = self.number_behind;
            name.is_some_and(|name| node.path.ends_with(&format!("{name}{id}")))
        };
        let unknown = ids.iter().find(|id| !nodes.iter().any(|node| is(node, id)));
        if let Some(unknown) = unknown {
            let (word, folder) = (self.word, self.patterns.join(", "));
            return Err(Error::not_found(format!(
                "--mode {word} has no device {unknown:?}: its devices are those of {folder}"
            ))
            .resolve("leave --device-id out, or give it a number of these"));
        }
        nodes.retain(|node| ids.iter().any(|id| is(node, id)));
        Ok(())
    }
}

fn device(name: &str, nodes: &[&Device]) -> Value {
    let nodes: Vec<Value> = nodes.iter().map(|node| device_node(node)).collect();
    json!({"name": name, "containerEdits": {"deviceNodes": nodes}})
}

fn mount(host: &Host, path: &str) -> Value {
    json!({
        "hostPath": host.shown(path),
        "containerPath": path,
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    })
}
