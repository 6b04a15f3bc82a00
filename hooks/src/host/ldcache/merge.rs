//! Adds libraries to a cache: which entries they need, and where in the cache these stand, so that
//! the loader finds them before all others.

use std::cmp::Ordering;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::cache::compare_entries;
use super::{compare_names, Cache, Entry};
use crate::model::edits::paths::split;
use crate::model::edits::Library;

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
        let soname =
            if is_development_link(library, name) { name } else { library.soname.as_str() };
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

/// `libcuda.so` beside the soname `libcuda.so.1`.
fn is_development_link(library: &Library, name: &str) -> bool {
    let unversioned = name.strip_suffix(".so").is_some();
    library.is_link && unversioned && library.soname.starts_with(name)
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
