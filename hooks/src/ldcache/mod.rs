//! glibc's `/etc/ld.so.cache`: reading one, adding libraries, writing it back
//! byte for byte as `ldconfig` would have written it.
//!
//! Format: glibc `sysdeps/generic/dl-cache.h`, `elf/cache.c` and `elf/stringtable.c`.
//! Only the new format (`glibc-ld.so.cache1.1`) is written; every glibc since
//! 2.2 reads it, and files that open with the older part are read through it.

mod merge;
mod order;
mod parse;
mod strings;
mod write;

pub use merge::{merge, Addition};
pub use order::compare_names;
pub use parse::{parse, Unreadable};
pub use write::write;

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
    sections: Vec<Section<'a>>,
}

/// One library. The names are without their terminating NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub flags: u32,
    pub soname: &'a [u8],
    pub path: &'a [u8],
    os_version: u32,
    hwcap: u64,
}

impl Entry<'_> {
    fn is_extension(&self) -> bool {
        self.hwcap >> 32 == HWCAP_EXTENSION >> 32
    }
}

/// A part of the extension area, in the order in which its data lie in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Section<'a> {
    tag: u32,
    flags: u32,
    data: Data<'a>,
    /// Place in the table of sections, which is ordered differently.
    position: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Data<'a> {
    Bytes(&'a [u8]),
    /// Offsets of strings, which move when the string table changes.
    Names(Vec<&'a [u8]>),
}
