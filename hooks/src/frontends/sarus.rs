//! Translates the variables with which a scheduler gives devices to a job into the numbering of the
//! container, as Sarus does before its hooks run.
//! <https://sarus.readthedocs.io/en/stable/user/user_guide.html#nvidia-gpu-support>
//!
//! In a container, its devices are 0, 1, … in the host's order. In strict mode everything is as in
//! Sarus, including its oddities: numbers are sorted as text, so `10,2` keeps its order, and an
//! empty list is one device without a name. In lenient mode, numbers are sorted as numbers, blanks
//! and duplicates make no difference, UUIDs do not change (CUDA accepts them in a container too),
//! and an empty list means no device. In a list of numbers and UUIDs, each number of the host
//! becomes its UUID. If that UUID is unknown, the container's list is left out, and CUDA uses every
//! device that the container was given.

use crate::config::settings::Scheduler;
use crate::host::facts::Facts;
use crate::model::request::Request;

use super::nvidia::{CAPABILITIES, CUDA_VERSION, DEVICES};

/// The variable with which Slurm and others give NVIDIA's devices to a job.
pub const CUDA: &str = "CUDA_VISIBLE_DEVICES";
/// The same for AMD's devices.
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

/// Replaces a container's request for NVIDIA's devices with the scheduler's. `facts` is called only
/// if the device facts are needed.
pub fn apply(
    request: &mut Request,
    given: &SchedulerLists,
    scheduler: Scheduler,
    facts: impl Fn() -> Option<Facts>,
) {
    if scheduler == Scheduler::Ignored {
        return;
    }
    let list = given.cuda.as_deref().filter(|list| *list != NO_DEVICES);
    let translated = list.and_then(|list| translate(list, scheduler, facts));
    let Some(Translation { devices, cuda }) = translated else {
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
fn translate(
    list: &str,
    scheduler: Scheduler,
    facts: impl Fn() -> Option<Facts>,
) -> Option<Translation> {
    if scheduler == Scheduler::Strict {
        let names: Vec<&str> = list.split(',').collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        return Some(Translation { devices: list.to_owned(), cuda: Some(places(&names, &sorted)) });
    }
    let names = names_of(list);
    if names.is_empty() {
        return None;
    }
    let devices = names.join(",");
    let numbers = names.iter().filter(|name| number(name).is_some()).count();
    let cuda = if numbers == names.len() {
        let mut sorted = names.clone();
        sorted.sort_by_key(|name| number(name));
        Some(places(&names, &sorted))
    } else if numbers == 0 {
        Some(devices.clone())
    } else {
        facts().and_then(|facts| by_uuid(&names, &facts))
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

/// The list with UUIDs instead of numbers, each device once. `None`: a number is unknown.
fn by_uuid(names: &[String], facts: &Facts) -> Option<String> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        let uuids = facts.devices.iter().filter_map(|gpu| Some((gpu, gpu.uuid.as_deref()?)));
        let uuid = match number(name) {
            Some(number) => uuids
                .clone()
                .find(|(gpu, _)| u64::from(gpu.index) == number)
                .map(|(_, uuid)| uuid)?,
            // CUDA accepts the prefix of a UUID too.
            None => uuids
                .clone()
                .find(|(_, uuid)| uuid.starts_with(name.as_str()))
                .map_or(name.as_str(), |(_, uuid)| uuid),
        };
        if !found.contains(&uuid) {
            found.push(uuid);
        }
    }
    Some(found.join(","))
}

/// The position of each name in the sorted list.
fn places<T: PartialEq>(names: &[T], sorted: &[T]) -> String {
    let place = |name: &T| sorted.iter().position(|other| other == name);
    let places = names.iter().filter_map(place).map(|at| at.to_string());
    places.collect::<Vec<_>>().join(",")
}
