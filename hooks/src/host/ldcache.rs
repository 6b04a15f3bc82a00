//! Lets a container's loader find the libraries that are mounted into it.
//!
//! [`update`] merges entries into glibc's cache, byte for byte as `ldconfig` would write
//! them. It names their folders in a drop-in of `ld.so.conf.d`, so that a later `ldconfig`
//! keeps them, and extends musl's path file. It runs no program of the host or the image,
//! and opens a file of the image only if it is known to be a regular file.

mod format;

use std::cmp::Ordering;
use std::os::fd::OwnedFd;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::host::files::publish;
use crate::host::ldcache::format::compare_entries;
use crate::host::libraries::has_unversioned_name;
use crate::host::rootfs::Root;
use crate::log::{Level, Note};
use crate::model::edits::{glob_matches, split, Library};

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
    if let Err(error) = update_musl(root, &additions, &folders) {
        warn("can't update musl's path file", &error);
    }
    notes
}

/// Puts a file into a folder of the image, with the owner and mode of the old one. A new one has the
/// folder's owner.
fn put(folder: &OwnedFd, name: &str, bytes: &[u8], old: Option<Stat>) -> rustix::io::Result<()> {
    let mut like = old.map_or_else(|| rustix::fs::fstat(folder), Ok)?;
    // Only the bits of a data file, whatever the image's file had.
    like.st_mode = old.map_or(0o644, |old| old.st_mode & 0o644);
    publish(folder, TEMPORARY, name, bytes, &like, |_| Ok(()))
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
    let earlier = drop_in(root, DROP_IN);
    drop_stubs(root, &mut cache, additions, &earlier);
    let unlisted = unlisted(&cache, additions, folders);
    if let Err(error) = update_drop_in(root, &earlier, &unlisted) {
        warn("a later ldconfig in the container won't find the driver's folders", &error);
    }
    let new = write(&merge(cache, additions)).ok_or(Errno::FBIG)?;
    if new != old {
        let etc = root.make_folder("etc")?;
        put(&etc, "ld.so.cache", &new, stat)?;
    }
    Ok(())
}

/// Removes entries of an earlier driver, whose files are gone. In place of a mounted file,
/// runtimes leave an empty file in the image, which the loader would take for the library
/// and fail. Only folders that an earlier start has listed are checked.
fn drop_stubs(root: &Root, cache: &mut Cache, additions: &[Addition], earlier: &str) {
    // The image may have written the list, of any length.
    let mut listed: Vec<&[u8]> = listed_folders(earlier).map(str::as_bytes).collect();
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

const CONF: &str = "etc/ld.so.conf";
const DROP_INS: &str = "etc/ld.so.conf.d";
/// Its name sorts first, so that it takes precedence over copies in the image.
const DROP_IN: &str = "00-oci-decorator.conf";
/// Its name sorts before the other, so that its folder comes before the driver's folders.
const COMPAT_DROP_IN: &str = "00-oci-decorator-compat.conf";
const HEADER: &str =
    "# Written by oci-decorator: folders of the drivers that this container was given.\n";
const MAX_CONF: u64 = 1 << 16;

/// A drop-in of an earlier start. Empty: there is none.
fn drop_in(root: &Root, name: &str) -> String {
    let read = root.read(&format!("{DROP_INS}/{name}"), MAX_CONF);
    read.map_or(String::new(), |(bytes, _)| String::from_utf8_lossy(&bytes).into_owned())
}

/// The folder that [`put_compat`] wrote for this container.
pub fn compat_folder(root: &Root) -> Option<String> {
    listed_folders(&drop_in(root, COMPAT_DROP_IN)).next().map(str::to_owned)
}

/// Records which folder of the image comes before the driver's, or that none does.
pub fn put_compat(root: &Root, compat: Option<&str>) -> rustix::io::Result<()> {
    if compat == compat_folder(root).as_deref() {
        return Ok(());
    }
    let folder = root.make_folder(DROP_INS)?;
    match compat {
        Some(path) => put(&folder, COMPAT_DROP_IN, format!("{HEADER}{path}\n").as_bytes(), None),
        None => rustix::fs::unlinkat(&folder, COMPAT_DROP_IN, rustix::fs::AtFlags::empty()),
    }
}

pub fn listed_folders(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| line.starts_with('/'))
}

/// Writes the drop-in where `ld.so.conf` includes it. Folders that the `old` one
/// lists stay in it, as the cache by itself does not say that they are ours.
pub fn update_drop_in(root: &Root, old: &str, folders: &[&str]) -> rustix::io::Result<()> {
    let new = content(old, folders);
    if new == old || new == HEADER || !included(root)? {
        return Ok(());
    }
    put(&root.make_folder(DROP_INS)?, DROP_IN, new.as_bytes(), None)
}

fn content(old: &str, new: &[&str]) -> String {
    let mut listed = FxHashSet::default();
    let mut text = HEADER.to_owned();
    for folder in new.iter().copied().chain(listed_folders(old)) {
        if listed.insert(folder) {
            text.push_str(folder);
            text.push('\n');
        }
    }
    text
}

fn included(root: &Root) -> rustix::io::Result<bool> {
    match root.read(CONF, MAX_CONF) {
        Ok((bytes, _)) => {
            Ok(includes(&String::from_utf8_lossy(&bytes), &format!("/{DROP_INS}/{DROP_IN}")))
        }
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// True when a line `include PATTERN …` covers the path (ldconfig(8)).
fn includes(conf: &str, path: &str) -> bool {
    conf.lines().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        words.next() == Some("include")
            && words.any(|pattern| {
                if pattern.starts_with('/') {
                    glob_matches(pattern, path)
                } else {
                    glob_matches(&format!("/etc/{pattern}"), path)
                }
            })
    })
}

// musl's loader has no cache but a list of folders, `/etc/ld-musl-ARCH.path`
// (musl `ldso/dynlink.c`: separated by newlines or colons).

/// musl's names for the architectures that drivers exist for, by glibc's cache flags.
const ARCHITECTURES: [(u32, &str); 6] = [
    (0x0303, "x86_64"),
    (0x0a03, "aarch64"),
    (0x0003, "i386"),
    (0x0903, "armhf"),
    (0x0503, "powerpc64le"),
    (0x1003, "riscv64"),
];
/// The folders that the loader searches if there is no file.
const MUSL_FOLDERS: &str = "/lib:/usr/local/lib:/usr/lib";
const MAX_MUSL: u64 = 1 << 16;

/// Adds the folders at the end of the list of every musl loader in the root for which
/// there is a library.
pub fn update_musl(
    root: &Root,
    additions: &[Addition],
    folders: &[&str],
) -> rustix::io::Result<()> {
    let served = |flags| additions.iter().any(|a| a.flags == flags);
    for (_, architecture) in ARCHITECTURES.iter().filter(|(flags, _)| served(*flags)) {
        let loader = format!("lib/ld-musl-{architecture}.so.1");
        if root.open_in(&loader, OFlags::PATH).is_ok() {
            extend(root, &format!("ld-musl-{architecture}.path"), folders)?;
        }
    }
    Ok(())
}

fn extend(root: &Root, name: &str, folders: &[&str]) -> rustix::io::Result<()> {
    let (old, stat) = match root.read(&format!("etc/{name}"), MAX_MUSL) {
        Ok((bytes, stat)) => (String::from_utf8(bytes).map_err(|_| Errno::ILSEQ)?, Some(stat)),
        Err(Errno::NOENT) => (MUSL_FOLDERS.to_owned(), None),
        Err(error) => return Err(error),
    };
    let mut listed: Vec<&str> =
        old.split(['\n', ':']).map(str::trim).filter(|f| !f.is_empty()).collect();
    let before = listed.len();
    for folder in folders {
        if !listed.contains(folder) {
            listed.push(folder);
        }
    }
    if listed.len() == before {
        return Ok(());
    }
    put(&root.make_folder("etc")?, name, (listed.join("\n") + "\n").as_bytes(), stat)
}

#[cfg(test)]
mod tests;
