//! Lists an open folder.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// Bytes to ask the kernel for in each call that lists a folder.
const LISTING_BUFFER: usize = 4096;
/// Bytes of an entry besides its name: getdents64(2), `struct linux_dirent64`.
const ENTRY_SIZE: usize = 19;
/// Bytes of entries up to which a folder is listed: some 100,000 names. An image may have millions.
const MAX_LISTING: usize = 4 << 20;

/// The names in an open folder that are UTF-8, in no order, each with its type (where the
/// file system reports one). `None`: more bytes of entries than `limit`.
pub fn entries_in(
    folder: impl AsFd,
    limit: usize,
) -> rustix::io::Result<Option<Vec<(String, FileType)>>> {
    let mut buffer = [MaybeUninit::uninit(); LISTING_BUFFER];
    let mut entries = RawDir::new(folder, &mut buffer);
    let mut names = Vec::new();
    let mut size = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        size += ENTRY_SIZE + entry.file_name().to_bytes().len();
        if size > limit {
            return Ok(None);
        }
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if !matches!(name, "." | "..") {
            names.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(Some(names))
}

/// The names in an open folder that are UTF-8, in no order. Errors: `FBIG` for a folder with more
/// entries than any folder of a host or of an honest image.
pub fn names_in(folder: impl AsFd) -> rustix::io::Result<Vec<String>> {
    let entries = entries_in(folder, MAX_LISTING)?.ok_or(Errno::FBIG)?;
    Ok(entries.into_iter().map(|(name, _)| name).collect())
}

/// True for an open folder without entries. Only the first few entries are read.
pub fn is_empty(folder: impl AsFd) -> rustix::io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); LISTING_BUFFER];
    let mut entries = RawDir::new(folder, &mut buffer);
    while let Some(entry) = entries.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_what_the_kernel_hands_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("name"), "").unwrap();
        let size: usize = [".", "..", "name"].iter().map(|name| 19 + name.len()).sum();
        let names = |limit| {
            let opened = std::fs::File::open(dir.path()).unwrap();
            entries_in(opened, limit).unwrap().map(|all| all.len())
        };
        assert_eq!(names(size), Some(1));
        assert_eq!(names(size - 1), None);
    }
}
