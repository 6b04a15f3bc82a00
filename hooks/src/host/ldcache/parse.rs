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

const TRUNCATED: Unreadable = Unreadable("truncated");
const OLD: Unreadable = Unreadable("only the format from before glibc 2.2");

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
    text: std::cell::Cell<usize>,
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
