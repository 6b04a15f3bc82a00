//! glibc's `/etc/ld.so.cache` in memory.
//!
//! Format: glibc `sysdeps/generic/dl-cache.h`, `elf/cache.c` and `elf/stringtable.c`.
//! Only the new format (`glibc-ld.so.cache1.1`) is written; every glibc since
//! 2.2 reads it, and files that open with the older part are read through it.

pub(super) const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
pub(super) const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
pub(super) const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
pub(super) const HEADER_SIZE: usize = 48;
pub(super) const ENTRY_SIZE: usize = 24;
pub(super) const SECTION_SIZE: usize = 16;
/// Section that lists the names of glibc-hwcaps folders.
pub(super) const TAG_HWCAPS: u32 = 1;
/// An entry whose `hwcap` has these upper bits indexes that list.
pub(super) const HWCAP_EXTENSION: u64 = 1 << 62;

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
    pub(super) fn is_extension(&self) -> bool {
        self.hwcap >> 32 == HWCAP_EXTENSION >> 32
    }
}

/// A part of the extension area, in the order in which its data lie in the file.
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
