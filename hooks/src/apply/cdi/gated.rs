//! The modes of `nvidia-ctk cdi generate --mode`: the devices of the vendor file, or nodes of
//! other drivers, which a vendor file does not have to list.
//!
//! Source:
//! <https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html>

use serde_json::Value;

use super::document::{add, json, mounts, nodes};
use super::gpu::{self, Options};
use super::Generator;
use crate::config::cdi::{ContainerEdits, Document};
use crate::config::settings::Settings;
use crate::error::{Error, Result};
use crate::host::gated_devices::{GatedDevices, GATED};
use crate::host::Host;
use crate::model::edits::Device;

/// The meaning of a word of `--mode`.
#[derive(Debug, Clone, Copy)]
pub enum Mode {
    /// The devices of the vendor file.
    Devices,
    Nodes(&'static GatedDevices),
    /// Not supported.
    Management,
}

impl Mode {
    /// Every word, for error messages.
    pub const WORDS: &'static str =
        "auto, nvml, wsl, csv, management, gds, mofed, gdrcopy, imex, nvswitch";

    /// Reads a word in any case, as NVIDIA's tool does.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        match text.as_str() {
            "auto" | "nvml" | "wsl" | "csv" => Some(Self::Devices),
            "management" => Some(Self::Management),
            _ => GATED.iter().find(|it| it.word == text).map(Self::Nodes),
        }
    }
}

/// The specification of a mode. Errors: those of the GPUs' own, the host has none of the nodes, or
/// the mode is not supported.
pub fn generate(settings: &Settings, mode: Mode, options: &Options) -> Result<Value> {
    let document = match mode {
        Mode::Devices => gpu::document(&Generator::read(settings)?, options)?,
        Mode::Nodes(which) => document(settings, which, options)?,
        Mode::Management => return Err(Error::not_found(
            "--mode management is not supported: its device has every node of the driver, those that partition GPUs too",
        )
        .resolve("leave --mode out, as the device \"all\" has every GPU: nvidia-ctk cdi generate")),
    };
    Ok(json(&document))
}

fn document(settings: &Settings, which: &GatedDevices, options: &Options) -> Result<Document> {
    let mut document = Document { kind: options.kind()?, ..Document::default() };
    let host = Host::open(&settings.root)?;
    let mut devices = which.devices(&host);
    if devices.is_empty() {
        return Err(nothing(which, &host));
    }
    choose(which, &mut devices, options.ids)?;
    let of =
        |devices: &[Device]| ContainerEdits { nodes: nodes(devices), ..ContainerEdits::default() };
    if let Some(name) = which.number_behind {
        for device in &devices {
            let number = device.path.rsplit(name).next().unwrap_or_default();
            add(&mut document, number, of(std::slice::from_ref(device)));
        }
    }
    if document.devices.is_empty() || !options.without_all {
        add(&mut document, "all", of(&devices));
    }
    document.edits.env.push(gpu::VOID.to_owned());
    document.edits.mounts = mounts(&which.mounts(&host));
    Ok(document)
}

fn nothing(which: &GatedDevices, host: &Host) -> Error {
    let (folder, patterns) = (host.shown("/dev"), which.patterns.join(" and no "));
    let (word, module) = (which.word, which.module);
    Error::not_found(format!(
        "--mode {word}: there is no device for a specification: no {patterns} in {folder}"
    ))
    .resolve(format!(
        "load the driver: modprobe {module}; or leave --mode out for the GPUs: nvidia-ctk cdi generate"
    ))
}

/// Keeps the requested nodes. Errors: an id that no node has.
fn choose(which: &GatedDevices, nodes: &mut Vec<Device>, ids: &[String]) -> Result<()> {
    if ids.is_empty() || ids.iter().any(|id| id == "all") {
        return Ok(());
    }
    let is = |node: &Device, id: &String| {
        let name = which.number_behind;
        name.is_some_and(|name| node.path.ends_with(&format!("{name}{id}")))
    };
    let unknown = ids.iter().find(|id| !nodes.iter().any(|node| is(node, id)));
    if let Some(unknown) = unknown {
        let (word, folder) = (which.word, which.patterns.join(", "));
        return Err(Error::not_found(format!(
            "--mode {word} has no device {unknown:?}: its devices are those of {folder}"
        ))
        .resolve("leave --device-id out, or give it a number of these"));
    }
    nodes.retain(|node| ids.iter().any(|id| is(node, id)));
    Ok(())
}
