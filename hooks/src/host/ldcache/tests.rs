use super::format::{Data, Section};
use super::*;
use std::fs;

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

fn addition(soname: &str, path: &str) -> Addition {
    Addition { soname: soname.to_owned(), path: path.to_owned(), flags: 0x303 }
}

fn merged(bytes: &[u8], additions: &[Addition]) -> Vec<u8> {
    write(&merge(parse(bytes).unwrap(), additions)).unwrap()
}

#[test]
fn the_old_format_in_front_is_skipped() {
    let new = merged(b"", &[addition("liba.so.1", "/i/liba.so.1")]);
    let mut both = b"ld.so-1.7.0\0".to_vec();
    both.extend_from_slice(&1u32.to_ne_bytes());
    both.resize(16 + 12 + 4, 0);
    both.extend_from_slice(&new);
    assert_eq!(write(&parse(&both).unwrap()).unwrap(), new);
}

/// Byte 28 says the order; older versions wrote nothing there.
#[test]
fn caches_of_another_byte_order_are_refused() {
    let mut bytes = merged(b"", &[addition("liba.so.1", "/i/liba.so.1")]);
    let own = bytes[28];
    for (byte, is_read) in [(0, true), (own, true), (own ^ 1, false), (1, false)] {
        // The other bits mean nothing.
        for rest in [0, 0xfc] {
            bytes[28] = byte | rest;
            assert_eq!(parse(&bytes).is_ok(), is_read, "{byte} {rest}");
        }
    }
}

#[test]
fn sections_are_read_up_to_a_number() {
    for (count, is_read) in [(64, true), (65, false)] {
        let section = |position| Section { tag: 9, flags: 0, data: Data::Bytes(b"data"), position };
        let cache = Cache { sections: (0..count).map(section).collect(), ..Cache::default() };
        let bytes = write(&cache).unwrap();
        assert_eq!(parse(&bytes).is_ok(), is_read, "{count}");
    }
}

/// Strings may overlap, so that a small file can ask for any amount of memory.
#[test]
fn names_are_read_up_to_a_length_and_a_sum() {
    let file = |count: u32, length: usize, more: u32| {
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        let number = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_ne_bytes());
        number(&mut bytes, count + more);
        bytes.resize(48, 0);
        let strings = 48 + 24 * (count + more);
        let end = strings + u32::try_from(length).unwrap();
        for (at, count) in [(strings, count), (end, more)] {
            for _ in 0..count {
                for field in [0, at, at, 0, 0, 0] {
                    number(&mut bytes, field);
                }
            }
        }
        bytes.extend(std::iter::repeat_n(b'a', length));
        bytes.push(0);
        bytes
    };
    for (count, length, more, is_read) in
        [(1, 4095, 0, true), (1, 4096, 0, false), (2048, 4095, 0, true), (2048, 4095, 1, false)]
    {
        let bytes = file(count, length, more);
        assert_eq!(parse(&bytes).is_ok(), is_read, "{count} {length} {more}");
    }
}
