//! The library cache against the real `ldconfig`, on a small root that is made
//! from this machine's own loader and C library.

use std::fs;
use std::process::Command;

use crate::support::{install_copy, need, Tree};
use oci_decorator::host::ldcache;
use oci_decorator::host::rootfs::Root;
use oci_decorator::model::edits::Library;

const DROP_IN: &str = "etc/ld.so.conf.d/00-oci-decorator.conf";
const CACHE: &str = "etc/ld.so.cache";
const DRIVER: &str = "/opt/driver/lib";

/// An image with `ldconfig`, a folder of its own and one of glibc-hwcaps.
/// `None` on a machine that has no static `ldconfig`, or without root.
fn image() -> Option<Tree> {
    if !need::root("ldconfig -r changes its root") {
        return None;
    }
    let ldconfig = ["/sbin/ldconfig.real", "/sbin/ldconfig"]
        .iter()
        .find(|path| fs::read(path).is_ok_and(|b| b.starts_with(b"\x7fELF")));
    need::need(ldconfig.is_some(), "a static ldconfig");
    let ldconfig = ldconfig?;
    let image = Tree::new();
    image.folder("proc");
    install_copy(ldconfig, &image.path("sbin/ldconfig"));
    image.file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    image.file("etc/ld.so.conf.d/local.conf", "/usr/local/lib\n");
    for (path, soname) in [
        ("usr/local/lib/libshared.so.1.0", "libshared.so.1"),
        ("usr/local/lib/libown.so.12", "libown.so.12"),
        ("usr/local/lib/libown.so.9", "libown.so.9"),
        ("usr/local/lib/glibc-hwcaps/x86-64-v2/libshared.so.1", "libshared.so.1"),
        ("usr/lib/libz.so.1", "libz.so.1"),
    ] {
        image.library(path, soname, &[]);
    }
    ldconfig_in(&image);
    Some(image)
}

fn ldconfig_in(image: &Tree) {
    let output =
        Command::new(image.path("sbin/ldconfig")).arg("-r").arg(image.0.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The driver's files: real ones, soname links and development links.
fn install_driver(tree: &Tree) {
    for (name, soname) in [
        ("libcuda.so.535.261.03", "libcuda.so.1"),
        ("libnvidia-ml.so.535.261.03", "libnvidia-ml.so.1"),
        ("libshared.so.1", "libshared.so.1"),
        ("libplain.so", ""),
    ] {
        tree.library(&format!("{DRIVER}/{name}"), soname, &[]);
    }
    for (link, target) in [
        ("libcuda.so", "libcuda.so.535.261.03"),
        ("libcuda.so.1", "libcuda.so.535.261.03"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.535.261.03"),
        ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    ] {
        tree.link(&format!("{DRIVER}/{link}"), target);
    }
    if cfg!(target_arch = "x86_64") {
        tree.library(&format!("{DRIVER}/libc.so.6"), "libc.so.6", &["-m32"]);
        let libc = tree.path(&format!("{DRIVER}/libc.so.6"));
        let needed = ["-m32", "-Wl,--no-as-needed", libc.to_str().unwrap()];
        tree.library(&format!("{DRIVER}/libcuda32.so.1"), "libcuda32.so.1", &needed);
        // One that needs no libc.so.6 is not here: glibc 2.36 and 2.41 record it differently.
        fs::remove_file(libc).unwrap();
    }
}

/// What `resolve_all` finds for the whole folder of the driver.
fn libraries(host: &Tree) -> Vec<Library> {
    let mut names: Vec<String> = fs::read_dir(host.path(DRIVER))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| format!("\"{DRIVER}/{name}\""))
        .collect();
    names.sort();
    let config = format!(
        r#"{{"activation_flag":"X","driver_feature":[],"inventory":{{"all-of-it":{{"libraries":[{}]}}}}}}"#,
        names.join(",")
    );
    let host_root = oci_decorator::host::Host::open(host.0.path()).unwrap();
    let file = oci_decorator::model::vendor::VendorFile {
        name: "x".into(),
        path: "x.json".into(),
        content: Ok(oci_decorator::config::vendor::parse(&config).unwrap()),
    };
    let choice = oci_decorator::model::vendor::Choice::whole(&file).unwrap();
    let (edits, _) = oci_decorator::host::resolve::resolve_all(&host_root, &choice).unwrap();
    assert_eq!(edits.libraries.len(), names.len());
    edits.libraries
}

fn copy(tree: &Tree) -> Tree {
    let copy = Tree::new();
    let output =
        Command::new("cp").arg("-a").arg(tree.path(".")).arg(copy.0.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    copy
}

fn update(image: &Tree, libraries: &[Library]) -> Vec<String> {
    let root = Root::open(image.0.path()).unwrap();
    let notes = ldcache::update(&root, libraries);
    notes.into_iter().map(|note| note.message).collect()
}

fn bytes(image: &Tree) -> Vec<u8> {
    fs::read(image.path(CACHE)).unwrap()
}

#[test]
fn merged_cache_is_what_ldconfig_writes() {
    let Some(image) = image() else { return };
    let host = Tree::new();
    install_driver(&host);
    let with_driver = copy(&image);
    install_driver(&with_driver);
    with_driver.file(DROP_IN, format!("{DRIVER}\n"));
    ldconfig_in(&with_driver);
    assert_eq!(update(&image, &libraries(&host)), Vec::<String>::new());
    let listed = |tree: &Tree| {
        let output =
            Command::new("/sbin/ldconfig").args(["-p", "-C"]).arg(tree.path(CACHE)).output();
        let text = crate::support::stdout(&output.unwrap());
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed(&image), listed(&with_driver));
    assert!(bytes(&image) == bytes(&with_driver), "the bytes differ");
}

#[test]
fn a_second_start_changes_nothing() {
    let Some(image) = image() else { return };
    let host = Tree::new();
    install_driver(&host);
    let libraries = libraries(&host);
    update(&image, &libraries);
    let first = (bytes(&image), fs::metadata(image.path(CACHE)).unwrap());
    let listing = image.listing();
    update(&image, &libraries);
    let second = fs::metadata(image.path(CACHE)).unwrap();
    assert!(bytes(&image) == first.0);
    assert_eq!(second.modified().unwrap(), first.1.modified().unwrap());
    assert_eq!(image.listing(), listing);
}

#[test]
fn a_later_ldconfig_in_the_container_keeps_the_entries() {
    let Some(image) = image() else { return };
    let host = Tree::new();
    install_driver(&host);
    update(&image, &libraries(&host));
    let merged = bytes(&image);
    install_driver(&image); // What the mounts do in a container.
    ldconfig_in(&image);
    assert!(bytes(&image) == merged);
}

/// Found in a review: the host's `ldconfig` once ran on such an image, as root, and
/// waited for the FIFO.
#[test]
fn an_unreadable_cache_is_replaced_by_the_drivers_entries_and_starts_nothing() {
    let Some(image) = image() else { return };
    let host = Tree::new();
    install_driver(&host);
    let libraries = libraries(&host);
    let empty = copy(&image);
    fs::write(empty.path(CACHE), "").unwrap();
    update(&empty, &libraries);
    for broken in
        [b"garbage".to_vec(), bytes(&image)[..200].to_vec(), b"ld.so-1.7.0\0\0\0\0\0".to_vec()]
    {
        let image = copy(&image);
        fs::write(image.path(CACHE), broken).unwrap();
        // Opening it would wait for a writer for ever.
        fifo(&image, "etc/ld.so.conf.d/wait.conf");
        image.file("etc/ld.so.conf.d/libc.conf", "include /etc/ld.so.conf.d/wait.conf\n");
        let before = image.listing();
        let notes = update(&image, &libraries);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("library cache can't be read"), "{notes:?}");
        assert!(bytes(&image) == bytes(&empty), "not our entries only");
        let mut after = image.listing();
        after.retain(|path| !before.contains(path));
        assert_eq!(after, [DROP_IN], "more than the drop-in was made");
    }
}

#[test]
fn files_that_are_not_regular_are_never_opened() {
    let Some(image) = image() else { return };
    let host = Tree::new();
    install_driver(&host);
    let libraries = libraries(&host);
    for (name, stays, reported) in [
        ("etc/ld.so.conf", true, "a later ldconfig"),
        (CACHE, true, "can't update the image's library cache"),
        (DROP_IN, false, ""), // The name is ours, so the FIFO is replaced.
    ] {
        let image = copy(&image);
        let _ = fs::remove_file(image.path(name));
        fifo(&image, name);
        // It returns at all: opening a FIFO waits for its other end.
        let notes = update(&image, &libraries).join("\n");
        let kind = fs::symlink_metadata(image.path(name)).unwrap().file_type();
        assert_eq!(std::os::unix::fs::FileTypeExt::is_fifo(&kind), stays, "{name}");
        assert!(notes.contains(reported), "{name}: {notes}");
        assert_eq!(notes.is_empty(), reported.is_empty(), "{name}: {notes}");
        if name != CACHE {
            let cache = String::from_utf8_lossy(&bytes(&image)).into_owned();
            assert!(cache.contains("libcuda.so.1"), "{name}: no entries of ours");
        }
    }
}

fn fifo(image: &Tree, path: &str) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o644));
    rustix::fs::mknodat(rustix::fs::CWD, image.path(path), kind, mode, 0).unwrap();
}
