//! Lets a container's loader find the libraries that are mounted into it.
//!
//! [`update`] merges entries into glibc's cache, byte for byte as `ldconfig` would write
//! them. It names their folders in a drop-in of `ld.so.conf.d`, so that a later `ldconfig`
//! keeps them, and extends musl's path file. It runs no program of the host or the image,
//! and opens a file of the image only if it is known to be a regular file.

pub mod drop_in;
mod format;
mod musl;

use std::cmp::Ordering;
use std::os::fd::OwnedFd;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::host::libraries::has_unversioned_name;
use crate::host::publish::publish;
use crate::host::rootfs::Root;
use crate::log::level::Level;
use crate::log::Note;
use crate::model::edits::paths::split;
use crate::model::edits::Library;

use format::compare_entries;
pub use format::{compare_names, parse, write, Cache, Entry, Unreadable};

/// Largest cache that is read; a full desktop's is a twentieth of this.
pub const MAX_CACHE: u64 = 4 << 20;
/// Always the same, so that the next start finds what a killed start left.
const TEMPORARY: &str = ".oci-decorator.tmp";
const MAX_STUBS: u32 = 1024;
const CACHE: &str = "etc/ld.so.cache";
/// Loaders of glibc. An image with none of them and no cache doesn't use glibc.
const GLIBC_LOADERS: [&str; 8] = [
    "lib64/ld-linux-x86-64.so.2",
    "lib/ld-linux.so.2",
    "lib/ld-linux-aarch64.so.1",
    "lib/ld-linux-armhf.so.3",
    "lib64/ld64.so.2",
    "lib/ld64.so.1",
    "lib/ld-linux-riscv64-lp64d.so.1",
    "lib64/ld-linux-loongarch-lp64d.so.1",
];

/// Updates the caches of a container's root. Never fails: an update that the image makes
/// impossible becomes a note, and the container starts without it.
pub fn update(root: &Root, libraries: &[Library]) -> Vec<Note> {
    let mut notes = Vec::new();
    if libraries.is_empty() {
        return notes;
    }
    let additions = additions(libraries);
    let folders = folders(&additions);
    let mut warn = |what: &str, error: &dyn std::fmt::Display| {
        notes.push(Note::new(Level::Warning, format!("{what}: {error}")));
    };
    if let Err(error) = glibc(root, &additions, &folders, &mut warn) {
        warn("can't update the image's library cache", &error);
    }
    if let Err(error) = musl::update(root, &additions, &folders) {
        warn("can't update musl's path file", &error);
    }
    notes
}

/// Puts a file into a folder of the image.
fn put(folder: &OwnedFd, name: &str, bytes: &[u8], like: &Stat) -> rustix::io::Result<()> {
    let mut like = *like;
    // Only the bits of a data file, whatever the image's file had.
    like.st_mode &= 0o644;
    publish(folder, TEMPORARY, name, bytes, &like)
}

/// Folders of the additions, in the order of their first library.
fn folders(additions: &[Addition]) -> Vec<&str> {
    let mut seen = FxHashSet::default();
    additions
        .iter()
        .filter_map(|a| split(&a.path))
        .map(|(folder, _)| folder.trim_end_matches('/'))
        .filter(|folder| seen.insert(*folder))
        .collect()
}

/// Merges into glibc's cache. A problem that the cache can do without is a warning.
fn glibc(
    root: &Root,
    additions: &[Addition],
    folders: &[&str],
    warn: &mut impl FnMut(&str, &dyn std::fmt::Display),
) -> rustix::io::Result<()> {
    let (old, stat) = match root.read(CACHE, MAX_CACHE) {
        Ok((bytes, stat)) => (bytes, Some(stat)),
        Err(Errno::NOENT) if has_loader(root) => (Vec::new(), None),
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut cache = parse(&old).unwrap_or_else(|Unreadable(why)| {
        // The loader still finds the image's libraries in its default folders, as it does
        // with a cache that it can't read.
        warn("the image's library cache can't be read, and was replaced by one with the driver's libraries only", &why);
        Cache::default()
    });
    let earlier = drop_in::read(root);
    drop_stubs(root, &mut cache, additions, &earlier);
    let unlisted = unlisted(&cache, additions, folders);
    if let Err(error) = drop_in::update(root, &earlier, &unlisted) {
        warn("a later ldconfig in the container won't find the driver's folders", &error);
    }
    let new = write(&merge(cache, additions)).ok_or(Errno::FBIG)?;
    if new != old {
        let etc = root.make_folder("etc")?;
        put(&etc, "ld.so.cache", &new, &owner(root, stat)?)?;
    }
    Ok(())
}

/// Removes entries of an earlier driver, whose files are gone. In place of a mounted file,
/// runtimes leave an empty file in the image, which the loader would take for the library
/// and fail. Only folders that an earlier start has listed are checked.
fn drop_stubs(root: &Root, cache: &mut Cache, additions: &[Addition], earlier: &str) {
    // The image may have written the list, of any length.
    let mut listed: Vec<&[u8]> = drop_in::folders(earlier).map(str::as_bytes).collect();
    if listed.is_empty() {
        return;
    }
    listed.sort_unstable();
    let ours = paths(additions);
    // A driver has some dozens of libraries; a hostile cache may claim any number.
    let mut looks_left = MAX_STUBS;
    cache.entries.retain(|entry| {
        let suspect = folder_of(entry.path).is_some_and(|f| listed.binary_search(&f).is_ok())
            && !ours.contains(entry.path)
            && looks_left > 0;
        if !suspect {
            return true;
        }
        looks_left -= 1;
        !is_stub(root, entry.path)
    });
}

fn is_stub(root: &Root, path: &[u8]) -> bool {
    let Ok(path) = std::str::from_utf8(path) else {
        return false;
    };
    let stat = root.open_in(path, OFlags::PATH).and_then(rustix::fs::fstat);
    match stat {
        Ok(stat) => {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0
        }
        Err(error) => error == Errno::NOENT,
    }
}

fn has_loader(root: &Root) -> bool {
    GLIBC_LOADERS.iter().any(|path| root.open_in(path, OFlags::PATH).is_ok())
}

/// The file's own owner and mode, or the folder's owner for a new file.
fn owner(root: &Root, stat: Option<Stat>) -> rustix::io::Result<Stat> {
    stat.map_or_else(
        || {
            let mut stat = rustix::fs::fstat(root.open_in("etc", OFlags::PATH)?)?;
            stat.st_mode = 0o644;
            Ok(stat)
        },
        Ok,
    )
}

/// Folders that the image's own `ldconfig` doesn't search: none of the cache's other
/// entries lies there. Naming a folder that it does search would change the order in
/// which it finds the image's libraries.
fn unlisted<'a>(cache: &Cache, additions: &[Addition], folders: &[&'a str]) -> Vec<&'a str> {
    let ours = paths(additions);
    // The sets hold only our own folders: an image's author can't force collisions.
    let mut left: FxHashSet<&[u8]> = folders.iter().map(|folder| folder.as_bytes()).collect();
    for entry in &cache.entries {
        if let Some(folder) = folder_of(entry.path).filter(|folder| left.contains(folder)) {
            if !ours.contains(entry.path) {
                left.remove(folder);
            }
        }
    }
    let folders = folders.iter().copied();
    folders.filter(|f| left.contains(f.as_bytes()) && !matches!(*f, "/lib" | "/usr/lib")).collect()
}

fn paths(additions: &[Addition]) -> FxHashSet<&[u8]> {
    additions.iter().map(|a| a.path.as_bytes()).collect()
}

/// The folder of a path, without slashes at its end. `None`: it has no folder.
fn folder_of(path: &[u8]) -> Option<&[u8]> {
    let mut end = path.iter().rposition(|&byte| byte == b'/')?;
    while end > 0 && path[end - 1] == b'/' {
        end -= 1;
    }
    Some(&path[..end])
}

/// A library to be found: this name, with these flags, at this path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addition {
    pub soname: String,
    pub path: String,
    pub flags: u32,
}

impl Addition {
    fn entry(&self) -> Entry<'_> {
        Entry {
            flags: self.flags,
            soname: self.soname.as_bytes(),
            path: self.path.as_bytes(),
            os_version: 0,
            hwcap: 0,
        }
    }
}

/// What `ldconfig` would record for these libraries (glibc `elf/ldconfig.c`,
/// `search_dir`): each soname once a folder, and unversioned links by their name.
/// If there is no file at the soname's own path, the entry names the library file itself.
pub fn additions(libraries: &[Library]) -> Vec<Addition> {
    let paths: FxHashSet<&str> = libraries.iter().map(|l| l.path.as_str()).collect();
    let mut places: FxHashMap<(&str, &str, u32), usize> = FxHashMap::default();
    let mut additions: Vec<Addition> = Vec::new();
    for library in libraries {
        let Some((folder, name)) = split(&library.path) else {
            continue;
        };
        let is_development_link = library.is_link && has_unversioned_name(library);
        let soname = if is_development_link { name } else { library.soname.as_str() };
        let named = [folder, soname].concat();
        let path = if paths.contains(named.as_str()) { named } else { library.path.clone() };
        let addition = Addition { soname: soname.to_owned(), path, flags: library.flags };
        match places.get(&(folder, soname, library.flags)) {
            Some(&place) if is_newer(&addition, &additions[place]) => additions[place] = addition,
            Some(_) => {}
            None => {
                places.insert((folder, soname, library.flags), additions.len());
                additions.push(addition);
            }
        }
    }
    additions
}

fn is_newer(one: &Addition, other: &Addition) -> bool {
    compare_names(one.path.as_bytes(), other.path.as_bytes()).is_gt()
}

/// The cache with the additions, each before the entries of its name and flags
/// that don't belong to a glibc-hwcaps folder. An entry that exists already is moved,
/// not doubled, so merging twice has the same result as merging once.
pub fn merge<'a>(cache: Cache<'a>, additions: &'a [Addition]) -> Cache<'a> {
    let identity = |e: &Entry<'a>| (e.path, e.soname, e.flags);
    let mut known = FxHashSet::with_capacity_and_hasher(additions.len(), FxBuildHasher);
    let mut ours: Vec<Entry> =
        additions.iter().map(Addition::entry).filter(|e| known.insert(identity(e))).collect();
    ours.sort_by(compare_entries);
    let mut entries = Vec::with_capacity(cache.entries.len() + ours.len());
    let kept = cache
        .entries
        .into_iter()
        .filter(|e| e.hwcap != 0 || e.os_version != 0 || !known.contains(&identity(e)));
    let mut ours = ours.into_iter().peekable();
    for entry in kept {
        while let Some(own) = ours.next_if(|own| compare_entries(own, &entry) != Ordering::Greater)
        {
            entries.push(own);
        }
        entries.push(entry);
    }
    entries.extend(ours);
    Cache { entries, ..cache }
}

#[cfg(test)]
mod tests;
