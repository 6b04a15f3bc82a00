use super::process::tests::{apart, Sleeper};
use super::*;
use crate::model::edits::paths::Unseen;
use crate::model::edits::{Hook, Mount, NetDevice, Present};
use std::fs;
use std::path::Path;

use tempfile::TempDir;

fn described(kind: &str) -> DescribedMount {
    DescribedMount {
        source: "/h".to_owned(),
        target: format!("/t/{kind}"),
        kind: kind.to_owned(),
        options: Vec::new(),
    }
}

fn noted(edits: Edits) -> Option<String> {
    let (settled, notes) = edits.settle(&Present::default(), &Unseen);
    assert!(notes.is_empty(), "{notes:?}");
    left_out(&settled).map(|note| note.message)
}

#[test]
fn edits_that_come_too_late_are_named() {
    let hook = Hook {
        stage: "createContainer".to_owned(),
        path: "/bin/x".to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        timeout: None,
    };
    let interface = NetDevice { host: "eth7".to_owned(), name: "eth0".to_owned() };
    let none = Edits::default;
    for (edits, what) in [
        (Edits { described: vec![described("tmpfs")], ..none() }, "the tmpfs at /t/tmpfs"),
        (
            Edits { environment: vec!["A=1".to_owned()], unset: vec!["B".to_owned()], ..none() },
            "the variables A, B",
        ),
        (Edits { groups: vec![44, 105], ..none() }, "the groups 44, 105"),
        (Edits { hooks: vec![hook], ..none() }, "the createContainer hook /bin/x"),
        (Edits { intel_rdt: Some("{}".to_owned()), ..none() }, "the settings of Intel RDT"),
        (Edits { net_devices: vec![interface], ..none() }, "the interface eth7"),
    ] {
        let expected = format!(
            "a hook comes too late for {what}: use oci-decorator-runtime, which edits the spec"
        );
        assert_eq!(noted(edits), Some(expected));
    }
}

/// A host with a file and a folder, and an image with a folder for nodes.
fn host_and_image() -> (TempDir, TempDir) {
    let (host, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (tree, folder) in [(&host, "folder"), (&image, "dev"), (&image, "opt/old")] {
        fs::create_dir_all(tree.path().join(folder)).unwrap();
    }
    fs::write(host.path().join("file"), "the host's").unwrap();
    fs::write(host.path().join("folder/inner"), "the folder's").unwrap();
    (host, image)
}

fn mounted(host: &TempDir, targets: &[(&str, &str)]) -> Edits {
    let at = |name: &str| host.path().join(name).display().to_string();
    let mounts = targets
        .iter()
        .map(|(name, target)| Mount { source: at(name), target: (*target).to_owned() });
    Edits { mounts: mounts.collect(), ..Edits::default() }
}

/// Puts the edits into the image, as into a container with this process.
fn put(edits: &Edits, image: &Path, process: &Process) -> Result<Vec<String>> {
    let hosts = DetachedMounts::open(edits, process)?;
    let rootfs = Rootfs::open(image)?;
    let (settled, notes) = edits.clone().settle(&Present::default(), &rootfs);
    assert!(notes.is_empty(), "{notes:?}");
    let notes = hosts.put_into(&rootfs, &settled)?;
    Ok(notes.into_iter().map(|note| note.message).collect())
}

#[test]
fn what_can_not_be_mounted_is_refused_with_the_reason() {
    if !crate::need::root("mounts") {
        return;
    }
    let (host, image) = host_and_image();
    fs::write(image.path().join("opt/file"), "").unwrap();
    let process = Sleeper::with_mounts();
    apart(|_| {
        for (source, target, why) in [
            (
                "file",
                "/opt/old",
                "can't mount /opt/old in the container: the image has a folder there",
            ),
            ("folder", "/opt/file", "the image has a file in its path"),
            ("file", "/opt/file/in", "the image has a file in its path"),
            ("file", "/none", ""),
            ("none", "/opt/x", "can't open "),
        ] {
            let edits = mounted(&host, &[(source, target)]);
            let result = put(&edits, image.path(), &process.open());
            let said = result.as_ref().err().map(ToString::to_string);
            assert_eq!(said.is_some(), !why.is_empty(), "{target}: {said:?}");
            assert!(said.unwrap_or_default().contains(why), "{target}: {result:?}");
        }
    });
}
