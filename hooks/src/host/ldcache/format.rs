//! glibc's `/etc/ld.so.cache`: its entries in memory, a reader for untrusted images, and a writer.
//!
//! Format: glibc `sysdeps/generic/dl-cache.h`, `elf/cache.c` and `elf/stringtable.c`.
//! Only the new format (`glibc-ld.so.cache1.1`) is written; every glibc since
//! 2.2 reads it, and files that open with the older part are read through it. The string table is laid
//! out as `ldconfig` lays it out since glibc 2.33: every string once, and strings that end alike share
//! their tails.

use std::cell::Cell;
use std::cmp::Ordering;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const HEADER_SIZE: usize = 48;
const ENTRY_SIZE: usize = 24;
const SECTION_SIZE: usize = 16;
/// Section that lists the names of glibc-hwcaps folders.
const TAG_HWCAPS: u32 = 1;
/// An entry whose `hwcap` has these upper bits indexes that list.
const HWCAP_EXTENSION: u64 = 1 << 62;

/// A cache, its strings borrowed from the file that it was read from.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Cache<'a> {
    pub entries: Vec<Entry<'a>>,
    pub(super) sections: Vec<Section<'a>>,
}

/// One library. The names are without their terminating NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub flags: u32,
    pub soname: &'a [u8],
    pub path: &'a [u8],
    pub(super) os_version: u32,
    pub(super) hwcap: u64,
}

impl Entry<'_> {
    fn is_extension(&self) -> bool {
        self.hwcap >> 32 == HWCAP_EXTENSION >> 32
    }
}

/// A part of the extension area. The parts are in the order of their data in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section<'a> {
    pub tag: u32,
    pub flags: u32,
    pub data: Data<'a>,
    /// Place in the table of sections, which is ordered differently.
    pub position: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data<'a> {
    Bytes(&'a [u8]),
    /// Offsets of strings, which move when the string table changes.
    Names(Vec<&'a [u8]>),
}

/// Compares names as glibc's `_dl_cache_libcmp` does: runs of digits by their
/// value, digits after every other character. Values of any length are
/// compared exactly, where glibc's `int` would overflow: a total order.
pub fn compare_names(mut left: &[u8], mut right: &[u8]) -> Ordering {
    loop {
        let (Some(&l), Some(&r)) = (left.first(), right.first()) else {
            return left.len().cmp(&right.len());
        };
        let order = match (l.is_ascii_digit(), r.is_ascii_digit()) {
            (true, true) => {
                let (value, rest) = digits(left);
                let (other, other_rest) = digits(right);
                (left, right) = (rest, other_rest);
                value.len().cmp(&other.len()).then_with(|| value.cmp(other))
            }
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                (left, right) = (&left[1..], &right[1..]);
                l.cmp(&r)
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// The run of digits at the head, without leading zeros, and what follows it.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let zeros = text[..end].iter().take_while(|&&b| b == b'0').count();
    (&text[zeros..end], &text[end..])
}

/// Compares entries as `ldconfig` sorts them: name descending, flags
/// descending, entries of glibc-hwcaps folders first.
pub fn compare_entries(a: &Entry, b: &Entry) -> Ordering {
    compare_names(b.soname, a.soname)
        .then_with(|| b.flags.cmp(&a.flags))
        .then_with(|| b.is_extension().cmp(&a.is_extension()))
}

/// The kernel's limit for a path; no loader opens a longer one.
const MAX_STRING: usize = 4096;
/// Bytes of all strings together, however often they overlap in the file.
const MAX_TEXT: usize = 16 << 20;
const MAX_SECTIONS: usize = 64;
const OLD_HEADER_SIZE: usize = 16;
const OLD_ENTRY_SIZE: usize = 12;
/// Byte 28 of the header: 0 from before glibc 2.33, else 2 or 3 for the byte order.
const ENDIAN_AT: usize = 28;
const ENDIAN_MASK: u8 = 3;
const NATIVE_ENDIAN: u8 = if cfg!(target_endian = "little") { 2 } else { 3 };

/// Why a cache can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable(pub &'static str);

const TRUNCATED: Unreadable = Unreadable("truncated");
const OLD: Unreadable = Unreadable("only the format from before glibc 2.2");

/// Reads a cache. Empty bytes are an empty cache.
pub fn parse(bytes: &[u8]) -> Result<Cache<'_>, Unreadable> {
    if bytes.is_empty() {
        return Ok(Cache::default());
    }
    let start = new_header(bytes)?;
    let file = File { bytes, new: &bytes[start..], text: Cell::new(0) };
    let entries = file.entries()?;
    let sections = file.sections()?;
    Ok(Cache { entries, sections })
}

/// The offset of the new header: 0, or the end of the old part.
fn new_header(bytes: &[u8]) -> Result<usize, Unreadable> {
    if bytes.starts_with(MAGIC) {
        return Ok(0);
    }
    if !bytes.starts_with(OLD_MAGIC) {
        return Err(Unreadable("not a library cache"));
    }
    let size = (number(bytes, 12)? as usize).checked_mul(OLD_ENTRY_SIZE);
    let end = size.and_then(|size| size.checked_add(OLD_HEADER_SIZE)).ok_or(TRUNCATED)?;
    let start = end.next_multiple_of(8);
    let is_there = bytes.get(start..).is_some_and(|rest| rest.starts_with(MAGIC));
    is_there.then_some(start).ok_or(OLD)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Unreadable> {
    let found = at.checked_add(N).and_then(|end| bytes.get(at..end)?.try_into().ok());
    found.ok_or(TRUNCATED)
}

fn number(bytes: &[u8], at: usize) -> Result<u32, Unreadable> {
    array(bytes, at).map(u32::from_ne_bytes)
}

struct File<'a> {
    bytes: &'a [u8],
    /// The bytes from the new header on. Offsets of strings count from here.
    new: &'a [u8],
    text: Cell<usize>,
}

impl<'a> File<'a> {
    fn entries(&self) -> Result<Vec<Entry<'a>>, Unreadable> {
        let endian = self.new.get(ENDIAN_AT).ok_or(TRUNCATED)? & ENDIAN_MASK;
        if endian != 0 && endian != NATIVE_ENDIAN {
            return Err(Unreadable("written for another byte order"));
        }
        let count = number(self.new, MAGIC.len())? as usize;
        let size = count.checked_mul(ENTRY_SIZE).ok_or(TRUNCATED)?;
        let table = self.new.get(HEADER_SIZE..).and_then(|rest| rest.get(..size));
        let table = table.ok_or(TRUNCATED)?;
        table.chunks_exact(ENTRY_SIZE).map(|entry| self.entry(entry)).collect()
    }

    fn entry(&self, entry: &[u8]) -> Result<Entry<'a>, Unreadable> {
        let at = |at| number(entry, at);
        Ok(Entry {
            flags: at(0)?,
            soname: self.string(at(4)?)?,
            path: self.string(at(8)?)?,
            os_version: at(12)?,
            hwcap: array(entry, 16).map(u64::from_ne_bytes)?,
        })
    }

    fn string(&self, offset: u32) -> Result<&'a [u8], Unreadable> {
        let rest =
            self.new.get(offset as usize..).ok_or(Unreadable("a name lies outside the file"))?;
        let rest = &rest[..rest.len().min(MAX_STRING)];
        let end = rest.iter().position(|&b| b == 0).ok_or(Unreadable("a name has no end"))?;
        self.text.set(self.text.get() + end + 1);
        if self.text.get() > MAX_TEXT {
            return Err(Unreadable("its names are larger than any real cache's"));
        }
        Ok(&rest[..end])
    }

    fn sections(&self) -> Result<Vec<Section<'a>>, Unreadable> {
        let offset = number(self.new, 32)? as usize;
        if offset == 0 {
            return Ok(Vec::new());
        }
        if number(self.bytes, offset) != Ok(EXTENSION_MAGIC) {
            return Err(Unreadable("its extension area is not valid"));
        }
        let count = number(self.bytes, offset + 4)? as usize;
        if count > MAX_SECTIONS {
            return Err(Unreadable("it has too many extensions"));
        }
        let mut sections = (0..count)
            .map(|i| self.section(i, offset + 8 + i * SECTION_SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        sections.sort_by_key(|(offset, section)| (*offset, section.position));
        Ok(sections.into_iter().map(|(_, section)| section).collect())
    }

    fn section(&self, position: usize, at: usize) -> Result<(usize, Section<'a>), Unreadable> {
        let field = |i: usize| number(self.bytes, at + 4 * i);
        let (tag, flags) = (field(0)?, field(1)?);
        let (offset, size) = (field(2)? as usize, field(3)? as usize);
        let data = self.bytes.get(offset..).and_then(|rest| rest.get(..size));
        let data = data.ok_or(Unreadable("an extension lies outside the file"))?;
        let data =
            if tag == TAG_HWCAPS { Data::Names(self.names(data)?) } else { Data::Bytes(data) };
        let section = Section { tag, flags, data, position };
        Ok((offset, section))
    }

    fn names(&self, data: &[u8]) -> Result<Vec<&'a [u8]>, Unreadable> {
        data.chunks(4).map(|offset| self.string(number(offset, 0)?)).collect()
    }
}

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

    #[test]
    fn values_and_not_digits_are_compared() {
        assert_eq!(compare_names(b"a007", b"a7"), Ordering::Equal);
        assert_eq!(compare_names(b"a99999999999999999999", b"a8"), Ordering::Greater);
        assert_eq!(compare_names(b"a1", b"ax"), Ordering::Greater);
        assert_eq!(compare_names(b"a", b"a1"), Ordering::Less);
    }
}
