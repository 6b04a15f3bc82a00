use super::*;
use std::io::Write;

fn from_bytes(bytes: &[u8]) -> Option<Elf> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    read_elf(&file)
}

/// A small shared library, built by hand: one segment and one dynamic section.
fn sample(machine: u8, wide: bool, needed: &str) -> Vec<u8> {
    let word = if wide { 8 } else { 4 };
    let put = |bytes: &mut Vec<u8>, value: u64, size: usize| {
        bytes.extend_from_slice(&value.to_le_bytes()[..size]);
    };
    let strings = format!("\0libx.so.1\0{needed}\0");
    let (header, entry) = if wide { (64, 56) } else { (52, 32) };
    let dynamic = header + 2 * entry;
    let strtab = dynamic + 4 * 2 * word;
    let total = (strtab + strings.len()) as u64;
    let mut b = b"\x7fELF".to_vec();
    b.extend_from_slice(&[if wide { 2 } else { 1 }, 1, 1]);
    b.resize(16, 0);
    put(&mut b, 3, 2);
    put(&mut b, machine.into(), 2);
    put(&mut b, 1, 4);
    put(&mut b, 0, word);
    put(&mut b, header as u64, word);
    put(&mut b, 0, word);
    put(&mut b, 0, 4);
    for value in [header, entry, 2, 0, 0, 0] {
        put(&mut b, value as u64, 2);
    }
    for (kind, offset, size) in [(1, 0, total), (2, dynamic as u64, (8 * word) as u64)] {
        put(&mut b, kind, 4);
        if wide {
            put(&mut b, 4, 4);
        }
        for value in [offset, offset, offset, size, size] {
            put(&mut b, value, word);
        }
        if !wide {
            put(&mut b, 4, 4);
        }
        put(&mut b, 0x1000, word);
    }
    for (tag, value) in [(5, strtab as u64), (14, 1), (1, 11), (0, 0)] {
        put(&mut b, tag, word);
        put(&mut b, value, word);
    }
    b.extend_from_slice(strings.as_bytes());
    b
}

#[test]
fn soname_and_flags_by_machine() {
    for (machine, wide, needed, flags) in [
        (62, true, "libm.so.6", 0x303),
        (3, false, "libc.so.6", 0x3),
        (3, false, "libm.so.6", 0x3),
        (183, true, "libc.so.6", 0xa03),
    ] {
        let elf = from_bytes(&sample(machine, wide, needed)).unwrap();
        assert_eq!(elf.soname.as_deref(), Some("libx.so.1"));
        assert_eq!(elf.flags, flags, "{machine}");
    }
}

#[test]
fn files_that_are_not_libraries_give_nothing() {
    assert_eq!(from_bytes(b""), None);
    assert_eq!(from_bytes(b"!<arch>\n"), None);
    assert_eq!(from_bytes(b"\x7fELF"), None);
}
