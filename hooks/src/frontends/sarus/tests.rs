use super::*;
use crate::host::facts::Gpu;
use proptest::prelude::*;

/// The container's variables afterwards.
fn container(host: Option<&str>, image: &[&str], scheduler: Scheduler) -> Vec<String> {
    let mut request = Request::of_environment(image.iter().copied());
    let given = SchedulerLists { cuda: host.map(str::to_owned), rocr: None };
    apply(&mut request, &given, scheduler, || None);
    let variables = request.environment.variables().into_iter();
    let mut found: Vec<String> = variables.map(|(n, v)| format!("{n}={v}")).collect();
    found.sort();
    for entry in &request.set {
        assert!(found.contains(entry), "{entry}");
    }
    for name in &request.unset {
        assert!(!found.iter().any(|entry| entry.starts_with(&format!("{name}="))));
    }
    assert_eq!(request.is_scheduled, !request.set.is_empty());
    found
}

/// The seven cases of Sarus's own test, on which both modes agree.
#[test]
fn the_cases_of_sarus_own_test() {
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
        (Some("1"), &[all, "CUDA_VISIBLE_DEVICES=0,1"], "1", "0", "all"),
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
            assert_eq!(container(host, image, scheduler), expected, "{host:?} {image:?}");
        }
        let mut untouched: Vec<String> = image.iter().map(|&e| e.to_owned()).collect();
        untouched.sort();
        assert_eq!(container(host, image, Scheduler::Ignored), untouched);
    }
}

#[test]
fn strict_reads_lists_literally_and_lenient_as_intended() {
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
        ("GPU-b,GPU-a", pair("GPU-b,GPU-a", "1,0"), pair("GPU-b,GPU-a", "GPU-b,GPU-a")),
        ("MIG-x", pair("MIG-x", "0"), pair("MIG-x", "MIG-x")),
        ("GPU-a,1", pair("GPU-a,1", "1,0"), pair("GPU-a,1", "")),
        ("1,01,+1", pair("1,01,+1", "2,1,0"), pair("1,+1", "")),
    ] {
        assert_eq!(value(list, Scheduler::Strict), strict, "strict {list:?}");
        assert_eq!(value(list, Scheduler::Lenient), lenient, "lenient {list:?}");
    }
}

/// The list for CUDA, in a container whose image has its own list.
fn cuda_list(list: &str, facts: Option<&Facts>) -> Option<String> {
    let mut request = Request::of_environment(["CUDA_VISIBLE_DEVICES=7"]);
    let given = SchedulerLists { cuda: Some(list.to_owned()), rocr: None };
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
        ("GPU-aa,GPU-cc", Some("GPU-aa,GPU-cc"), Some("GPU-aa,GPU-cc")),
        ("2,0", Some("1,0"), Some("1,0")),
    ] {
        assert_eq!(cuda_list(list, Some(&facts)).as_deref(), with, "{list}");
        assert_eq!(cuda_list(list, None).as_deref(), without, "{list}");
    }
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
}
