//! The variables by which a scheduler gives devices to a job, in the numbering of the
//! container that the job starts: what Sarus does before its hooks run.
//! <https://sarus.readthedocs.io/en/stable/user/user_guide.html#nvidia-gpu-support>
//!
//! In a container the devices that it was given are 0, 1, …, in the order in which the host
//! has them. Strict, everything is as with Sarus, its oddities included: numbers are sorted
//! as text, so that `10,2` keeps its order, and an empty list is one device without a name.
//! Lenient, numbers are sorted as numbers, blanks and duplicates make no difference, UUIDs
//! stay what they are (CUDA takes them in a container too), and an empty list is none. Numbers
//! beside UUIDs are the host's as well, and no number of the container's can be known from
//! them: each becomes the UUID that it stands for. Where nothing says which that is, the
//! container's list is left out, and CUDA takes every device that the container was given.

use crate::config::settings::Scheduler;
use crate::discover::facts::Facts;
use crate::request::Request;

use super::nvidia::{CAPABILITIES, CUDA_VERSION, DEVICES};

/// How Slurm and others say which of NVIDIA's devices a job has.
pub const CUDA: &str = "CUDA_VISIBLE_DEVICES";
/// The same for AMD's.
pub const ROCR: &str = "ROCR_VISIBLE_DEVICES";
/// What Slurm says of a job without devices.
const NO_DEVICES: &str = "NoDevFiles";
/// What a container without devices must not have either.
const ERASED: [&str; 4] = [CUDA_VERSION, CUDA, DEVICES, CAPABILITIES];

/// What the scheduler gave, as the process's own environment says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    pub cuda: Option<String>,
    pub rocr: Option<String>,
}

impl Given {
    /// From the environment of this process.
    pub fn of_process() -> Self {
        let get = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            cuda: get(CUDA),
            rocr: get(ROCR),
        }
    }
}

/// What of the scheduler's list a container gets.
#[derive(Debug, PartialEq, Eq)]
struct Translation {
    devices: String,
    /// `None`: every device that the container gets.
    cuda: Option<String>,
}

/// Makes the request of a container what the scheduler gave for NVIDIA's devices. `facts` says
/// what is known of these, where that matters.
pub fn apply(
    request: &mut Request,
    given: &Given,
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

/// `None`: no device.
fn translate(
    list: &str,
    scheduler: Scheduler,
    facts: impl Fn() -> Option<Facts>,
) -> Option<Translation> {
    if scheduler == Scheduler::Strict {
        let names: Vec<&str> = list.split(',').collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        return Some(Translation {
            devices: list.to_owned(),
            cuda: Some(places(&names, &sorted)),
        });
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

/// The names of a list, each once, as they are meant.
fn names_of(list: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in list.split(',').map(str::trim) {
        // CUDA takes no more of a list once one of it is invalid.
        if name.starts_with('-') {
            break;
        }
        // One number has many spellings.
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

/// The list without numbers, each device once. `None`: which device one of them is, is not
/// known.
fn by_uuid(names: &[String], facts: &Facts) -> Option<String> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        let uuids = facts
            .devices
            .iter()
            .filter_map(|gpu| Some((gpu, gpu.uuid.as_deref()?)));
        let uuid = match number(name) {
            Some(number) => uuids
                .clone()
                .find(|(gpu, _)| u64::from(gpu.index) == number)
                .map(|(_, uuid)| uuid)?,
            // CUDA takes the beginning of one too.
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

/// The place of each name in the sorted list.
fn places<T: PartialEq>(names: &[T], sorted: &[T]) -> String {
    let place = |name: &T| sorted.iter().position(|other| other == name);
    let places = names.iter().filter_map(place).map(|at| at.to_string());
    places.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
