use super::*;
use std::fs;
use std::os::unix::fs::{symlink, MetadataExt};

use tempfile::TempDir;

/// x86-64 libraries for glibc's loader.
const FLAGS: u32 = 0x303;
const CONF: &str = "etc/ld.so.conf";
const DROP_IN: &str = "etc/ld.so.conf.d/00-oci-decorator.conf";
const HEADER: &str =
    "# Written by oci-decorator: folders of the drivers that this container was given.\n";

/// An image with those files.
fn image(files: &[(&str, &[u8])]) -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    tree
}

fn library(path: &str) -> Library {
    let (_, name) = split(path).unwrap();
    Library { path: path.to_owned(), soname: name.to_owned(), flags: FLAGS, is_link: false }
}

/// A cache that lists these paths.
fn cache_of(paths: &[&str]) -> Vec<u8> {
    let libraries: Vec<_> = paths.iter().map(|path| library(path)).collect();
    write(&merge(Cache::default(), &additions(&libraries))).unwrap()
}

fn update_with(tree: &TempDir, paths: &[&str]) -> Vec<String> {
    let libraries: Vec<_> = paths.iter().map(|path| library(path)).collect();
    let root = Root::open(tree.path()).unwrap();
    let notes = update(&root, &libraries);
    notes.into_iter().map(|note| note.message).collect()
}

fn listed(tree: &TempDir) -> Vec<String> {
    let bytes = fs::read(tree.path().join(CACHE)).unwrap();
    let cache = parse(&bytes).unwrap();
    let paths = cache.entries.iter().map(|e| String::from_utf8_lossy(e.path));
    let mut paths: Vec<_> = paths.map(std::borrow::Cow::into_owned).collect();
    paths.sort();
    paths
}

fn text(tree: &TempDir, path: &str) -> Option<String> {
    fs::read_to_string(tree.path().join(path)).ok()
}

/// The drop-in names the folders that an image's own `ldconfig` does not search.
#[test]
fn folders_that_the_image_knows_are_named_in_no_drop_in() {
    let tree = image(&[
        (CACHE, &cache_of(&["/opt/known/libi.so.1", "/usr/lib/libc.so.6"])),
        (CONF, b"include ld.so.conf.d/*.conf\n"),
    ]);
    let ours = ["/lib/liba.so.1", "/opt/known/libb.so.1", "/usr/lib/libc.so.7"];
    assert_eq!(update_with(&tree, &ours), [""; 0]);
    assert_eq!(text(&tree, DROP_IN), None);
    update_with(&tree, &["/opt/known/libb.so.1", "/opt/new/libd.so.1"]);
    assert_eq!(text(&tree, DROP_IN), Some(format!("{HEADER}/opt/new\n")));
    // Its folders stay, whatever the next driver has. A drop-in without folders is not written.
    update_with(&tree, &["/opt/next/libe.so.1"]);
    let both = format!("{HEADER}/opt/next\n/opt/new\n");
    assert_eq!(text(&tree, DROP_IN), Some(both));
}

#[test]
fn a_drop_in_is_written_only_where_it_is_included() {
    for (conf, is_included) in [
        ("include /etc/ld.so.conf.d/*.conf\n", true),
        ("include other.d/*.conf ld.so.conf.d/*.conf\n", true),
        ("include other.d/*.conf\n", false),
        ("exclude ld.so.conf.d/*.conf\n", false),
        ("", false),
    ] {
        let tree = image(&[(CACHE, b""), (CONF, conf.as_bytes())]);
        assert_eq!(update_with(&tree, &["/opt/d/liba.so.1"]), [""; 0]);
        assert_eq!(text(&tree, DROP_IN).is_some(), is_included, "{conf}");
    }
    let without = image(&[(CACHE, b"")]);
    assert_eq!(update_with(&without, &["/opt/d/liba.so.1"]), [""; 0]);
    assert_eq!(text(&without, DROP_IN), None);
    // A drop-in that can't be read or written doesn't stop the cache from being written.
    let folder = image(&[(CACHE, b""), ("etc/ld.so.conf/x", b"")]);
    let notes = update_with(&folder, &["/opt/d/liba.so.1"]);
    assert!(matches!(&notes[..], [note] if note.starts_with("a later ldconfig")), "{notes:?}");
    assert_eq!(listed(&folder), ["/opt/d/liba.so.1"]);
}

/// Runtimes leave an empty file in place of a mounted file. No loader can use it.
#[test]
fn what_is_left_of_an_earlier_driver_is_taken_out() {
    let before = ["gone", "stub", "own", "kept", "folder", "link"];
    let before = before.map(|name| format!("/opt/d/lib{name}.so.1"));
    let mut before: Vec<&str> = before.iter().map(String::as_str).collect();
    // No earlier start has used that folder.
    before.extend(["/opt/e/libstub.so.1", "/opt/e/libgone.so.1"]);
    let tree = image(&[
        (CACHE, &cache_of(&before)),
        (CONF, b"include ld.so.conf.d/*.conf\n"),
        (DROP_IN, b"# opt/e\n /opt/d\n/opt/a\n/opt/z\n"),
        ("opt/d/libstub.so.1", b""),
        ("opt/d/libown.so.1", b""),
        ("opt/d/libkept.so.1", b"elf"),
        ("opt/d/libfolder.so.1/x", b""),
        ("opt/e/libstub.so.1", b""),
    ]);
    symlink("libkept.so.1", tree.path().join("opt/d/liblink.so.1")).unwrap();
    assert_eq!(update_with(&tree, &["/opt/d/libown.so.1"]), [""; 0]);
    let expected = [
        "/opt/d/libfolder.so.1",
        "/opt/d/libkept.so.1",
        "/opt/d/liblink.so.1",
        "/opt/d/libown.so.1",
        "/opt/e/libgone.so.1",
        "/opt/e/libstub.so.1",
    ];
    assert_eq!(listed(&tree), expected);
}

/// An image's author may list any number: no start looks at all of them.
#[test]
fn no_more_than_some_entries_are_looked_at() {
    let count = MAX_STUBS as usize + 3;
    let names: Vec<_> = (0..count).map(|n| format!("/opt/d/lib{n}.so")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tree = image(&[(CACHE, &cache_of(&names)), (DROP_IN, b"/opt/d\n")]);
    update_with(&tree, &["/opt/new/liba.so.1"]);
    assert_eq!(listed(&tree).len(), 1 + 3);
}

/// A desktop's cache is some hundred kilobytes; one larger than the limit is not read.
#[test]
fn a_cache_up_to_the_limit_is_read() {
    let mut bytes = cache_of(&["/usr/lib/libc.so.6"]);
    for (extra, is_read) in [(0, true), (1, false)] {
        bytes.resize(usize::try_from(MAX_CACHE).unwrap() + extra, 0);
        let tree = image(&[(CACHE, &bytes)]);
        let notes = update_with(&tree, &["/opt/d/liba.so.1"]);
        assert_eq!(notes.is_empty(), is_read, "{notes:?}");
    }
}

#[test]
fn the_images_newer_libraries_are_noted_and_forgotten() {
    const COMPAT: &str = "etc/ld.so.conf.d/00-oci-decorator-compat.conf";
    let tree = image(&[]);
    let root = Root::open(tree.path()).unwrap();
    assert_eq!(drop_in::compat(&root), None);
    drop_in::put_compat(&root, None).unwrap();
    assert!(!tree.path().join("etc").exists());
    for folder in ["/usr/local/cuda/compat", "/opt/c"] {
        drop_in::put_compat(&root, Some(folder)).unwrap();
        assert_eq!(drop_in::compat(&root).as_deref(), Some(folder));
        assert_eq!(text(&tree, COMPAT), Some(format!("{HEADER}{folder}\n")));
    }
    let inode = || fs::metadata(tree.path().join(COMPAT)).unwrap().ino();
    let before = inode();
    drop_in::put_compat(&root, Some("/opt/c")).unwrap();
    assert_eq!(inode(), before, "what is there is not written again");
    drop_in::put_compat(&root, None).unwrap();
    assert_eq!(text(&tree, COMPAT), None);
}
