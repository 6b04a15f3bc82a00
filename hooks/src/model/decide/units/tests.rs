use super::*;
use proptest::prelude::*;

const V: RequestContext<'static> =
    RequestContext { interface: Interface::Nvidia, by: "V", known: true };

fn part(uuid: &str, instances: (u32, u32), node: &str) -> Part {
    Part {
        index: None,
        uuid: Some(uuid.to_owned()),
        gpu_instance: Some(instances.0),
        compute_instance: Some(instances.1),
        nodes: vec![format!("/dev/caps/{node}")],
    }
}

/// Two devices whose index and node number differ. The second has two parts.
fn host() -> Vec<Unit> {
    vec![
        Unit {
            index: 0,
            uuid: Some("GPU-aa11".to_owned()),
            nodes: vec!["/dev/nvidia1".to_owned(), "/dev/dri/card1".to_owned()],
            parts: Vec::new(),
        },
        Unit {
            index: 1,
            uuid: Some("GPU-aa22".to_owned()),
            nodes: vec!["/dev/nvidia0".to_owned()],
            parts: vec![part("MIG-b1", (1, 0), "a"), part("MIG-b1c", (2, 1), "b")],
        },
    ]
}

fn these(names: &[&str]) -> Units {
    Units::These(names.iter().map(|&name| name.to_owned()).collect())
}

fn nodes(names: &[&str]) -> Result<Vec<String>, String> {
    choose(&these(names), &host(), V)
        .map(|chosen| chosen.nodes.into_iter().collect())
        .map_err(|error| error.to_string())
}

#[test]
fn names_of_every_kind() {
    let first = &["/dev/dri/card1", "/dev/nvidia1"][..];
    let second = &["/dev/caps/a", "/dev/caps/b", "/dev/nvidia0"][..];
    for (names, expected) in [
        (&["0"][..], first),
        (&["00"], first),
        (&["GPU-aa11"], first),
        (&["GPU-aa1"], first),
        (&["1"], second),
        (&["GPU-aa22"], second),
        (&["1:0"], &["/dev/caps/a", "/dev/nvidia0"]),
        (&["1:1"], &["/dev/caps/b", "/dev/nvidia0"]),
        // One UUID is the prefix of the other.
        (&["MIG-b1"], &["/dev/caps/a", "/dev/nvidia0"]),
        (&["MIG-b1c"], &["/dev/caps/b", "/dev/nvidia0"]),
        (&["MIG-GPU-aa22/2/1"], &["/dev/caps/b", "/dev/nvidia0"]),
        (&["MIG-b1", "1:1"], second),
        (&[], &[]),
    ] {
        assert_eq!(nodes(names).unwrap(), expected, "{names:?}");
    }
    let all = choose(&Units::All, &host(), V).unwrap();
    assert_eq!((all.nodes.len(), all.units.len(), all.is_all), (5, 2, true));
    let none = choose(&Units::None, &host(), V).unwrap();
    assert_eq!(none, Chosen::default());
}

#[test]
fn a_part_has_the_number_that_the_driver_gave_it() {
    let mut units = host();
    units[1].parts[0].index = Some(4);
    units[1].parts[1].index = Some(0);
    let nodes = |name: &str| {
        let chosen = choose(&these(&[name]), &units, V).ok()?;
        chosen.nodes.into_iter().next()
    };
    assert_eq!(nodes("1:4").as_deref(), Some("/dev/caps/a"));
    assert_eq!(nodes("1:0").as_deref(), Some("/dev/caps/b"));
    assert_eq!(nodes("1:1"), None);
    assert_eq!(shown(&units[1]), "1 (GPU-aa22; 1:4 MIG-b1; 1:0 MIG-b1c)");
}

#[test]
fn what_is_not_there_is_refused_with_what_is() {
    let has = "the host has 0 (GPU-aa11), 1 (GPU-aa22; 1:0 MIG-b1; 1:1 MIG-b1c)";
    for name in [
        "2",
        "-1",
        "+1",
        "0:0",
        "1:2",
        "1:",
        ":1",
        "1:1:1",
        "GPU-",
        "GPU-x",
        "MIG-",
        "MIG-GPU-aa22/2",
        "MIG-GPU-aa22/2/1/0",
        "MIG-GPU-aa22/7/1",
        "gpu-aa11",
        "nvidia0",
        "99999999999999999999",
        "",
    ] {
        let error = nodes(&[name]).unwrap_err();
        let expected = format!("V asks for the device {name:?}; {has}: name one of them");
        assert!(error.starts_with(&expected), "{error}");
    }
    let error = nodes(&["GPU-aa"]).unwrap_err();
    let expected =
        "V asks for the device \"GPU-aa\", which may be GPU-aa11, GPU-aa22: write more of the UUID";
    assert_eq!(error, expected);
    let bare = [Unit::default()];
    let error =
        choose(&these(&["GPU-a"]), &bare, RequestContext { known: false, ..V }).unwrap_err();
    assert!(error.to_string().contains("the host has 0: UUIDs and parts"), "{error}");
    let error = choose(&these(&["0"]), &[], V).unwrap_err();
    let expected = "V asks for the device \"0\"; the host has no device of this vendor: load the driver: `provision load`";
    assert!(error.to_string().starts_with(expected), "{error}");
    let unknown = |name: &str, interface| {
        let asker = RequestContext { interface, known: false, ..V };
        let error = choose(&these(&[name]), &bare, asker).unwrap_err();
        error.to_string()
    };
    for name in ["-1", "GPU-1", "3"] {
        let found = unknown(name, Interface::Amd);
        assert!(found.contains("`rocm-smi`"), "{found}");
        assert!(!found.contains("nvidia-smi") && !found.contains("UUID"), "{found}");
    }
    let found = unknown("-1", Interface::Nvidia);
    assert!(found.contains("name one of them"), "{found}");
    let found = unknown(&"1".repeat(5_000_000), Interface::Nvidia);
    assert!(found.len() < 300 && found.contains("11…"), "{}", found.len());
}

proptest! {
    #[test]
    fn order_and_duplicates_do_not_matter(
        names in prop::collection::vec("0|1|1:[01]|GPU-aa(11|22)|MIG-b1c?|x", 0..6),
        seed in any::<usize>(),
    ) {
        let once = choose(&Units::These(names.clone()), &host(), V);
        let mut other = names.clone();
        other.rotate_left(seed % (names.len().max(1)));
        other.extend(names.iter().rev().cloned());
        let twice = choose(&Units::These(other), &host(), V);
        prop_assert_eq!(once.is_ok(), twice.is_ok());
        if let (Ok(once), Ok(twice)) = (once, twice) {
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn any_name_is_looked_up(name in "(?s).{0,20}", odd in "[MIGPU0-9:/a-c-]{0,20}") {
        for name in [name, odd] {
            if let Ok(chosen) = choose(&Units::These(vec![name]), &host(), V) {
                prop_assert_eq!(chosen.units.len(), 1);
            }
        }
    }
}
