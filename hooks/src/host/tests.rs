use super::*;
use std::os::unix::fs::symlink;

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("dev/dri")).unwrap();
    for name in ["nvidia0", "nvidia10", "nvidiactl", "dri/card0", "dri/card1"] {
        std::fs::write(dir.path().join("dev").join(name), "").unwrap();
    }
    dir
}

#[test]
fn patterns_find_names_in_order() {
    let dir = tree();
    let host = Host::open(dir.path()).unwrap();
    let names =
        |wanted: &str| -> Vec<String> { host.devices(wanted).into_iter().map(|d| d.0).collect() };
    assert_eq!(names("nvidia[0-9]*"), ["/dev/nvidia0", "/dev/nvidia10"]);
    assert_eq!(names("/dev/dri/card?"), ["/dev/dri/card0", "/dev/dri/card1"]);
    assert_eq!(names("d*/c*0"), ["/dev/dri/card0"]);
    assert_eq!(names("x*"), Vec::<String>::new());
    assert_eq!(names("exact"), ["/dev/exact"]);
}

#[test]
fn other_files_are_distinguished_from_nodes() {
    let dir = tree();
    let host = Host::open(dir.path()).unwrap();
    assert_eq!(host.devices("gone")[0].1, DeviceFound::Missing);
    assert!(matches!(host.devices("nvidia0")[0].1, DeviceFound::Unusable(_)));
    assert!(matches!(host.devices("dri")[0].1, DeviceFound::Unusable(_)));
}

#[test]
fn sources_begin_with_the_root_and_have_no_links() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store/one/usr/lib");
    std::fs::create_dir_all(&store).unwrap();
    std::fs::write(store.join("libx.so.1.2"), "").unwrap();
    symlink("libx.so.1.2", store.join("libx.so.1")).unwrap();
    symlink("/usr/lib/libx.so.1", store.join("libx.so")).unwrap();
    symlink("one", dir.path().join("store/current")).unwrap();
    let host = Host::open(dir.path()).unwrap();
    let tree = host.tree(Some("/store/current")).unwrap();
    let expected = format!("{}/store/one/usr/lib/libx.so.1.2", dir.path().display());
    for name in ["libx.so", "libx.so.1", "libx.so.1.2"] {
        let path = format!("/usr/lib/{name}");
        let found = tree.find(&path).unwrap();
        assert_eq!(found.source, Some(expected.clone()));
        assert_eq!(found.is_link, name != "libx.so.1.2");
    }
    let error = host.tree(Some("/store/none")).unwrap_err();
    assert_eq!(error.code, crate::error::exit::NOT_FOUND);
}

#[test]
fn nodes_behind_links_are_found_within_the_root() {
    if !crate::need::root("mknod") {
        return;
    }
    let dir = tree();
    let node = |name: &str, kind, mode| {
        let path = dir.path().join("dev").join(name);
        let mode = rustix::fs::Mode::from_raw_mode(mode);
        let numbers = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, numbers).unwrap();
        std::os::unix::fs::chown(path, Some(5), Some(6)).unwrap();
    };
    node("char", FileType::CharacterDevice, 0o600);
    node("dri/block", FileType::BlockDevice, 0o640);
    symlink("char", dir.path().join("dev/link")).unwrap();
    symlink("/dev/dri/block", dir.path().join("dev/absolute")).unwrap();
    // The machine has this node, but this root does not.
    symlink("/dev/zero", dir.path().join("dev/out")).unwrap();
    let host = Host::open(dir.path()).unwrap();
    for (wanted, kind) in [("char", 'c'), ("link", 'c'), ("dri/block", 'b'), ("absolute", 'b')] {
        let [(path, DeviceFound::Node(device))] = &host.devices(wanted)[..] else {
            panic!("{wanted} is a node");
        };
        assert_eq!(*path, format!("/dev/{wanted}"));
        assert_eq!((device.kind, device.uid, device.gid), (kind, Some(5), Some(6)), "{wanted}");
        assert_eq!(device.source, format!("{}/dev/{wanted}", dir.path().display()));
    }
    assert_eq!(host.devices("out")[0].1, DeviceFound::Missing);
}

#[test]
fn hidden_names_match_no_pattern_and_missing_folders_have_none() {
    let dir = tree();
    std::fs::write(dir.path().join("dev/.hidden"), "").unwrap();
    let host = Host::open(dir.path()).unwrap();
    assert!(host.devices("*").iter().all(|(path, _)| path != "/dev/.hidden"));
    assert!(host.devices("gone/*").is_empty());
    assert!(host.devices("nvidia0/*").is_empty());
}

#[test]
fn a_root_that_is_missing_or_a_file_is_reported() {
    let dir = tree();
    for path in ["gone", "dev/nvidia0"] {
        let error = Host::open(&dir.path().join(path)).unwrap_err();
        assert_eq!(error.code, crate::error::exit::NOT_FOUND);
        assert!(error.to_string().contains("can't open the host's root"), "{error}");
    }
}
