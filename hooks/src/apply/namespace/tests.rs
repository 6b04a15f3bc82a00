use super::process::tests::{apart, Sleeper};
use super::*;
use crate::model::edits::paths::Unseen;
use crate::model::edits::{Access, Hook, Mount, NetDevice, Present};
use std::fs;
use std::os::unix::fs::{symlink, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{statvfs, StatVfsMountFlags as Flags};
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
fn only_files_of_the_host_can_be_mounted() {
    for (kind, expected) in [
        ("", true),
        ("bind", true),
        ("tmpfs", false),
        ("Bind", false),
    ] {
        assert_eq!(is_bind(&described(kind)), expected, "{kind}");
    }
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
    let interface = NetDevice {
        host: "eth7".to_owned(),
        name: "eth0".to_owned(),
    };
    let none = Edits::default;
    for (edits, what) in [
        (
            Edits {
                described: vec![described("tmpfs")],
                ..none()
            },
            "the tmpfs at /t/tmpfs",
        ),
        (
            Edits {
                environment: vec!["A=1".to_owned()],
                unset: vec!["B".to_owned()],
                ..none()
            },
            "the variables A, B",
        ),
        (
            Edits {
                groups: vec![44, 105],
                ..none()
            },
            "the groups 44, 105",
        ),
        (
            Edits {
                hooks: vec![hook],
                ..none()
            },
            "the createContainer hook /bin/x",
        ),
        (
            Edits {
                intel_rdt: Some("{}".to_owned()),
                ..none()
            },
            "the settings of Intel RDT",
        ),
        (
            Edits {
                net_devices: vec![interface],
                ..none()
            },
            "the interface eth7",
        ),
    ] {
        let expected = format!(
            "a hook comes too late for {what}: use oci-decorator-runtime, which edits the spec"
        );
        assert_eq!(noted(edits), Some(expected));
    }
}

#[test]
fn edits_that_a_hook_can_make_are_not_reported() {
    let edits = Edits {
        described: vec![described("bind")],
        ..Edits::default()
    };
    assert_eq!(noted(edits), None);
    assert_eq!(noted(Edits::default()), None);
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

fn device(path: &str, source: &str, kind: char, numbers: (u32, u32)) -> Device {
    Device {
        source: source.to_owned(),
        path: path.to_owned(),
        kind,
        major: numbers.0,
        minor: numbers.1,
        mode: 0o640,
        uid: Some(7),
        gid: Some(8),
        access: Access::ALL,
    }
}

fn mounted(host: &TempDir, targets: &[(&str, &str)]) -> Edits {
    let at = |name: &str| host.path().join(name).display().to_string();
    let mounts = targets.iter().map(|(name, target)| Mount {
        source: at(name),
        target: (*target).to_owned(),
    });
    Edits {
        mounts: mounts.collect(),
        ..Edits::default()
    }
}

/// Puts the edits into the image, as into a container with this process.
fn put(edits: &Edits, image: &Path, process: &Process) -> Result<Vec<String>> {
    let hosts = Hosts::open(edits, process)?;
    let rootfs = Rootfs::open(image)?;
    let (settled, notes) = edits.clone().settle(&Present::default(), &rootfs);
    assert!(notes.is_empty(), "{notes:?}");
    let notes = hosts.put_into(&rootfs, &settled)?;
    Ok(notes.into_iter().map(|note| note.message).collect())
}

const FILE: Flags = Flags::RDONLY.union(Flags::NOSUID).union(Flags::NODEV);
const NODE: Flags = Flags::NOSUID.union(Flags::NOEXEC);

fn flags_at(path: &Path) -> Flags {
    statvfs(path).unwrap().f_flag
}

#[test]
fn files_and_folders_are_mounted_where_they_are_asked_for() {
    if !crate::need::root("mounts") {
        return;
    }
    let (host, image) = host_and_image();
    symlink("/opt", image.path().join("lib")).unwrap();
    let targets = [
        ("file", "/lib/new/file"),
        ("file", "/opt/second"),
        ("folder", "/srv/new"),
    ];
    let mut edits = mounted(&host, &targets);
    edits.described = vec![DescribedMount {
        source: host.path().join("folder").display().to_string(),
        target: "/opt/old".to_owned(),
        kind: "bind".to_owned(),
        options: vec!["rbind".to_owned(), "nosuid".to_owned()],
    }];
    let process = Sleeper::with_mounts();
    let there = |path: &str| image.path().join(path);
    apart(|_| {
        let before = flags_at(image.path());
        assert_eq!(put(&edits, image.path(), &process.open()), Ok(vec![]));
        for file in ["opt/new/file", "opt/second"] {
            assert_eq!(fs::read_to_string(there(file)).unwrap(), "the host's");
            assert!(flags_at(&there(file)).contains(FILE), "{file}");
        }
        for folder in ["opt/old", "srv/new"] {
            let inner = fs::read_to_string(there(folder).join("inner")).unwrap();
            assert_eq!(inner, "the folder's");
        }
        let gained = flags_at(&there("opt/old")) - before;
        assert_eq!(gained, Flags::NOSUID - before);
        // A second time, everything is there already and nothing is noted.
        let count = || {
            fs::read_to_string("/proc/thread-self/mountinfo")
                .unwrap()
                .lines()
                .count()
        };
        let mounts = count();
        assert_eq!(put(&edits, image.path(), &process.open()), Ok(vec![]));
        assert_eq!(count(), mounts);
    });
    // Outside of the namespace there are only the mount points.
    for (file, size) in [("opt/new/file", 0), ("opt/second", 0)] {
        assert_eq!(fs::metadata(there(file)).unwrap().len(), size, "{file}");
    }
    for folder in ["opt/old", "srv/new"] {
        assert_eq!(fs::read_dir(there(folder)).unwrap().count(), 0, "{folder}");
    }
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
            assert!(
                said.unwrap_or_default().contains(why),
                "{target}: {result:?}"
            );
        }
    });
}

/// A mount of the engine that no configuration has is not covered.
#[test]
fn an_existing_mount_stays_and_is_reported() {
    if !crate::need::root("mounts") {
        return;
    }
    let (host, image) = host_and_image();
    fs::write(image.path().join("opt/file"), "the image's").unwrap();
    let process = Sleeper::with_mounts();
    apart(|_| {
        let own = host.path().join("folder/inner");
        let file = image.path().join("opt/file");
        rustix::mount::mount_bind(&own, &file).unwrap();
        rustix::mount::mount_bind(host.path().join("folder"), image.path().join("dev")).unwrap();
        let edits = mounted(&host, &[("file", "/opt/file"), ("file", "/dev/deep/file")]);
        let notes = put(&edits, image.path(), &process.open()).unwrap();
        let expected = ["/dev/deep/file", "/opt/file"]
            .map(|path| format!("the mount at {path} in the container stays as it is"));
        assert_eq!(notes, expected);
        assert_eq!(fs::read_to_string(file).unwrap(), "the folder's");
        assert!(!host.path().join("folder/deep").exists());
    });
}

#[test]
fn nodes_are_made_with_their_owner_and_mode() {
    if !crate::need::root("mknod") {
        return;
    }
    let (_, image) = host_and_image();
    fs::write(image.path().join("dev/there"), "the image's").unwrap();
    let edits = Edits {
        devices: vec![
            device("/dev/deep/c", "/dev/null", 'c', (1, 3)),
            device("/dev/b", "/dev/null", 'b', (7, 300)),
            device("/dev/p", "/dev/null", 'p', (0, 0)),
            device("/dev/there", "/dev/null", 'c', (1, 3)),
        ],
        ..Edits::default()
    };
    let process = Sleeper::with_mounts().open();
    if process.is_rootless() {
        return; // There, nodes are mounted.
    }
    // On this thread, as the hook has only one.
    assert_eq!(put(&edits, image.path(), &process), Ok(vec![]));
    for (name, numbers) in [("deep/c", (1, 3)), ("b", (7, 300)), ("p", (0, 0))] {
        let about = fs::metadata(image.path().join("dev").join(name)).unwrap();
        let kind = about.file_type();
        let kinds = (
            kind.is_char_device(),
            kind.is_block_device(),
            kind.is_fifo(),
        );
        let expected = (name == "deep/c", name == "b", name == "p");
        assert_eq!(kinds, expected, "{name}");
        assert_eq!((about.uid(), about.gid()), (7, 8), "{name}");
        // The test has the usual umask.
        assert_eq!(about.mode() & 0o777 & !0o640, 0, "{name}");
        assert_eq!(about.mode() & 0o600, 0o600, "{name}");
        let found = (
            rustix::fs::major(about.rdev()),
            rustix::fs::minor(about.rdev()),
        );
        assert_eq!(found, numbers, "{name}");
    }
    let there = fs::read_to_string(image.path().join("dev/there"));
    assert_eq!(there.unwrap(), "the image's");
    let long = format!("/dev/{}", "x".repeat(300));
    let edits = Edits {
        devices: vec![device(&long, "/dev/null", 'c', (1, 3))],
        ..Edits::default()
    };
    let error = put(&edits, image.path(), &process).unwrap_err().to_string();
    assert!(error.starts_with("can't make /dev/xxx"), "{error}");
}

/// If the container's root is another user, the kernel opens no node that is made there.
#[test]
fn nodes_are_mounted_where_the_container_has_users_of_its_own() {
    if !crate::need::root("mounts") {
        return;
    }
    let (_, image) = host_and_image();
    let edits = Edits {
        devices: vec![device("/dev/x0", "/dev/null", 'c', (1, 3))],
        ..Edits::default()
    };
    let process = Sleeper::with_users(100_000).open();
    let node = image.path().join("dev/x0");
    apart(|_| {
        assert_eq!(put(&edits, image.path(), &process), Ok(vec![]));
        let about = fs::metadata(&node).unwrap();
        let own = fs::metadata("/dev/null").unwrap();
        assert_eq!((about.dev(), about.ino()), (own.dev(), own.ino()));
        assert!(flags_at(&node).contains(NODE));
        assert!(!flags_at(&node).contains(Flags::RDONLY));
    });
    assert!(fs::metadata(&node).unwrap().is_file());
}
