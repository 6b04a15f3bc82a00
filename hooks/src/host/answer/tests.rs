use super::*;
use crate::config::vendor;
use crate::model::decide::Choice;
use crate::model::request::{Ask, Channels, Details, Source, Way};
use crate::model::vendor::VendorFile;
use std::fs;
use std::path::Path;

const FACTS: &str = r#"{"driver_version":"535.261.03","cuda_version":"12.2","devices":[
    {"index":0,"minor":1,"uuid":"GPU-a","pci":"0000:01:00.0","brand":"Tesla","arch":"8.0",
     "mig":[{"uuid":"MIG-x","nodes":["nvidia-caps/nvidia-cap3"]}]},
    {"index":1,"minor":0,"uuid":"GPU-b","pci":"0000:02:00.0","brand":"Quadro","arch":"7.5"}]}"#;
const VENDOR: &str = r#"{"version":"535.261.03","activation_flag":"X","driver_feature":["compute"],
    "units":"nvidia[0-9]*","interfaces":["nvidia"],"inventory":{"compute":{"devices":
    ["nvidiactl","nvidia[0-9]*","dri/*","nvidia-caps/*"]}}}"#;

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
    for (pci, names) in
        [("0000:01:00.0", ["card1", "renderD129"]), ("0000:02:00.0", ["card0", "renderD128"])]
    {
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
            details: Details { groups: true, ..Details::default() },
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
    let names = edits.devices.iter().map(|d| d.path.trim_start_matches("/dev/").to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok((names, edits.groups, notes))
}

#[test]
fn a_device_without_a_node_is_refused() {
    let Some((_dir, host)) = host(&NODES[..2], Some(FACTS)) else {
        return;
    };
    let with = |units| Asked { units, ..Asked::default() };
    let error = given(&host, &with(these(&["0"]))).unwrap_err();
    assert!(
        error.contains("V asks for the device 0, and the host has no node for it: load"),
        "{error}"
    );
    assert!(given(&host, &with(Units::All)).is_ok());
}

/// A vendor whose feature has these devices.
fn with_devices(devices: &str) -> String {
    VENDOR.replace(r#"["nvidiactl","nvidia[0-9]*","dri/*","nvidia-caps/*"]"#, devices)
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
        assert!(said.unwrap().message.contains("V gets no device"), "{notes:?}");
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
    let asked = Asked { vendor: &vendor, units: these(&["1"]), ..Asked::default() };
    let error = given(&host, &asked).unwrap_err();
    let expected = "V asks for the device 1, whose node /dev/nvidia0 is not in the inventory of the features compute: ask for a feature";
    assert!(error.starts_with(expected), "{error}");
}
