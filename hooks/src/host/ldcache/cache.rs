//! glibc's `/etc/ld.so.cache` in memory.
//!
//! Format: glibc `sysdeps/generic/dl-cache.h`, `elf/cache.c` and `elf/stringtable.c`.
//! Only the new format (`glibc-ld.so.cache1.1`) is written; every glibc since
//! 2.2 reads it, and files that open with the older part are read through it.

use std::cmp::Ordering;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_descending_order() {
        let sorted = [
            "libz.so.10",
            "libz.so.9",
            "libz.so.1",
            "libz.so",
            "libnvidia-ml.so.1",
            "libc.so.6",
            "ld-linux.so.2",
        ];
        for pair in sorted.windows(2) {
            let order = compare_names(pair[0].as_bytes(), pair[1].as_bytes());
            assert_eq!(order, Ordering::Greater, "{pair:?}");
        }
    }

    #[test]
    fn values_and_not_digits_are_compared() {
        assert_eq!(compare_names(b"a007", b"a7"), Ordering::Equal);
        assert_eq!(compare_names(b"a99999999999999999999", b"a8"), Ordering::Greater);
        assert_eq!(compare_names(b"a1", b"ax"), Ordering::Greater);
        assert_eq!(compare_names(b"a", b"a1"), Ordering::Less);
    }
}
