//! Writes a cache.

use super::cache::{
    Cache, Data, Section, ENTRY_SIZE, EXTENSION_MAGIC, HEADER_SIZE, MAGIC, SECTION_SIZE,
};
use super::parse::NATIVE_ENDIAN;
use super::strings::Table;

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

/// Two for each entry, then those of the sections.
fn all_strings<'a>(cache: &'a Cache) -> impl Iterator<Item = &'a [u8]> {
    let names = cache.sections.iter().flat_map(|s| match &s.data {
        Data::Names(names) => names.as_slice(),
        Data::Bytes(_) => &[],
    });
    cache
        .entries
        .iter()
        .flat_map(|e| [e.soname, e.path])
        .chain(names.copied())
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
