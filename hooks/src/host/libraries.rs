//! The libraries in folders of a container, with what the loader's cache records about each.
//!
//! CDI and NVIDIA's interfaces name folders, and the cache has entries for files. Before a
//! container exists, the files are found through the sources of the mounts that will lie in those
//! folders. Once it exists, they are found in the container's own root.

use std::fs::File;

use rustc_hash::FxHashSet;
use rustix::fs::OFlags;

use crate::error::Result;
use crate::host::rootfs::{names_in, open_regular, Root};
use crate::host::{elf, Host};
use crate::model::edits::paths::split;
use crate::model::edits::{lies_in, Edits, Library, Link};

/// More files than any driver has in one folder.
const MAX_FILES: usize = 4096;
/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// True for the names that `ldconfig` looks at.
pub fn is_library(path: &str) -> bool {
    split(path).is_some_and(|(_, name)| {
        (name.starts_with("lib") || name.starts_with("ld-")) && name.contains(".so")
    })
}

/// Turns `library_folders` into libraries: those that mounts of the edits put there. Each gets the
/// soname link that `ldconfig` would make. The host is opened only if there are such folders.
pub fn find(edits: &mut Edits, host: impl FnOnce() -> Result<Host>) -> Result<()> {
    if edits.library_folders.is_empty() {
        return Ok(());
    }
    let host = host()?;
    let folders = std::mem::take(&mut edits.library_folders);
    let files = files_in(edits, &host, &folders);
    let known: FxHashSet<String> = edits.libraries.iter().map(|l| l.path.clone()).collect();
    let mut found: Vec<Library> = files
        .iter()
        .filter(|(_, path)| !known.contains(path))
        .filter_map(|(source, path)| library_at(&host.root, host.within(source), path))
        .collect();
    let taken = |path: &String| {
        files.iter().any(|(_, p)| p == path) || edits.links.iter().any(|l| l.path == *path)
    };
    let missing: Vec<Link> =
        found.iter().filter_map(soname_link).filter(|l| !taken(&l.path)).collect();
    let mut named = linked(&edits.links, &missing, &folders, &found);
    named.extend(found.iter().filter_map(under_own_name));
    found.extend(named);
    for link in missing {
        if !edits.links.iter().any(|l| l.path == link.path) {
            edits.links.push(link);
        }
    }
    edits.libraries.extend(found);
    Ok(())
}

/// The files that mounts of the edits put into the folders, with their sources and paths.
fn files_in(edits: &Edits, host: &Host, folders: &[String]) -> Vec<(String, String)> {
    let own = edits.mounts.iter().map(|m| (&m.source, &m.target));
    let binds = edits.described.iter().filter(|m| matches!(m.kind.as_str(), "" | "bind"));
    let all = own.chain(binds.map(|m| (&m.source, &m.target)));
    let mut files: Vec<(String, String)> = Vec::new();
    for (source, target) in all {
        for folder in folders {
            in_mount(host, folder, source, target, &mut files);
        }
    }
    files
}

/// Adds the files that a mount puts into a folder: the mount itself, or the files of the host's
/// folder.
fn in_mount(
    host: &Host,
    folder: &str,
    source: &str,
    target: &str,
    files: &mut Vec<(String, String)>,
) {
    let parent = split(target).map(|(parent, _)| parent.trim_end_matches('/'));
    let mut add = |source: String, path: String| {
        if is_library(&path) && !files.iter().any(|(_, there)| *there == path) {
            files.push((source, path));
        }
    };
    if parent == Some(folder) {
        add(source.to_owned(), target.to_owned());
    } else if lies_in(folder, target) {
        let on_host = format!("{source}{}", &folder[target.len()..]);
        let names = host.names_in(host.within(&on_host));
        let names = names.unwrap_or_default().into_iter().take(MAX_FILES);
        for name in names {
            add(format!("{on_host}/{name}"), format!("{folder}/{name}"));
        }
    }
}

/// Reads a file in a container's root. `None`: it is not a library.
pub fn in_root(root: &Root, path: &str) -> Option<Library> {
    library_at(root, path, path)
}

/// Reads a file of a root that has the given path in the container. Links are followed within the
/// root, and only regular files are opened, because opening a device can have an effect.
fn library_at(root: &Root, file: &str, path: &str) -> Option<Library> {
    let (fd, _) = open_regular(root.open_in(file, OFlags::PATH).ok()?).ok()?;
    let itself = OFlags::PATH | OFlags::NOFOLLOW;
    let stat = rustix::fs::fstat(root.open_in(file, itself).ok()?).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    library(&File::from(fd), path, kind == rustix::fs::FileType::Symlink)
}

/// The libraries in a folder of a container's root, sorted by name. What is no folder has none.
/// Errors: the folder can't be listed, for example because it has too many files.
pub fn in_folder(root: &Root, folder: &str) -> rustix::io::Result<Vec<Library>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(opened) = root.open_in(folder, flags) else {
        return Ok(Vec::new());
    };
    let mut names = names_in(opened)?;
    names.retain(|name| is_library(name));
    let paths = names.iter().take(MAX_FILES);
    let paths = paths.map(|name| format!("{folder}/{name}"));
    Ok(paths.filter_map(|path| in_root(root, &path)).collect())
}

fn library(file: &File, path: &str, is_link: bool) -> Option<Library> {
    let elf = elf::read(file)?;
    let (_, name) = split(path)?;
    Some(Library {
        path: path.to_owned(),
        soname: elf.soname.unwrap_or_else(|| name.to_owned()),
        flags: elf.flags,
        is_link,
    })
}

/// The soname link, through which the loader and programs that use the path find the file.
pub fn soname_link(library: &Library) -> Option<Link> {
    let (folder, name) = split(&library.path)?;
    (library.soname != name && !library.is_link)
        .then(|| Link { path: format!("{folder}{}", library.soname), target: name.to_owned() })
}

/// A library that was mounted under its name without a version, as the link that it is in the
/// driver: a mount of a link is a file. `None`: its soname is its only name.
pub fn under_own_name(library: &Library) -> Option<Library> {
    (!library.is_link && has_unversioned_name(library))
        .then(|| Library { is_link: true, ..library.clone() })
}

/// True for `libcuda.so` beside the soname `libcuda.so.1`. Programs may look for either.
pub fn has_unversioned_name(library: &Library) -> bool {
    split(&library.path).is_some_and(|(_, name)| {
        unversioned(&library.soname) == Some(name) && name != library.soname
    })
}

/// `libcuda.so` for the soname `libcuda.so.1`.
pub fn unversioned(soname: &str) -> Option<&str> {
    soname.find(".so").map(|at| &soname[..at + ".so".len()])
}

/// The links that lead to these libraries, directly or through others of `links` and `more`. The
/// loader finds each under its own name.
fn linked(
    links: &[Link],
    more: &[Link],
    folders: &[String],
    libraries: &[Library],
) -> Vec<Library> {
    let next =
        |path: &str| links.iter().chain(more).find(|link| link.path == path).and_then(target);
    let one = |link: &Link| {
        let (folder, _) = split(&link.path)?;
        let is_listed = folders.iter().any(|f| f == folder.trim_end_matches('/'));
        if !is_listed || !is_library(&link.path) {
            return None;
        }
        let mut chain = std::iter::successors(target(link), |path| next(path)).take(MAX_LINKS);
        let to = chain.find_map(|path| libraries.iter().find(|l| l.path == path))?;
        Some(Library { path: link.path.clone(), is_link: true, ..to.clone() })
    };
    links.iter().filter_map(one).collect()
}

/// The path to which a link leads in the container. `None`: it has no folder.
fn target(link: &Link) -> Option<String> {
    if link.target.starts_with('/') {
        return Some(link.target.clone());
    }
    let (folder, _) = split(&link.path)?;
    Some(format!("{folder}{}", link.target))
}
