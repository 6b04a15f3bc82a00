//! The nodes of GPUs that only a scheduler gives. They are known by the host's nodes of these
//! names, by the units of vendor files that answer a scheduler's interface, and by the major number
//! of NVIDIA's driver.

use rustc_hash::FxHashSet;
use rustix::fs::FileType;

use super::nodes::is_right;
use super::Host;
use crate::model::edits::{lies_in, Device};
use crate::model::vendor::Vendor;

/// Nodes of GPUs, on any host. Graphics nodes also depend on their vendor.
const NAMES: [&str; 2] = ["nvidia[0-9]*", "nvidia-caps/*"];
const GRAPHICS: [&str; 2] = ["dri/card*", "dri/renderD*"];
/// The nodes of NVIDIA's GPUs; the minors 254 and 255 are control nodes.
/// <https://www.kernel.org/doc/Documentation/admin-guide/devices.txt>
const NVIDIA_MAJOR: u32 = 195;
const NVIDIA_GPUS: u32 = 254;

type Numbers = (char, u32, u32);

/// The nodes that only a scheduler gives.
#[derive(Debug)]
pub struct Reserved {
    numbers: FxHashSet<Numbers>,
    paths: Vec<String>,
}

impl Reserved {
    /// The reserved nodes of a host with these vendor files.
    pub fn of<'v>(host: &Host, vendors: impl Iterator<Item = &'v Vendor>) -> Self {
        let answering = vendors.filter(|vendor| !vendor.interfaces.is_empty());
        let units = answering.filter_map(|vendor| vendor.units.as_deref());
        let named = NAMES.into_iter().chain(units.filter(|it| !it.contains("dri/")));
        let named = named.flat_map(|pattern| host.nodes(pattern));
        let graphics = GRAPHICS.iter().flat_map(|pattern| host.nodes(pattern));
        let graphics = graphics.filter(|device| host.may_be_scheduled(&device.path));
        let devices: Vec<_> = named.chain(graphics).collect();
        Self {
            numbers: devices.iter().map(numbers).collect(),
            paths: devices.into_iter().map(|device| device.path).collect(),
        }
    }

    /// True for the node of a GPU, under any name in the container.
    pub fn has(&self, device: &Device) -> bool {
        let Device { kind, major, minor, .. } = device;
        self.numbers.contains(&numbers(device))
            || *kind == 'c' && *major == NVIDIA_MAJOR && *minor < NVIDIA_GPUS
            || is_right(&device.path)
            || is_gpu(&device.path)
    }

    /// True if a mount of this source gives the container a GPU's node, by itself or in a folder.
    pub fn is_in(&self, host: &Host, source: &str) -> bool {
        let within = host.within(source);
        if self.paths.iter().any(|path| lies_in(path, within)) {
            return true;
        }
        host.stat(source).is_ok_and(|stat| {
            let device = (
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::CharacterDevice => 'c',
                    FileType::BlockDevice => 'b',
                    _ => return false,
                },
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            );
            self.numbers.contains(&device)
        })
    }
}

fn numbers(device: &Device) -> Numbers {
    (device.kind, device.major, device.minor)
}

/// True for the names under which NVIDIA's programs make nodes in a container.
fn is_gpu(path: &str) -> bool {
    let number = path.strip_prefix("/dev/nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}
