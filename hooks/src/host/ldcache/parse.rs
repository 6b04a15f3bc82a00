//! Reads a cache from an untrusted image.

use super::cache::{
    Cache, Data, Entry, Section, ENTRY_SIZE, EXTENSION_MAGIC, HEADER_SIZE, MAGIC, OLD_MAGIC,
    SECTION_SIZE, TAG_HWCAPS,
};

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
pub(super) const NATIVE_ENDIAN: u8 = if cfg!(target_endian = "little") { 2 } else { 3 };

/// Why a cache can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable(pub &'static str);

/// Reads a cache. Empty bytes are an empty cache.
pub fn parse(bytes: &[u8]) -> Result<Cache<'_>, Unreadable> {
    if bytes.is_empty() {
        return Ok(Cache::default());
    }
    let start = new_header(bytes)?;
    let file = File { bytes, new: &bytes[start..], text: std::cell::Cell::new(0) };
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
    let count = number(bytes, 12).ok_or(Unreadable("truncated"))? as usize;
    let end = count
        .checked_mul(OLD_ENTRY_SIZE)
        .and_then(|size| size.checked_add(OLD_HEADER_SIZE))
        .ok_or(Unreadable("truncated"))?;
    let start = end.next_multiple_of(8);
    let rest = bytes.get(start..).ok_or(Unreadable("only the format from before glibc 2.2"))?;
    if rest.starts_with(MAGIC) {
        Ok(start)
    } else {
        Err(Unreadable("only the format from before glibc 2.2"))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn wide_number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

struct File<'a> {
    bytes: &'a [u8],
    /// The bytes from the new header on. Offsets of strings count from here.
    new: &'a [u8],
    text: std::cell::Cell<usize>,
}

impl<'a> File<'a> {
    fn entries(&self) -> Result<Vec<Entry<'a>>, Unreadable> {
        let endian = self.new.get(ENDIAN_AT).ok_or(Unreadable("truncated"))? & ENDIAN_MASK;
        if endian != 0 && endian != NATIVE_ENDIAN {
            return Err(Unreadable("written for another byte order"));
        }
        let count = number(self.new, MAGIC.len()).ok_or(Unreadable("truncated"))? as usize;
        let size = count.checked_mul(ENTRY_SIZE).ok_or(Unreadable("truncated"))?;
        let table = self
            .new
            .get(HEADER_SIZE..)
            .and_then(|rest| rest.get(..size))
            .ok_or(Unreadable("truncated"))?;
        table.chunks_exact(ENTRY_SIZE).map(|entry| self.entry(entry)).collect()
    }

    fn entry(&self, entry: &[u8]) -> Result<Entry<'a>, Unreadable> {
        let at = |at| number(entry, at).ok_or(Unreadable("truncated"));
        Ok(Entry {
            flags: at(0)?,
            soname: self.string(at(4)?)?,
            path: self.string(at(8)?)?,
            os_version: at(12)?,
            hwcap: wide_number(entry, 16).ok_or(Unreadable("truncated"))?,
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
        let offset = number(self.new, 32).ok_or(Unreadable("truncated"))? as usize;
        if offset == 0 {
            return Ok(Vec::new());
        }
        if number(self.bytes, offset) != Some(EXTENSION_MAGIC) {
            return Err(Unreadable("its extension area is not valid"));
        }
        let count = number(self.bytes, offset + 4).ok_or(Unreadable("truncated"))? as usize;
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
        let field = |i: usize| number(self.bytes, at + 4 * i).ok_or(Unreadable("truncated"));
        let (tag, flags) = (field(0)?, field(1)?);
        let (offset, size) = (field(2)? as usize, field(3)? as usize);
        let data = self
            .bytes
            .get(offset..)
            .and_then(|rest| rest.get(..size))
            .ok_or(Unreadable("an extension lies outside the file"))?;
        let data =
            if tag == TAG_HWCAPS { Data::Names(self.names(data)?) } else { Data::Bytes(data) };
        let section = Section { tag, flags, data, position };
        Ok((offset, section))
    }

    fn names(&self, data: &[u8]) -> Result<Vec<&'a [u8]>, Unreadable> {
        data.chunks(4)
            .map(|offset| number(offset, 0).ok_or(Unreadable("truncated")))
            .map(|offset| self.string(offset?))
            .collect()
    }
}
