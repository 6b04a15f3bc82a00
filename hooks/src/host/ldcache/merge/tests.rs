use super::super::cache::{Data, Section};
use super::super::{parse, write};
use super::*;

fn addition(soname: &str, path: &str) -> Addition {
    Addition { soname: soname.to_owned(), path: path.to_owned(), flags: 0x303 }
}

fn merged(bytes: &[u8], additions: &[Addition]) -> Vec<u8> {
    write(&merge(parse(bytes).unwrap(), additions)).unwrap()
}

fn listed(bytes: &[u8]) -> Vec<String> {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    parse(bytes).unwrap().entries.iter().map(|e| text(e.path)).collect()
}

#[test]
fn ours_come_first_and_names_descend() {
    let image = merged(
        b"",
        &[addition("liba.so.1", "/i/liba.so.1"), addition("libb.so.2", "/i/libb.so.2")],
    );
    let both = merged(
        &image,
        &[addition("liba.so.1", "/o/liba.so.1"), addition("libb.so.10", "/o/libb.so.10")],
    );
    assert_eq!(listed(&both), ["/o/libb.so.10", "/i/libb.so.2", "/o/liba.so.1", "/i/liba.so.1"]);
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

/// As `ldconfig` writes them since glibc 2.33: the library of a folder for newer processors
/// first, and what the numbers in the upper half of `hwcap` mean in a section.
fn with_extensions() -> Cache<'static> {
    let entry = |path: &'static str, os_version, hwcap| Entry {
        flags: 0x303,
        soname: b"liba.so.1",
        path: path.as_bytes(),
        os_version,
        hwcap,
    };
    let section = |tag, data, position| Section { tag, flags: tag + 7, data, position };
    let levels: Vec<&[u8]> = vec![b"x86-64-v2", b"x86-64-v3"];
    Cache {
        entries: vec![
            entry("/i/glibc-hwcaps/x86-64-v3/liba.so.1", 0, 0x4000_0000_0000_0001),
            entry("/o/liba.so.1", 0, 0x4000_0000_0000_0000),
            entry("/i/tls/liba.so.1", 0, 5),
            entry("/o/liba.so.1", 0x0002_0600, 0),
            entry("/i/liba.so.1", 0, 0),
        ],
        // The data have a different order than the table.
        sections: vec![
            section(1, Data::Names(levels), 1),
            section(0, Data::Bytes(b"ldconfig (GNU libc)"), 0),
        ],
    }
}

#[test]
fn what_newer_versions_of_ldconfig_wrote_is_read_and_written_alike() {
    let cache = with_extensions();
    let bytes = write(&cache).unwrap();
    assert_eq!(parse(&bytes).unwrap(), cache);
    assert_eq!(write(&parse(&bytes).unwrap()).unwrap(), bytes);
}

#[test]
fn ours_come_behind_those_for_newer_processors_and_replace_only_their_equals() {
    let ours = [addition("liba.so.1", "/o/liba.so.1")];
    let merged = merge(with_extensions(), &ours);
    let found: Vec<_> = merged
        .entries
        .iter()
        .map(|e| (std::str::from_utf8(e.path).unwrap(), e.os_version, e.hwcap))
        .collect();
    let expected = [
        ("/i/glibc-hwcaps/x86-64-v3/liba.so.1", 0, 0x4000_0000_0000_0001),
        ("/o/liba.so.1", 0, 0x4000_0000_0000_0000),
        ("/o/liba.so.1", 0, 0),
        ("/i/tls/liba.so.1", 0, 5),
        ("/o/liba.so.1", 0x0002_0600, 0),
        ("/i/liba.so.1", 0, 0),
    ];
    assert_eq!(found, expected);
    assert_eq!(merged.sections, with_extensions().sections);
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
        let cache = Cache { sections: (0..count).map(section).collect(), ..with_extensions() };
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

fn library(path: &str, soname: &str, is_link: bool) -> Library {
    Library { path: path.to_owned(), soname: soname.to_owned(), flags: 0x303, is_link }
}

fn named(libraries: &[Library]) -> Vec<String> {
    additions(libraries).into_iter().map(|a| format!("{} {}", a.soname, a.path)).collect()
}

#[test]
fn a_single_file_is_named_itself() {
    let file = library("/d/libcuda.so.396.26", "libcuda.so.1", false);
    assert_eq!(named(&[file]), ["libcuda.so.1 /d/libcuda.so.396.26"]);
}

#[test]
fn the_newest_of_several_files_is_named() {
    let file = |version: &str| library(&format!("/d/libx.so.1.{version}"), "libx.so.1", false);
    let listed = named(&[file("9"), file("10"), file("2")]);
    assert_eq!(listed, ["libx.so.1 /d/libx.so.1.10"]);
}

#[test]
fn links_count_as_ldconfig_counts_them() {
    let libraries = [
        library("/d/libcuda.so", "libcuda.so.1", true),
        library("/d/libcuda.so.396.26", "libcuda.so.1", false),
        library("/d/libcuda.so.1", "libcuda.so.1", true),
        library("/e/libcuda.so", "libcuda.so.1", false),
    ];
    assert_eq!(
        named(&libraries),
        ["libcuda.so /d/libcuda.so", "libcuda.so.1 /d/libcuda.so.1", "libcuda.so.1 /e/libcuda.so"]
    );
}
