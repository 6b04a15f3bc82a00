//! A container's root, for every front end that looks into one or writes there.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{fstat, readlinkat, statat, AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::listing::is_empty;
use super::{cannot_open, is_same, Root};
use crate::error::{Error, Result};
use crate::model::edits::lies_in;
use crate::model::edits::paths::split;
use crate::model::edits::paths::{is_plain, At, Image};

/// Names of the root that this program itself runs in, and of the one that the host's
/// first process has: they differ in a chroot.
const OWN_ROOTS: [&str; 2] = ["/", "/proc/1/root"];

/// The folder of the last lookup that met no links.
type Last = (String, rustix::io::Result<OwnedFd>);

/// Two views of one folder.
#[derive(Debug)]
pub struct Rootfs {
    /// With everything that is mounted in it. Nothing is created here, because a mount may
    /// be a volume of the user.
    pub mounted: Root,
    /// The files of the image without anything that is mounted on them. For a mount point
    /// of the container, this view has the folder beneath it.
    pub files: Root,
    /// File systems that are made new for the container, by where they are mounted.
    new: Vec<(String, Root)>,
    /// Files are looked up in the order of their paths, many in the same folder.
    last: RefCell<Option<Last>>,
}

impl Rootfs {
    /// Errors: there is no such folder, or it is the root of this process.
    pub fn open(path: &Path) -> Result<Self> {
        let fail = |error| cannot_open("the container's root", path, error);
        let mounted = Root::open(path).map_err(fail)?;
        if is_own(&fstat(&mounted).map_err(fail)?) {
            return Err(Error::failed(format!(
                "the container's root {} is the root of the host or of this mount namespace: nothing is done to it",
                path.display()
            ))
            .resolve("give the container a root of its own; a hook belongs to the stage prestart or createRuntime"));
        }
        let files = mounted.sub(".").map_err(fail)?.without_mounts();
        Ok(Self { mounted, files, new: Vec::new(), last: RefCell::default() })
    }

    /// The root as its mounts show it, for an engine that does not say which of them are the user's:
    /// files are created in these too. Errors: as above.
    pub fn open_whole(path: &Path) -> Result<Self> {
        let rootfs = Self::open(path)?;
        let whole = rootfs.mounted.sub(".");
        let fail = |error| cannot_open("the container's root", path, error);
        Ok(Self { files: whole.map_err(fail)?, ..rootfs })
    }

    /// Allows files to be created in file systems that are new for the container. Missing
    /// ones are left out.
    pub fn open_new(&mut self, mounted: &[String]) {
        let open = |path: &String| {
            let root = self.mounted.sub(path).ok()?;
            Some((path.clone(), root.without_mounts()))
        };
        self.new = mounted.iter().filter_map(open).collect();
    }

    /// True for a path in one of the file systems that [`Self::open_new`] opened.
    pub fn is_in_new(&self, path: &str) -> bool {
        self.new.iter().any(|(new, _)| lies_in(path, new))
    }

    /// The root in which a path without links may be created, and its path in that root.
    pub fn writer<'a>(&'a self, path: &'a str) -> (&'a Root, &'a str) {
        let around = self.new.iter().filter(|(new, _)| lies_in(path, new));
        match around.max_by_key(|(new, _)| new.len()) {
            Some((new, root)) => (root, path[new.len()..].trim_start_matches('/')),
            None => (&self.files, path),
        }
    }
}

impl Rootfs {
    /// The type of the file with this name in a folder.
    fn kind_in(&self, folder: &str, name: &str) -> rustix::io::Result<Option<FileType>> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(path, _)| path != folder) {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            *last = Some((folder.to_owned(), self.files.open_plain(folder, flags)));
        }
        let (_, opened) = last.as_ref().ok_or(Errno::NOENT)?;
        let opened = opened.as_ref().map_err(|error| *error)?;
        let stat = statat(opened, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Some(FileType::from_raw_mode(stat.st_mode)))
    }
}

fn is_own(stat: &Stat) -> bool {
    OWN_ROOTS.iter().any(|own| rustix::fs::stat(*own).is_ok_and(|own| is_same(&own, stat)))
}

/// A mount that is already there doesn't belong to the image: it has no links, and isn't free.
impl Image for Rootfs {
    fn at(&self, path: &str) -> At {
        let found = match split(path).filter(|_| is_plain(path)) {
            Some((folder, name)) => self.kind_in(folder, name),
            None => self.files.open_plain(path, OFlags::PATH).map(|_| None),
        };
        match found {
            Ok(Some(FileType::Symlink)) | Err(Errno::LOOP) => At::Link,
            Err(Errno::NOENT) => At::Nothing,
            Ok(_) | Err(_) => At::Something,
        }
    }

    fn link(&self, path: &str) -> Option<String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let found = self.files.open_plain(path, flags).ok()?;
        let target = readlinkat(found, "", Vec::new()).ok()?;
        target.into_string().ok()
    }

    fn is_free(&self, folder: &str) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.files.open_plain(folder, flags) {
            Ok(folder) => is_empty(&folder) == Ok(true),
            Err(error) => error == Errno::NOENT,
        }
    }
}
