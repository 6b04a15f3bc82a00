//! The host's scheduler, which gives devices to jobs: its variables, and that nothing else gives these
//! devices.

use rustc_hash::FxHashSet;

use crate::error::Result;
use crate::frontends::nvidia::{CAPABILITIES, CUDA, CUDA_VERSION, DEVICES, HOOKS};
use crate::host::nodes::is_right;
use crate::host::{numbers, Host};
use crate::log::{Level, Note};
use crate::model::edits::{lies_in, Device, Edits};
use crate::model::policy::{not_scheduled, refuse, Policy};
use crate::model::request::{
    ContainerRequest, DeviceList, DeviceRequest, Interface, RequestSource,
};
use crate::model::vendor::VendorFile;

// Translates the variables with which a scheduler gives devices to a job into the numbering of the
// container, as Sarus does before its hooks run.
// <https://sarus.readthedocs.io/en/stable/user/user_guide.html#nvidia-gpu-support>
//
// In a container, its devices are 0, 1, … in the host's order: numbers are sorted as numbers, each
// device comes once, and an empty list means no device. UUIDs do not change: CUDA accepts them in a
// container too. With a number beside a UUID, the order is unknown here: the container's list is
// left out, and CUDA uses every device that the container was given.

/// The variable with which Slurm and others give AMD's devices to a job.
pub const ROCR: &str = "ROCR_VISIBLE_DEVICES";
/// The value that Slurm sets for a job without devices.
const NO_DEVICES: &str = "NoDevFiles";
/// Variables that a container without devices must not have.
const ERASED: [&str; 4] = [CUDA_VERSION, CUDA, DEVICES, CAPABILITIES];

/// The devices that the scheduler gave, from the environment of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedulerLists {
    pub cuda: Option<String>,
    pub rocr: Option<String>,
}

impl SchedulerLists {
    /// From the environment of this process.
    pub fn of_process() -> Self {
        let get = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self { cuda: get(CUDA), rocr: get(ROCR) }
    }
}

/// Adds the request of AMD's variable, read as Sarus's hook does. If there is a host's scheduler, its variable overrides the image's,
/// and a job without the variable gets no device.
pub fn read_amd(
    request: &mut ContainerRequest,
    given: &SchedulerLists,
    is_scheduled: bool,
    policy: &Policy,
) {
    let source = if is_scheduled { RequestSource::Scheduler } else { RequestSource::Environment };
    let value = if is_scheduled { given.rocr.as_deref() } else { request.environment.get(ROCR) };
    let devices = value.map_or(DeviceList::Nothing, |value| DeviceList::of([value]));
    if matches!(devices, DeviceList::Nothing | DeviceList::None) {
        return;
    }
    if policy.may_use(source) {
        request.possible_trigger.get_or_insert_with(|| ROCR.to_owned());
    }
    if request.ambiguity.is_some() {
        return;
    }
    request.device_requests.push(DeviceRequest {
        interface: Some(Interface::Amd),
        sources: vec![source],
        by: ROCR.to_owned(),
        devices,
        is_beside_scheduler: is_scheduled,
        // The nodes belong to a group that the container's process has to join.
        groups: true,
        ..DeviceRequest::default()
    });
}

/// Replaces a container's request for NVIDIA's devices with the scheduler's.
pub fn replace_request(request: &mut ContainerRequest, given: &SchedulerLists) {
    let list = given.cuda.as_deref().filter(|list| *list != NO_DEVICES);
    let Some((devices, cuda)) = list.and_then(translate) else {
        for name in ERASED {
            if request.environment.remove(name) {
                request.unset.push(name.to_owned());
            }
        }
        return;
    };
    let mut set = vec![(DEVICES, devices)];
    match cuda {
        Some(cuda) => set.push((CUDA, cuda)),
        None if request.environment.remove(CUDA) => request.unset.push(CUDA.to_owned()),
        None => {}
    }
    if request.environment.get(CAPABILITIES).is_none() {
        set.push((CAPABILITIES, "all".to_owned()));
    }
    for (name, value) in set {
        request.environment.remove(name);
        let entry = format!("{name}={value}");
        request.environment.push(entry.clone().into());
        request.set.push(entry);
    }
    request.is_scheduled = true;
}

/// The scheduler's list for the container, and the one for CUDA (`None`: every device of the
/// container). `None`: no device.
fn translate(list: &str) -> Option<(String, Option<String>)> {
    let names = names_of(list);
    if names.is_empty() {
        return None;
    }
    let devices = names.join(",");
    let numbers: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
    let cuda = match numbers.len() {
        0 => Some(devices.clone()),
        count if count == names.len() => {
            let place = |own: &u64| numbers.iter().filter(|it| *it < own).count().to_string();
            Some(numbers.iter().map(place).collect::<Vec<_>>().join(","))
        }
        _ => None,
    };
    Some((devices, cuda))
}

/// The names of a list, each once, as the scheduler means them.
fn names_of(list: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in list.split(',').map(str::trim) {
        // CUDA ignores the rest of a list after an invalid entry.
        if name.starts_with('-') {
            break;
        }
        // A number may have several spellings.
        let name = number(name).map_or_else(|| name.to_owned(), |number| number.to_string());
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn number(name: &str) -> Option<u64> {
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| digits)
}

// Ensures that only the scheduler gives GPUs. The device nodes decide, whatever flag or CDI kind a
// container names and whatever hooks its spec has.

/// The devices that only the host's scheduler gives.
#[derive(Debug)]
pub struct Scheduled<'a> {
    host: &'a Host,
    policy: &'a Policy,
    numbers: FxHashSet<Numbers>,
    paths: Vec<String>,
}

impl<'a> Scheduled<'a> {
    pub fn of(host: &'a Host, files: &[VendorFile], policy: &'a Policy) -> Self {
        let vendors = files.iter().filter_map(|file| file.content.as_ref().ok());
        let answering = vendors.filter(|vendor| !vendor.interfaces.is_empty());
        let units = answering.filter_map(|vendor| vendor.units.as_deref());
        let named = NAMES.into_iter().chain(units.filter(|it| !it.contains("dri/")));
        let named = named.flat_map(|pattern| host.nodes(pattern));
        let graphics = GRAPHICS.iter().flat_map(|pattern| host.nodes(pattern));
        let graphics = graphics.filter(|device| host.may_be_scheduled(&device.path));
        let devices: Vec<_> = named.chain(graphics).collect();
        Self {
            host,
            policy,
            numbers: devices.iter().map(numbers_of).collect(),
            paths: devices.into_iter().map(|device| device.path).collect(),
        }
    }

    /// Removes the nodes that only the scheduler gives, and returns their paths. `by` asks for
    /// them. Errors: the policy refuses the start.
    pub fn limit(&self, by: &str, edits: &mut Edits, notes: &mut Vec<Note>) -> Result<Vec<String>> {
        let gpus = edits.devices.iter().filter(|it| self.has(it));
        let mut paths: Vec<String> = gpus.map(|device| device.path.clone()).collect();
        let binds = edits.described.iter();
        let binds = binds.filter(|mount| self.is_in(&mount.source));
        paths.extend(binds.map(|mount| mount.target.clone()));
        if let Some(first) = paths.first() {
            let reason = format!("{}: {first} is a GPU's", not_scheduled(by));
            notes.push(refuse(self.policy, None, reason)?);
            edits.devices.retain(|device| !paths.contains(&device.path));
            edits.described.retain(|mount| !paths.contains(&mount.target));
        }
        Ok(paths)
    }

    /// True for the node of a GPU, under any name in the container.
    fn has(&self, device: &Device) -> bool {
        let Device { kind, major, minor, .. } = device;
        self.numbers.contains(&numbers_of(device))
            || *kind == 'c' && *major == NVIDIA_MAJOR && *minor < NVIDIA_GPUS
            || is_right(&device.path)
            || is_gpu(&device.path)
    }

    /// True if a mount of this source gives the container a GPU's node, by itself or in a folder.
    fn is_in(&self, source: &str) -> bool {
        let within = self.host.within(source);
        if self.paths.iter().any(|path| lies_in(path, within)) {
            return true;
        }
        let device = self.host.stat(source).ok().and_then(|stat| numbers(&stat));
        device.is_some_and(|device| self.numbers.contains(&device))
    }
}

/// True if the spec has a hook that would give devices.
pub fn has_hook(request: &ContainerRequest) -> bool {
    hooks(request).next().is_some()
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
    let replaced: &[&str] = if has_hook(request) { &HOOKS } else { &[] };
    let replaced_hooks = replaced.iter().map(|&hook| hook.to_owned()).collect();
    Edits { replaced_hooks, ..Edits::default() }
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

fn numbers_of(device: &Device) -> Numbers {
    (device.kind, device.major, device.minor)
}

/// True for the names under which NVIDIA's programs make nodes in a container.
fn is_gpu(path: &str) -> bool {
    let number = path.strip_prefix("/dev/nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}
