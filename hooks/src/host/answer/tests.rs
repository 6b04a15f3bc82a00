use super::*;
use crate::config::vendor;
use crate::host::capabilities::MIG_RIGHTS;
use crate::model::decide::{Choice, VendorFile};
use crate::model::request::{Ask, Channels, Details, MigRight, Requirement, Source, Way};
use std::fs;
use std::path::Path;

const FACTS: &str = r#"{"driver_version":"535.261.03","cuda_version":"12.2","devices":[
    {"index":0,"minor":1,"uuid":"GPU-a","pci":"0000:01:00.0","brand":"Tesla","arch":"8.0",
     "mig":[{"uuid":"MIG-x","nodes":["nvidia-caps/nvidia-cap3"]}]},
    {"index":1,"minor":0,"uuid":"GPU-b","pci":"0000:02:00.0","brand":"Quadro","arch":"7.5"}]}"#;
const VENDOR: &str = r#"{"version":"535.261.03","activation_flag":"X","driver_feature":["compute"],
    "units":"nvidia[0-9]*","interfaces":["nvidia"],"inventory":{"compute":{"devices":
    ["nvidiactl","nvidia[0-9]*","dri/*","nvidia-caps/*"]}}}"#;
const AMD: &str = r#"{"activation_flag":"X","driver_feature":["compute"],"units":"dri/renderD[0-9]*",
    "interfaces":["amd"],"inventory":{"compute":{"devices":["kfd","dri/card*","dri/renderD*"]}}}"#;

/// A host whose nodes are all `/dev/null` by another name, and groups of their own.
fn host(names: &[(&str, u32, u32)], facts: Option<&str>) -> Option<(tempfile::TempDir, Host)> {
    if !crate::need::root("mknod") {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, mode, group) in names {
        let path = dir.path().join("dev").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        node(&path, *mode, *group);
    }
    for (pci, names) in [
        ("0000:01:00.0", ["card1", "renderD129"]),
        ("0000:02:00.0", ["card0", "renderD128"]),
    ] {
        for name in names {
            let folder = format!("sys/bus/pci/devices/{pci}/drm/{name}");
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
    }
    if let Some(text) = facts {
        let folder = dir.path().join("run/oci-decorator/devices");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("v.json"), text).unwrap();
    }
    let host = Host::open(dir.path()).unwrap();
    Some((dir, host))
}

fn node(path: &Path, mode: u32, group: u32) {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    use std::os::unix::fs::{chown, PermissionsExt};
    let kind = FileType::CharacterDevice;
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), makedev(1, 3)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    chown(path, None, Some(group)).unwrap();
}

const NODES: [(&str, u32, u32); 10] = [
    ("nvidiactl", 0o666, 0),
    ("nvidia0", 0o666, 0),
    ("nvidia1", 0o660, 44),
    ("dri/card0", 0o660, 45),
    ("dri/card1", 0o660, 46),
    ("dri/renderD128", 0o666, 47),
    ("dri/renderD129", 0o666, 48),
    ("nvidia-caps/nvidia-cap1", 0o400, 0),
    ("nvidia-caps/nvidia-cap3", 0o444, 0),
    ("nvidia-caps-imex-channels/channel0", 0o666, 0),
];

struct Asked<'a> {
    vendor: &'a str,
    interface: Interface,
    units: Units,
    details: Details,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        Self {
            vendor: VENDOR,
            interface: Interface::Nvidia,
            units: Units::All,
            details: Details {
                groups: true,
                ..Details::default()
            },
        }
    }
}

fn these(names: &[&str]) -> Units {
    Units::These(names.iter().map(|&name| name.to_owned()).collect())
}

/// Names of the nodes, and the groups.
type Given = (Vec<String>, Vec<u32>, Vec<Note>);

fn given(host: &Host, asked: &Asked) -> std::result::Result<Given, String> {
    let file = VendorFile {
        name: "v".to_owned(),
        path: "/conf/v.json".to_owned(),
        content: Ok(vendor::parse(asked.vendor).unwrap()),
    };
    let ask = Ask {
        interface: asked.interface,
        source: Source::Environment,
        by: "V".to_owned(),
        units: asked.units.clone(),
        way: Way::VendorFile,
        details: Ok(asked.details.clone()),
    };
    let answer = Answer {
        choice: Choice {
            file: &file,
            vendor: file.content.as_ref().unwrap(),
            features: vec!["compute"],
        },
        ask: &ask,
        details: &asked.details,
    };
    let (edits, notes) = collect_answer(host, &answer).map_err(|e| e.to_string())?;
    let names = edits
        .devices
        .iter()
        .map(|d| d.path.trim_start_matches("/dev/").to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok((names, edits.groups, notes))
}

#[test]
fn the_chosen_nodes_and_the_control_nodes() {
    let Some((_dir, host)) = host(&NODES, Some(FACTS)) else {
        return;
    };
    let first = [
        "dri/card1",
        "dri/renderD129",
        "nvidia-caps/nvidia-cap3",
        "nvidia1",
        "nvidiactl",
    ];
    let second = ["dri/card0", "dri/renderD128", "nvidia0", "nvidiactl"];
    let every: Vec<&str> = [&first[..4], &second[..]].concat();
    for (units, expected, groups) in [
        (Units::All, &every[..], &[44, 45, 46][..]),
        (Units::None, &["nvidiactl"], &[]),
        (these(&["0"]), &first, &[44, 46]),
        (these(&["GPU-a"]), &first, &[44, 46]),
        (these(&["0:0"]), &first, &[44, 46]),
        (these(&["1", "GPU-b"]), &second, &[45]),
        (these(&["0", "1"]), &every, &[44, 45, 46]),
    ] {
        let asked = Asked {
            units: units.clone(),
            ..Asked::default()
        };
        let (names, found, _) = given(&host, &asked).unwrap();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(
            (names, found.as_slice()),
            (expected.iter().map(|&n| n.to_owned()).collect(), groups),
            "{units:?}"
        );
    }
    let without_groups = Asked {
        details: Details::default(),
        ..Asked::default()
    };
    assert!(given(&host, &without_groups).unwrap().1.is_empty());
}

#[test]
fn without_facts_numbers_of_nodes_are_indices() {
    let Some((_dir, host)) = host(&NODES, None) else {
        return;
    };
    let with = |units| Asked {
        units,
        ..Asked::default()
    };
    let (names, ..) = given(&host, &with(these(&["1"]))).unwrap();
    assert_eq!(names, ["nvidia1", "nvidiactl"]);
    // Nodes for graphics are known by facts only; which of the others are partitions, too.
    let (names, ..) = given(&host, &with(Units::All)).unwrap();
    assert!(
        names.contains(&"dri/card0".to_owned()) && names.len() == 7,
        "{names:?}"
    );
    let error = given(&host, &with(these(&["GPU-a"]))).unwrap_err();
    assert!(
        error.contains("the host has 0, 1: UUIDs and parts"),
        "{error}"
    );
}

#[test]
fn a_device_without_a_node_is_refused() {
    let Some((_dir, host)) = host(&NODES[..2], Some(FACTS)) else {
        return;
    };
    let with = |units| Asked {
        units,
        ..Asked::default()
    };
    let error = given(&host, &with(these(&["0"]))).unwrap_err();
    assert!(
        error.contains("V asks for the device 0, and the host has no node for it: load"),
        "{error}"
    );
    assert!(given(&host, &with(Units::All)).is_ok());
}

#[test]
fn broken_facts_stop_those_who_need_them() {
    let Some((_dir, host)) = host(&NODES, Some("{")) else {
        return;
    };
    let requires = |text: &str| Details {
        requirements: vec![Requirement {
            by: "R".to_owned(),
            text: text.to_owned(),
        }],
        ..Details::default()
    };
    for (units, details, refused) in [
        (Units::All, Details::default(), None),
        (Units::All, requires("driver>=500"), None),
        (
            these(&["0"]),
            Details::default(),
            Some("V asks for the devices \"0\", and "),
        ),
        (
            these(&["GPU-a", "0:0"]),
            Details::default(),
            Some("V asks for the devices \"GPU-a,0:0\", and "),
        ),
        (
            Units::All,
            requires("cuda>=1"),
            Some("the image requires R=cuda>=1, and "),
        ),
        (
            Units::All,
            requires("driver>=900 brand=x"),
            Some("the image requires R=driver"),
        ),
    ] {
        let asked = Asked {
            units,
            details,
            ..Asked::default()
        };
        match (given(&host, &asked), refused) {
            (Ok((.., notes)), None) => {
                let warned = notes.iter().any(|note| {
                    note.level == Level::Warning && note.message.contains("v.json: not valid JSON")
                });
                assert!(warned, "{notes:?}");
            }
            (Err(error), Some(start)) => {
                assert!(
                    error.starts_with(start) && error.contains("v.json: not valid"),
                    "{error}"
                );
            }
            (found, _) => panic!("{found:?}"),
        }
    }
}

#[test]
fn requirements_are_held_to_the_chosen_devices() {
    let Some((_dir, host)) = host(&NODES, Some(FACTS)) else {
        return;
    };
    for (units, text, problem) in [
        (Units::All, "cuda>=12.2,driver>=535", None),
        (Units::All, "cuda>=12.3", Some("R=cuda>=12.3, and the host has cuda 12.2, driver 535.261.03, arch 8.0, brand Tesla")),
        (these(&["0"]), "brand=tesla", None),
        (these(&["1"]), "brand=tesla", Some("brand Quadro")),
        (Units::All, "arch>=8.0", Some("arch 7.5, brand Quadro")),
        (Units::None, "arch>=9.0", None),
        (Units::All, "colour=red", Some("\"colour=red\" is not a condition")),
    ] {
        let asked = Asked {
            units: units.clone(),
            details: Details {
                requirements: vec![Requirement {
                    by: "R".to_owned(),
                    text: text.to_owned(),
                }],
                ..Details::default()
            },
            ..Asked::default()
        };
        match (given(&host, &asked), problem) {
            (Ok(_), None) => {}
            (Err(error), Some(part)) => assert!(error.contains(part), "{error}"),
            (found, _) => panic!("{units:?} {text} {found:?}"),
        }
    }
}

#[test]
fn channels_and_rights_are_nodes_of_their_own() {
    let Some((dir, host)) = host(&NODES, Some(FACTS)) else {
        return;
    };
    let with = |channels, mig_rights| Asked {
        units: Units::None,
        details: Details {
            channels,
            channels_by: "the mount m".to_owned(),
            mig_rights,
            ..Details::default()
        },
        ..Asked::default()
    };
    let channel = "nvidia-caps-imex-channels/channel0".to_owned();
    for channels in [Channels::All, Channels::These(vec![0])] {
        let (names, ..) = given(&host, &with(channels, Vec::new())).unwrap();
        assert_eq!(names, [channel.clone(), "nvidiactl".to_owned()]);
    }
    let error = given(&host, &with(Channels::These(vec![0, 1]), Vec::new())).unwrap_err();
    assert!(
        error.starts_with("the mount m asks for an IMEX channel, and the host has no node /dev/nvidia-caps-imex-channels/channel1"),
        "{error}"
    );
    let rights = vec![MigRight::Config];
    let error = given(&host, &with(Channels::None, rights.clone())).unwrap_err();
    assert!(
        error.starts_with("NVIDIA_MIG_CONFIG_DEVICES asks for the MIG right \"config\", and the host has no /proc/driver"),
        "{error}"
    );
    let folder = dir.path().join(MIG_RIGHTS);
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("config"),
        "DeviceFileMinor: 1\nDeviceFileMode: 256\n",
    )
    .unwrap();
    let (names, ..) = given(&host, &with(Channels::None, rights)).unwrap();
    assert_eq!(names, ["nvidia-caps/nvidia-cap1", "nvidiactl"]);
}

/// A vendor whose feature has these devices.
fn with_devices(devices: &str) -> String {
    VENDOR.replace(
        r#"["nvidiactl","nvidia[0-9]*","dri/*","nvidia-caps/*"]"#,
        devices,
    )
}

#[test]
fn without_a_feature_with_nodes_there_is_no_part_of_a_device() {
    let Some((_dir, host)) = host(&NODES, Some(FACTS)) else {
        return;
    };
    let vendor = with_devices("[]").replace(r#""units":"nvidia[0-9]*","#, "");
    for units in [Units::All, these(&["0"]), these(&["MIG-x"])] {
        let asked = Asked {
            vendor: &vendor,
            units,
            details: Details {
                capabilities: vec!["compat32".to_owned()],
                channels: Channels::All,
                ..Details::default()
            },
            ..Asked::default()
        };
        let (names, _, notes) = given(&host, &asked).unwrap();
        assert!(names.is_empty(), "{names:?}");
        let said = notes.iter().find(|note| note.level == Level::Notice);
        assert!(
            said.unwrap().message.contains("V gets no device"),
            "{notes:?}"
        );
    }
}

#[test]
fn every_device_of_a_host_without_one_is_worth_a_warning() {
    for (nodes, warned) in [(&[NODES[0]][..], true), (&NODES[..2], false)] {
        let Some((_dir, host)) = host(nodes, None) else {
            return;
        };
        let (_, _, notes) = given(&host, &Asked::default()).unwrap();
        let found = notes
            .iter()
            .any(|note| note.level == Level::Warning && note.message.contains("the host has none"));
        assert_eq!(found, warned, "{notes:?}");
    }
}

#[test]
fn a_node_that_no_chosen_feature_has_is_not_said_to_be_missing() {
    let Some((_dir, host)) = host(&NODES, Some(FACTS)) else {
        return;
    };
    let vendor = with_devices(r#"["nvidiactl","nvidia1"]"#);
    let asked = Asked {
        vendor: &vendor,
        units: these(&["1"]),
        ..Asked::default()
    };
    let error = given(&host, &asked).unwrap_err();
    let expected = "V asks for the device 1, whose node /dev/nvidia0 is not in the inventory of the features compute: ask for a feature";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn devices_of_amd_go_with_their_control_node() {
    let nodes = [
        ("dri/card0", 0o660, 44),
        ("dri/renderD128", 0o660, 45),
        ("kfd", 0o660, 45),
    ];
    let asked = Asked {
        vendor: AMD,
        interface: Interface::Amd,
        units: these(&["0"]),
        ..Asked::default()
    };
    let Some((_whole, host)) = host(&nodes, None) else {
        return;
    };
    let (names, groups, _) = given(&host, &asked).unwrap();
    assert_eq!(
        (names, groups),
        (
            vec!["dri/renderD128".to_owned(), "kfd".to_owned()],
            vec![45]
        )
    );
    let (_partly, without) = self::host(&nodes[..2], None).unwrap();
    let (names, _, log) = given(&without, &asked).unwrap();
    assert!(names.is_empty());
    assert!(log[0]
        .message
        .contains("has no effect: the host has no /dev/kfd"));
}

#[test]
fn groups_that_open_nothing_are_not_joined() {
    let device = |mode, gid| Device {
        source: String::new(),
        path: String::new(),
        kind: 'c',
        major: 1,
        minor: 3,
        mode,
        uid: Some(0),
        gid: Some(gid),
        access: crate::model::edits::Access::ALL,
    };
    let devices = [
        device(0o660, 9),
        device(0o660, 9),
        device(0o666, 8),
        device(0o600, 7),
        device(0o660, 0),
        device(0o664, 6),
        device(0o640, 5),
    ];
    assert_eq!(groups(&devices), [5, 6, 9]);
}
