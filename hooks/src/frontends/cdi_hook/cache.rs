//! `update-ldcache`: adds the libraries in folders of an existing container to the library cache.

use rustc_hash::FxHashSet;

use crate::apply::{cannot_link, cannot_list};
use crate::host::ldcache::{self, drop_in, parse, MAX_CACHE};
use crate::host::libraries::{
    in_folder, in_root, is_library, soname_link, under_own_name, unversioned,
};
use crate::host::rootfs::{Root, Rootfs};
use crate::log::Note;
use crate::model::edits::paths::clean;
use crate::model::edits::paths::split;
use crate::model::edits::{Library, Present};

const CACHE: &str = "etc/ld.so.cache";
/// Folders that every loader searches.
const DEFAULT: [&str; 4] = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"];

/// Merges the libraries of the folders into the image's caches. If the image's own cache knows a
/// folder, only mounted libraries in it are new.
pub fn update(rootfs: &Rootfs, present: &Present, folders: &[String]) -> Vec<Note> {
    let known = known_folders(rootfs);
    let mut found: Vec<Library> = Vec::new();
    let mut notes = Vec::new();
    let mut add = |root: &Root, folder: &str| match in_folder(root, folder) {
        Ok(libraries) => found.extend(libraries),
        Err(error) => notes.push(cannot_list(folder, error)),
    };
    if let Some(compat) = drop_in::compat(&rootfs.files) {
        add(&rootfs.files, &compat);
    }
    let mut mounted = Vec::new();
    for folder in folders {
        let folder = clean(folder);
        let targets = present.mounts.iter().map(|mount| clean(&mount.destination));
        let in_it = targets.filter(|path| {
            let parent = split(path).map(|(parent, _)| parent.trim_end_matches('/'));
            parent == Some(&folder) && is_library(path)
        });
        mounted.extend(in_it.filter_map(|path| in_root(&rootfs.mounted, &path)));
        if !known.contains(&*folder) {
            add(&rootfs.mounted, &folder);
        }
    }
    // Links to a library are looked for only after its soname link is there.
    notes.extend(make_links(rootfs, &mounted));
    let mut named: Vec<Library> = mounted.iter().filter_map(under_own_name).collect();
    named.extend(mounted.iter().filter_map(|library| unversioned_link(rootfs, library)));
    let mut seen: FxHashSet<(String, bool)> =
        found.iter().map(|l| (l.path.clone(), l.is_link)).collect();
    found.extend(
        mounted.into_iter().chain(named).filter(|l| seen.insert((l.path.clone(), l.is_link))),
    );
    notes.extend(ldcache::update(&rootfs.files, &found));
    notes
}

/// Makes the soname links that `ldconfig` makes. Programs and musl's loader look for a library
/// under its soname.
fn make_links(rootfs: &Rootfs, libraries: &[Library]) -> Vec<Note> {
    let make = |library: &Library| {
        let link = soname_link(library)?;
        if libraries.iter().any(|other| other.path == link.path) {
            return None;
        }
        let (root, within) = rootfs.writer(&link.path);
        let error = root.make_link(within, &link.target).err()?;
        Some(cannot_link(&link.path, error))
    };
    libraries.iter().filter_map(make).collect()
}

/// The link `libcuda.so` to a library of the soname `libcuda.so.1`, if the folder has it.
fn unversioned_link(rootfs: &Rootfs, library: &Library) -> Option<Library> {
    let (folder, _) = split(&library.path)?;
    let path = format!("{folder}{}", unversioned(&library.soname)?);
    let link = in_root(&rootfs.mounted, &path)?;
    (link.is_link && link.soname == library.soname).then_some(link)
}

fn known_folders(rootfs: &Rootfs) -> FxHashSet<String> {
    let mut known: FxHashSet<String> = DEFAULT.iter().map(|&f| f.to_owned()).collect();
    let Ok((bytes, _)) = rootfs.files.read(CACHE, MAX_CACHE) else {
        return known;
    };
    let cache = parse(&bytes).unwrap_or_default();
    for entry in &cache.entries {
        let folder = std::str::from_utf8(entry.path).ok().and_then(split);
        if let Some((folder, _)) = folder {
            let folder = folder.trim_end_matches('/');
            if !known.contains(folder) {
                known.insert(folder.to_owned());
            }
        }
    }
    known
}
