//! Translates the variables with which a scheduler gives devices to a job into the numbering of the
//! container, as Sarus does before its hooks run.
//! <https://sarus.readthedocs.io/en/stable/user/user_guide.html#nvidia-gpu-support>
//!
//! In a container, its devices are 0, 1, … in the host's order: numbers are sorted as numbers, each
//! device comes once, and an empty list means no device. UUIDs do not change: CUDA accepts them in a
//! container too. With a number beside a UUID, the order is unknown here: the container's list is
//! left out, and CUDA uses every device that the container was given.

use crate::frontends::nvidia::vars::{CAPABILITIES, CUDA, CUDA_VERSION, DEVICES};
use crate::model::policy::Policy;
use crate::model::request::{
    ContainerRequest, DeviceList, DeviceRequest, Interface, RequestSource,
};

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

/// The scheduler's list, for the container.
#[derive(Debug, PartialEq, Eq)]
struct Translation {
    devices: String,
    /// The list for CUDA. `None`: every device of the container.
    cuda: Option<String>,
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
pub fn apply(request: &mut ContainerRequest, given: &SchedulerLists) {
    let list = given.cuda.as_deref().filter(|list| *list != NO_DEVICES);
    let Some(Translation { devices, cuda }) = list.and_then(translate) else {
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

/// Translates the scheduler's list. `None`: no device.
fn translate(list: &str) -> Option<Translation> {
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
    Some(Translation { devices, cuda })
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
