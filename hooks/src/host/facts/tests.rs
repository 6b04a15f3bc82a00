use super::*;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};

const TEXT: &str = r#"{"driver_version":"535.261.03","cuda_version":"12.2","written":1.5,"devices":
    [{"index":0,"minor":1,"uuid":"GPU-a","pci":"0000:01:00.0","brand":"Tesla","arch":"8.0","extra":{},
      "mig":[{"uuid":"MIG-a","gpu_instance":1,"compute_instance":0,"nodes":["nvidia-caps/nvidia-cap3","/dev/x"]}]},
     {"index":1,"minor":0,"uuid":null,"brand":""}]}"#;

fn host() -> (tempfile::TempDir, Host, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(&FOLDER[1..]);
    fs::create_dir_all(&folder).unwrap();
    let host = Host::open(dir.path()).unwrap();
    let file = folder.join("nvidia.json");
    (dir, host, file)
}

#[test]
fn a_file_is_read() {
    let (_dir, host, file) = host();
    assert_eq!(host.facts("nvidia"), FactsState::Absent);
    fs::write(&file, TEXT).unwrap();
    let found = host.facts("nvidia");
    let facts = found.facts().unwrap();
    assert_eq!(facts.driver_version.as_deref(), Some("535.261.03"));
    assert_eq!(facts.cuda_version.as_deref(), Some("12.2"));
    let [first, second] = facts.devices.as_slice() else {
        panic!("{facts:?}");
    };
    assert_eq!((first.index, first.minor), (0, 1));
    assert_eq!(first.pci.as_deref(), Some("0000:01:00.0"));
    assert_eq!(first.mig[0].nodes, ["nvidia-caps/nvidia-cap3", "x"]);
    assert_eq!(first.mig[0].gpu_instance, Some(1));
    let expected = Gpu { index: 1, ..Gpu::default() };
    assert_eq!(*second, expected);
}

#[test]
fn what_is_no_description_of_devices_is_refused() {
    for (text, problem) in [
        ("", "EOF while parsing"),
        ("3", "invalid type"),
        (r#"{"devices":{}}"#, "invalid type: map, expected a sequence"),
        (r#"{"devices":[{"index":0}]}"#, "missing field `minor`"),
        (r#"{"devices":[{"index":-1,"minor":0}]}"#, "invalid value"),
        (r#"{"cuda_version":12.2}"#, "invalid type: floating point"),
        (
            r#"{"devices":[{"index":0,"minor":0,"mig":[{"nodes":["../sda"]}]}]}"#,
            "\"../sda\" is not a name under /dev",
        ),
        (
            r#"{"devices":[{"index":0,"minor":0},{"index":0,"minor":1}]}"#,
            "devices[0] and devices[1] have the same index, 0",
        ),
        (
            r#"{"devices":[{"index":0,"minor":0},{"index":1,"minor":0}]}"#,
            "devices[0] and devices[1] have the same minor, 0",
        ),
    ] {
        let found = parse(text.as_bytes()).unwrap_err();
        assert!(found.starts_with(problem), "{text}\n{found}");
    }
}

#[test]
fn files_that_others_may_write_are_not_read() {
    let (dir, host, file) = host();
    let problem = || match host.facts("nvidia") {
        FactsState::Broken(problem) => problem,
        other => panic!("{other:?}"),
    };
    fs::write(&file, TEXT).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(problem().contains("nvidia.json is writable by everyone"));
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let folder = dir.path().join("run/oci-decorator");
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(problem().contains("/run/oci-decorator/ is writable by everyone"), "{}", problem());
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(host.facts("nvidia").facts().is_some());
    fs::rename(&file, dir.path().join("other")).unwrap();
    symlink(dir.path().join("other"), &file).unwrap();
    assert!(problem().contains("can't be read"), "{}", problem());
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(problem().ends_with("not a regular file"));
    fs::remove_dir(&file).unwrap();
    let large = fs::File::create(&file).unwrap();
    large.set_len(MAX_SIZE + 1).unwrap();
    assert!(problem().ends_with("larger than 1048576 bytes"));
}
