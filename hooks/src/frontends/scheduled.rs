//! Ensures that only the scheduler gives GPUs. The device nodes decide, whatever flag or CDI kind a
//! container names and whatever hooks its spec has.

use rustc_hash::FxHashSet;
use rustix::fs::FileType;

use crate::error::Result;
use crate::frontends::nvidia::HOOKS;
use crate::host::nodes::is_right;
use crate::host::Host;
use crate::log::{Level, Note};
use crate::model::edits::{lies_in, Device, Edits};
use crate::model::policy::{not_scheduled, refuse, Policy};
use crate::model::request::ContainerRequest;
use crate::model::vendor::{Vendor, VendorFile};

/// The devices that only the host's scheduler gives.
#[derive(Debug)]
pub struct Scheduled<'a> {
    host: &'a Host,
    reserved: Reserved,
    policy: &'a Policy,
}

impl<'a> Scheduled<'a> {
    /// `None`: no scheduler counts.
    pub fn of(
        request: &ContainerRequest,
        host: &'a Host,
        files: &[VendorFile],
        policy: &'a Policy,
    ) -> Option<Self> {
        let vendors = files.iter().filter_map(|file| file.content.as_ref().ok());
        request.has_scheduler().then(|| Self {
            host,
            reserved: Reserved::of(host, vendors),
            policy,
        })
    }

    /// Removes the nodes that only the scheduler gives, and returns their paths. `by` asks for
    /// them. Errors: the policy refuses the start.
    pub fn limit(&self, by: &str, edits: &mut Edits, notes: &mut Vec<Note>) -> Result<Vec<String>> {
        let gpus = edits.devices.iter().filter(|it| self.reserved.has(it));
        let mut paths: Vec<String> = gpus.map(|device| device.path.clone()).collect();
        let binds = edits.described.iter();
        let binds = binds.filter(|mount| self.reserved.is_in(self.host, &mount.source));
        paths.extend(binds.map(|mount| mount.target.clone()));
        if let Some(first) = paths.first() {
            let reason = format!("{}: {first} is a GPU's", not_scheduled(by));
            notes.push(refuse(self.policy, None, reason)?);
            edits.devices.retain(|device| !paths.contains(&device.path));
            edits.described.retain(|mount| !paths.contains(&mount.target));
        }
        Ok(paths)
    }
}

/// True if a scheduler counts and the spec has a hook that would give devices.
pub fn has_hook(request: &ContainerRequest) -> bool {
    request.has_scheduler() && hooks(request).next().is_some()
}

fn hooks<'r>(request: &'r ContainerRequest) -> impl Iterator<Item = &'r String> {
    let name = |path: &&String| path.rsplit('/').next().unwrap_or_default().to_owned();
    let hooks = request.hooks.iter();
    hooks.filter(move |path| HOOKS.contains(&name(path).as_str()))
}

/// Removes NVIDIA's hooks, which know nothing about the scheduler.
pub fn without_hooks(request: &ContainerRequest, notes: &mut Vec<Note>) -> Edits {
    let reason = |hook: &String| {
        let message = format!(
            "the hook {hook} of the container is left out: with \"scheduler\" in config.toml, only the host's scheduler gives these devices"
        );
        Note::new(Level::Notice, message)
    };
    notes.extend(hooks(request).map(reason));
    let is_replaced = has_hook(request);
    let replaced_hooks = is_replaced.then(|| HOOKS.map(str::to_owned).to_vec());
    Edits { replaced_hooks: replaced_hooks.unwrap_or_default(), ..Edits::default() }
}

// The nodes of GPUs that only a scheduler gives. They are known by the host's nodes of these
// names, by the units of vendor files that answer a scheduler's interface, and by the major number
// of NVIDIA's driver.

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
