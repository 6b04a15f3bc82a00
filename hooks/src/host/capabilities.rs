//! Nodes of NVIDIA's driver that only a request by name gives: IMEX channels, and rights over MIG
//! partitions.

use super::{DeviceFound, Host};
use crate::error::{Error, Result};
use crate::model::request::{Channels, MigRight};

/// Folders of nodes that are permissions: with some of them a container can partition every GPU.
const CAPABILITIES: [&str; 2] = ["/dev/nvidia-caps/", CHANNELS];
const CHANNELS: &str = "/dev/nvidia-caps-imex-channels/";
/// The folder where the driver names the node of each right.
pub(super) const MIG_RIGHTS: &str = "proc/driver/nvidia/capabilities/mig";

/// True for a node that is a permission, unless it belongs to a part of a device.
pub fn is_right(path: &str) -> bool {
    CAPABILITIES.iter().any(|folder| path.starts_with(folder))
}

pub(super) fn channels(host: &Host, wanted: &Channels, by: &str) -> Result<Vec<String>> {
    match wanted {
        Channels::None => Ok(Vec::new()),
        Channels::All => {
            let found = host.devices(&format!("{CHANNELS}channel[0-9]*"));
            Ok(found.into_iter().map(|(path, _)| path).collect())
        }
        Channels::These(numbers) => {
            let paths = numbers.iter().map(|number| format!("{CHANNELS}channel{number}"));
            let paths: Vec<String> = paths.collect();
            let is_missing = |path: &&String| {
                let found = host.devices(path);
                !matches!(found.as_slice(), [(_, DeviceFound::Node(_))])
            };
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

/// The node that gives a container a right over all GPUs.
pub(super) fn right_node(host: &Host, right: MigRight) -> Result<String> {
    let by = right.variable();
    let path = format!("{MIG_RIGHTS}/{}", right.word());
    let number = || {
        let bytes = host.text_of_kernel(&path)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"))?;
        line.trim().parse::<u32>().ok()
    };
    let number = number().ok_or_else(|| {
        let word = right.word();
        Error::not_found(format!(
            "{by} asks for the MIG right {word:?}, and the host has no /{path}"
        ))
        .resolve("load a driver for GPUs with MIG, or ask without it")
    })?;
    Ok(format!("{}nvidia-cap{number}", CAPABILITIES[0]))
}
