//! Writes a cache, with its string table laid out as `ldconfig` lays it out since glibc 2.33:
//! every string once, and strings that end alike share their tails.

use std::cmp::Ordering;

use super::cache::{
    Cache, Data, Section, ENTRY_SIZE, EXTENSION_MAGIC, HEADER_SIZE, MAGIC, SECTION_SIZE,
};
use super::parse::NATIVE_ENDIAN;

/// The cache as a file. `None` when it would be larger than its format allows.
pub fn write(cache: &Cache) -> Option<Vec<u8>> {
    let strings_at = HEADER_SIZE + cache.entries.len() * ENTRY_SIZE;
    let table = Table::new(all_strings(cache));
    let mut out = Vec::with_capacity(strings_at + table.bytes.len() + 4096);
    let extension_at = if cache.sections.is_empty() {
        0
    } else {
        (strings_at + table.bytes.len()).next_multiple_of(4)
    };
    out.extend_from_slice(MAGIC);
    put(&mut out, cache.entries.len())?;
    put(&mut out, table.bytes.len())?;
    out.extend_from_slice(&[NATIVE_ENDIAN, 0, 0, 0]);
    put(&mut out, extension_at)?;
    out.resize(HEADER_SIZE, 0);
    let (of_entries, of_names) = table.offsets.split_at(cache.entries.len() * 2);
    for (entry, offsets) in cache.entries.iter().zip(of_entries.chunks_exact(2)) {
        out.extend_from_slice(&entry.flags.to_ne_bytes());
        put(&mut out, strings_at + offsets[0])?;
        put(&mut out, strings_at + offsets[1])?;
        out.extend_from_slice(&entry.os_version.to_ne_bytes());
        out.extend_from_slice(&entry.hwcap.to_ne_bytes());
    }
    out.extend_from_slice(&table.bytes);
    if extension_at > 0 {
        out.resize(extension_at, 0);
        let names = of_names.iter().map(|offset| strings_at + offset);
        write_sections(&mut out, &cache.sections, names)?;
    }
    Some(out)
}

/// Two strings for each entry, then the strings of the sections.
fn all_strings<'a>(cache: &'a Cache) -> impl Iterator<Item = &'a [u8]> {
    let names = cache.sections.iter().flat_map(|s| match &s.data {
        Data::Names(names) => names.as_slice(),
        Data::Bytes(_) => &[],
    });
    cache.entries.iter().flat_map(|e| [e.soname, e.path]).chain(names.copied())
}

fn put(out: &mut Vec<u8>, number: usize) -> Option<()> {
    out.extend_from_slice(&u32::try_from(number).ok()?.to_ne_bytes());
    Some(())
}

fn write_sections(
    out: &mut Vec<u8>,
    sections: &[Section],
    mut offsets: impl Iterator<Item = usize>,
) -> Option<()> {
    out.extend_from_slice(&EXTENSION_MAGIC.to_ne_bytes());
    put(out, sections.len())?;
    let mut data_at = out.len() + sections.len() * SECTION_SIZE;
    let mut placed: Vec<(&Section, usize, usize)> = Vec::new();
    for section in sections {
        let size = match &section.data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Names(names) => names.len() * 4,
        };
        placed.push((section, data_at, size));
        data_at += size;
    }
    placed.sort_by_key(|(section, ..)| section.position);
    for (section, at, size) in placed {
        out.extend_from_slice(&section.tag.to_ne_bytes());
        out.extend_from_slice(&section.flags.to_ne_bytes());
        put(out, at)?;
        put(out, size)?;
    }
    for section in sections {
        match &section.data {
            Data::Bytes(bytes) => out.extend_from_slice(bytes),
            Data::Names(names) => {
                for offset in offsets.by_ref().take(names.len()) {
                    put(out, offset)?;
                }
            }
        }
    }
    Some(())
}

/// The table's bytes, and where in it each string begins.
struct Table {
    /// One for each string that the table was made from, in that order.
    offsets: Vec<usize>,
    bytes: Vec<u8>,
}

impl Table {
    fn new<'a>(strings: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut strings: Vec<(u128, usize, &[u8])> =
            strings.enumerate().map(|(place, string)| (end_of(string), place, string)).collect();
        // Few strings share their last sixteen letters.
        strings.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| compare_ends(a.2, b.2)));
        let mut bytes = Vec::with_capacity(strings.iter().map(|(.., s)| s.len() + 1).sum());
        let mut offsets = vec![0; strings.len()];
        let mut previous: &[u8] = b"";
        for (_, place, string) in strings {
            // A string that shares a tail with an earlier one ends where that one ends.
            if bytes.is_empty() || !previous.ends_with(string) {
                bytes.extend_from_slice(string);
                bytes.push(0);
            }
            offsets[place] = bytes.len() - string.len() - 1;
            previous = string;
        }
        Self { offsets, bytes }
    }
}

/// The last letters as a number: the string with the greater number comes first. A shorter
/// string is padded with zeros, which no string contains.
fn end_of(string: &[u8]) -> u128 {
    let mut letters = [0; 16];
    let from = string.len().saturating_sub(letters.len());
    let end = &string[from..];
    letters[16 - end.len()..].copy_from_slice(end);
    u128::from_le_bytes(letters)
}

/// Compares from the end, descending; of two where one ends with the other, the
/// longer is first.
fn compare_ends(a: &[u8], b: &[u8]) -> Ordering {
    let ends = a.iter().rev().zip(b.iter().rev());
    ends.map(|(x, y)| y.cmp(x))
        .find(|order| *order != Ordering::Equal)
        .unwrap_or_else(|| b.len().cmp(&a.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tails_are_shared() {
        let strings: [&[u8]; 4] = [b"libc.so.6", b"/lib/libc.so.6", b"x", b"c.so.6"];
        let table = Table::new(strings.into_iter());
        assert_eq!(table.bytes, b"x\0/lib/libc.so.6\0");
        assert_eq!(table.offsets, [7, 2, 0, 10]);
    }

    proptest! {
        #[test]
        fn ends_as_numbers_are_in_the_order_of_ends(
            a in "[ab.]{0,20}",
            b in "[ab.]{0,20}",
            tail in "[ab.]{0,18}",
        ) {
            let (a, b) = (format!("{a}{tail}"), format!("{b}{tail}"));
            let (a, b) = (a.as_bytes(), b.as_bytes());
            let order = end_of(b).cmp(&end_of(a));
            prop_assert_eq!(order.then_with(|| compare_ends(a, b)), compare_ends(a, b));
        }
    }
}
