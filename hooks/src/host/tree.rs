//! One vendor's files, looked up on the host.
//!
//! Most of them are a file, or a link to another name, in a folder that can be reached
//! without links. There, one look at the folder serves them all, and a file costs
//! one system call. Everything else takes the long way: openat2 for the path as it
//! stands, and /proc to say where that led.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Host;
use crate::inroot::{open_regular, split, Root};

/// Links from name to name within a folder that are followed the short way.
const MAX_LINKS: u32 = 8;

/// Where one vendor's files are looked up.
#[derive(Debug)]
pub struct Tree<'a> {
    host: &'a Host,
    sub: Option<Root>,
    /// Its folder, free of links below the host's root as the caller wrote it.
    written: String,
    /// The folder of the latest file, and what it is called.
    folder: RefCell<Option<(String, Rc<OwnedFd>)>>,
}

/// What lies at a path of the host.
#[derive(Debug)]
pub struct Found {
    pub stat: Stat,
    /// The path to mount it from: free of links, beginning with the host's
    /// root as the caller wrote it. `None` when it isn't valid UTF-8.
    pub source: Option<String>,
    /// The path itself is a symbolic link.
    pub is_link: bool,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A name in a folder.
    Named(Rc<OwnedFd>, String),
    /// A descriptor of `O_PATH`.
    Open(OwnedFd),
}

impl Found {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Opens it for reading. Errors: `INVAL` for what is no regular file.
    pub fn open(&self) -> rustix::io::Result<OwnedFd> {
        match &self.place {
            Place::Open(fd) => open_regular(fd).map(|(fd, _)| fd),
            Place::Named(..) if self.kind() != FileType::RegularFile => Err(Errno::INVAL),
            Place::Named(folder, name) => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
                rustix::fs::openat(
                    folder,
                    name.as_str(),
                    flags | OFlags::CLOEXEC,
                    Mode::empty(),
                )
            }
        }
    }
}

impl<'a> Tree<'a> {
    pub(super) fn new(host: &'a Host, sub: Option<Root>, written: String) -> Self {
        let folder = RefCell::new(None);
        Self {
            host,
            sub,
            written,
            folder,
        }
    }

    /// Looks a path up; nothing is opened.
    pub fn find(&self, path: &str) -> rustix::io::Result<Found> {
        match self.find_in_folder(path) {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(Errno::LOOP) => self.find_through_links(path),
            Err(error) => Err(error),
        }
    }

    /// Where a folder of the tree lies, if no link leads to it.
    pub fn source_of(&self, folder: &str) -> String {
        format!("{}{folder}", self.written)
    }

    /// The names in a folder. Errors: `LOOP` if a link leads to it.
    pub fn names(&self, folder: &str) -> rustix::io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut names = super::names_in(self.root().open_plain(folder, flags)?)?;
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// The short way. `None`, or `LOOP`: it doesn't lead there.
    fn find_in_folder(&self, path: &str) -> rustix::io::Result<Option<Found>> {
        let Some((folder, name)) = split(path) else {
            return Ok(None);
        };
        let fd = self.folder(folder)?;
        let mut name = name.to_owned();
        for links in 0..MAX_LINKS {
            let stat = rustix::fs::statat(&*fd, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                return Ok(Some(Found {
                    stat,
                    source: Some(format!("{}{folder}{name}", self.written)),
                    is_link: links > 0,
                    place: Place::Named(fd, name),
                }));
            }
            let target = rustix::fs::readlinkat(&*fd, name.as_str(), Vec::new())?;
            match target.into_string() {
                Ok(target) if !target.contains('/') && !matches!(&*target, "." | "..") => {
                    name = target;
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// A folder that no link leads to; `LOOP` if one does.
    fn folder(&self, path: &str) -> rustix::io::Result<Rc<OwnedFd>> {
        let mut latest = self.folder.borrow_mut();
        if let Some((_, fd)) = latest.as_ref().filter(|(known, _)| known == path) {
            return Ok(Rc::clone(fd));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = Rc::new(self.root().open_plain(path, flags)?);
        *latest = Some((path.to_owned(), Rc::clone(&fd)));
        Ok(fd)
    }

    fn find_through_links(&self, path: &str) -> rustix::io::Result<Found> {
        let fd = self.root().open_in(path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Found {
            stat,
            source: self.host.source(&fd),
            is_link: self.is_link(path),
            place: Place::Open(fd),
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
