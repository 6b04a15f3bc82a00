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
mod tests {
    use super::*;
    use crate::discover::facts::Gpu;
    use proptest::prelude::*;

    /// `NAME=value` of the container afterwards, without what is not about devices.
    fn container(host: Option<&str>, image: &[&str], scheduler: Scheduler) -> Vec<String> {
        let mut request = Request::of_environment(image.iter().copied());
        let given = Given {
            cuda: host.map(str::to_owned),
            rocr: None,
        };
        apply(&mut request, &given, scheduler, || None);
        let variables = request.environment.variables().into_iter();
        let mut found: Vec<String> = variables.map(|(n, v)| format!("{n}={v}")).collect();
        found.sort();
        for entry in &request.set {
            assert!(found.contains(entry), "{entry}");
        }
        for name in &request.unset {
            assert!(!found
                .iter()
                .any(|entry| entry.starts_with(&format!("{name}="))));
        }
        assert_eq!(request.is_scheduled, !request.set.is_empty());
        found
    }

    /// The seven rows of Sarus's own test, which both kinds agree on.
    #[test]
    fn rows_of_sarus() {
        let all = "NVIDIA_VISIBLE_DEVICES=all";
        for (host, image, devices, cuda, capabilities) in [
            (Some("0"), &[all][..], "0", "0", "all"),
            (
                Some("1"),
                &[all, "NVIDIA_DRIVER_CAPABILITIES=utility,compute"],
                "1",
                "0",
                "utility,compute",
            ),
            (
                Some("1"),
                &[all, "CUDA_VISIBLE_DEVICES=0,1"],
                "1",
                "0",
                "all",
            ),
            (None, &[all, "NVIDIA_DRIVER_CAPABILITIES=all"], "", "", ""),
            (
                Some("NoDevFiles"),
                &[all, "NVIDIA_DRIVER_CAPABILITIES=all", "CUDA_VERSION=8.0"],
                "",
                "",
                "",
            ),
            (Some("1,2"), &[all], "1,2", "0,1", "all"),
            (Some("3,1,5"), &[all], "3,1,5", "1,0,2", "all"),
        ] {
            for scheduler in [Scheduler::Strict, Scheduler::Lenient] {
                let expected: Vec<String> = if devices.is_empty() {
                    Vec::new()
                } else {
                    vec![
                        format!("CUDA_VISIBLE_DEVICES={cuda}"),
                        format!("NVIDIA_DRIVER_CAPABILITIES={capabilities}"),
                        format!("NVIDIA_VISIBLE_DEVICES={devices}"),
                    ]
                };
                assert_eq!(
                    container(host, image, scheduler),
                    expected,
                    "{host:?} {image:?}"
                );
            }
            let mut untouched: Vec<String> = image.iter().map(|&e| e.to_owned()).collect();
            untouched.sort();
            assert_eq!(container(host, image, Scheduler::Ignored), untouched);
        }
    }

    #[test]
    fn strict_is_to_the_letter_and_lenient_what_was_meant() {
        let value = |list: &str, scheduler| {
            translate(list, scheduler, || None).map(|t| (t.devices, t.cuda.unwrap_or_default()))
        };
        let pair = |devices: &str, cuda: &str| Some((devices.to_owned(), cuda.to_owned()));
        for (list, strict, lenient) in [
            ("10,2", pair("10,2", "0,1"), pair("10,2", "1,0")),
            ("", pair("", "0"), None),
            (" ", pair(" ", "0"), None),
            ("1,1", pair("1,1", "0,0"), pair("1", "0")),
            (" 1, 0", pair(" 1, 0", "1,0"), pair("1,0", "1,0")),
            ("-1", pair("-1", "0"), None),
            ("1,-1,2", pair("1,-1,2", "1,0,2"), pair("1", "0")),
            (
                "GPU-b,GPU-a",
                pair("GPU-b,GPU-a", "1,0"),
                pair("GPU-b,GPU-a", "GPU-b,GPU-a"),
            ),
            ("MIG-x", pair("MIG-x", "0"), pair("MIG-x", "MIG-x")),
            ("GPU-a,1", pair("GPU-a,1", "1,0"), pair("GPU-a,1", "")),
            ("1,01,+1", pair("1,01,+1", "2,1,0"), pair("1,+1", "")),
        ] {
            assert_eq!(value(list, Scheduler::Strict), strict, "strict {list:?}");
            assert_eq!(value(list, Scheduler::Lenient), lenient, "lenient {list:?}");
        }
    }

    /// What CUDA is given, in a container whose image has a list of its own.
    fn cuda_list(list: &str, facts: Option<&Facts>) -> Option<String> {
        let mut request = Request::of_environment(["CUDA_VISIBLE_DEVICES=7"]);
        let given = Given {
            cuda: Some(list.to_owned()),
            rocr: None,
        };
        apply(&mut request, &given, Scheduler::Lenient, || facts.cloned());
        assert_eq!(request.environment.get(DEVICES), Some(list));
        let given = request.environment.get(CUDA).map(str::to_owned);
        assert_eq!(request.unset.is_empty(), given.is_some());
        given
    }

    #[test]
    fn of_numbers_beside_uuids_none_is_the_hosts_for_cuda() {
        let gpu = |index, uuid: &str| Gpu {
            index,
            minor: 3 - index,
            uuid: Some(uuid.to_owned()),
            ..Gpu::default()
        };
        let facts = Facts {
            devices: vec![gpu(0, "GPU-aa"), gpu(1, "GPU-bb"), gpu(2, "GPU-cc")],
            ..Facts::default()
        };
        for (list, with, without) in [
            ("2,GPU-aa", Some("GPU-cc,GPU-aa"), None),
            ("GPU-aa,2", Some("GPU-aa,GPU-cc"), None),
            ("0,GPU-aa", Some("GPU-aa"), None),
            ("0,GPU-a", Some("GPU-aa"), None),
            ("0,MIG-x", Some("GPU-aa,MIG-x"), None),
            ("GPU-aa,9", None, None),
            (
                "GPU-aa,GPU-cc",
                Some("GPU-aa,GPU-cc"),
                Some("GPU-aa,GPU-cc"),
            ),
            ("2,0", Some("1,0"), Some("1,0")),
        ] {
            assert_eq!(cuda_list(list, Some(&facts)).as_deref(), with, "{list}");
            assert_eq!(cuda_list(list, None).as_deref(), without, "{list}");
        }
    }

    #[test]
    fn what_an_image_has_of_no_device_is_left_alone() {
        let image = ["PATH=/bin", "ROCR_VISIBLE_DEVICES=0"];
        let mut expected = image.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(container(None, &image, Scheduler::Strict), expected);
    }

    proptest! {
        #[test]
        fn numbers_become_the_first_ones(numbers in prop::collection::btree_set(0..64_u32, 1..8), seed in any::<prop::sample::Index>()) {
            let mut list: Vec<u32> = numbers.iter().copied().collect();
            list.rotate_left(seed.index(numbers.len()));
            let text = list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let found = translate(&text, Scheduler::Lenient, || None).unwrap();
            let places: Vec<usize> = found.cuda.unwrap().split(',').map(|at| at.parse().unwrap()).collect();
            let expected: Vec<usize> = list.iter().map(|n| numbers.iter().position(|m| m == n).unwrap()).collect();
            prop_assert_eq!(places, expected);
        }

        #[test]
        fn any_list_is_read(list in "(?s).{0,20}") {
            let _ = translate(&list, Scheduler::Lenient, || None);
            prop_assert!(translate(&list, Scheduler::Strict, || None).is_some());
        }
    }
}
