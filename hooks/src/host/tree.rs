//! Looks up the files of one vendor on the host.
//!
//! Most paths name a file, or a link to another name, in a folder whose path has no links. Such a
//! folder is opened once for all its files. A file then costs one system call. Every other path takes
//! longer: openat2 opens it, and /proc tells the result's path.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::host::rootfs::{names_in, open_regular, Root};
use crate::host::Host;
use crate::model::edits::paths::split;
use crate::model::edits::Mount;

/// Links within one folder that are followed without openat2.
const MAX_LINKS: u32 = 8;
/// Longer than any name: limits.h, `NAME_MAX`.
const MAX_NAME: usize = 256;
/// With fewer files, a mount of the whole folder saves less than it costs.
const MIN_FILES: usize = 8;

/// The file tree of one vendor.
#[derive(Debug)]
pub struct Tree<'a> {
    host: &'a Host,
    sub: Option<Root>,
    /// Its path, without links below the host's root, which is as the caller wrote it.
    written: String,
    /// Folders that are open already, by their paths in the inventory.
    folders: RefCell<Vec<(String, Rc<OwnedFd>)>>,
}

/// A file of the host.
#[derive(Debug)]
pub struct TreeEntry {
    pub kind: FileType,
    /// The path to mount it from: without links, and beginning with the host's root as the caller
    /// wrote it. `None`: not valid UTF-8.
    pub source: Option<String>,
    /// The path itself is a symbolic link.
    pub is_link: bool,
    place: Handle,
}

#[derive(Debug)]
enum Handle {
    /// In this folder; the last part of the source is its name.
    Named(Rc<OwnedFd>),
    /// By a descriptor with `O_PATH`.
    Open(OwnedFd),
}

impl TreeEntry {
    /// Opens it for reading. Errors: `INVAL` if it is not a regular file.
    pub fn open(&self) -> rustix::io::Result<OwnedFd> {
        match &self.place {
            Handle::Open(fd) => open_regular(fd).map(|(fd, _)| fd),
            Handle::Named(_) if self.kind != FileType::RegularFile => Err(Errno::INVAL),
            Handle::Named(folder) => {
                let (_, name) = self.source.as_deref().and_then(split).ok_or(Errno::NOENT)?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
                rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())
            }
        }
    }
}

impl<'a> Tree<'a> {
    pub(super) fn new(host: &'a Host, sub: Option<Root>, written: String) -> Self {
        Self { host, sub, written, folders: RefCell::default() }
    }

    /// Looks a path up without opening the file.
    pub fn find(&self, path: &str) -> rustix::io::Result<TreeEntry> {
        match self.find_in_folder(path) {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(Errno::LOOP) => self.find_through_links(path),
            Err(error) => Err(error),
        }
    }

    /// The source path of a folder of the tree, if its path has no link.
    pub fn source_of(&self, folder: &str) -> String {
        format!("{}{folder}", self.written)
    }

    /// The path in the inventory that a source path has.
    pub fn path_of<'p>(&self, source: &'p str) -> Option<&'p str> {
        source.strip_prefix(&self.written)
    }

    /// True if `known` is true for every name in a folder. Errors: `LOOP` if its path has a link.
    pub fn holds_only(
        &self,
        folder: &str,
        known: impl Fn(&str) -> bool,
    ) -> rustix::io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let names = names_in(self.root().open_plain(folder, flags)?)?;
        Ok(names.iter().all(|name| known(name)))
    }

    /// Looks a path up in its open folder. `None`, or `LOOP`: the path needs openat2.
    fn find_in_folder(&self, path: &str) -> rustix::io::Result<Option<TreeEntry>> {
        let Some((folder, name)) = split(path) else {
            return Ok(None);
        };
        let opened = self.folder(folder)?;
        let mut name = Cow::Borrowed(name);
        let mut buffer = [MaybeUninit::uninit(); MAX_NAME];
        for links in 0..MAX_LINKS {
            let stat = rustix::fs::statat(&opened, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind != FileType::Symlink {
                return Ok(Some(TreeEntry {
                    kind,
                    source: Some([&*self.written, folder, &*name].concat()),
                    is_link: links > 0,
                    place: Handle::Named(opened),
                }));
            }
            let (target, _) = rustix::fs::readlinkat_raw(&opened, &*name, &mut buffer)?;
            match std::str::from_utf8(target) {
                // A target that fills the buffer may be longer.
                Ok(target)
                    if target.len() < MAX_NAME
                        && !target.contains('/')
                        && !matches!(target, "." | "..") =>
                {
                    name = Cow::Owned(target.to_owned());
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Opens a folder. Errors: `LOOP` if its path has a link.
    fn folder(&self, path: &str) -> rustix::io::Result<Rc<OwnedFd>> {
        let mut known = self.folders.borrow_mut();
        if let Some((_, folder)) = known.iter().find(|(name, _)| name == path) {
            return Ok(Rc::clone(folder));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = Rc::new(self.root().open_plain(path, flags)?);
        known.push((path.to_owned(), Rc::clone(&folder)));
        Ok(folder)
    }

    fn find_through_links(&self, path: &str) -> rustix::io::Result<TreeEntry> {
        let fd = self.root().open_in(path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok(TreeEntry {
            kind: FileType::from_raw_mode(stat.st_mode),
            source: self.host.source(&fd),
            is_link: self.is_link(path),
            place: Handle::Open(fd),
        })
    }

    fn is_link(&self, path: &str) -> bool {
        self.root()
            .open_in(path, OFlags::PATH | OFlags::NOFOLLOW)
            .and_then(rustix::fs::fstat)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    fn root(&self) -> &Root {
        self.sub.as_ref().unwrap_or(&self.host.root)
    }
}

/// Folders of a vendor's tree that could be mounted whole: every name in them is the target of one
/// of these mounts, whose source lies in the same folder.
pub fn whole_folders(tree: &Tree, mounts: &[Mount]) -> Vec<Mount> {
    let mut by_folder: BTreeMap<&str, Vec<(&str, &Mount)>> = BTreeMap::new();
    for mount in mounts {
        if let Some((folder, name)) = split(&mount.target) {
            let folder = folder.trim_end_matches('/');
            by_folder.entry(folder).or_default().push((name, mount));
        }
    }
    by_folder
        .into_iter()
        .filter(|(folder, files)| !folder.is_empty() && files.len() >= MIN_FILES)
        .filter_map(|(folder, mut files)| {
            let source = tree.source_of(folder);
            let from_here = |m: &Mount| {
                split(&m.source).is_some_and(|(f, _)| f.trim_end_matches('/') == source)
            };
            files.sort_unstable_by_key(|(name, _)| *name);
            let known = |name: &str| files.binary_search_by_key(&name, |f| f.0).is_ok();
            let whole = files.iter().all(|(_, m)| from_here(m))
                && tree.holds_only(folder, known).is_ok_and(|only| only);
            whole.then(|| Mount { source: source.clone(), target: folder.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests;
