//! Looks up devices and files on the host, under the folder that is its root.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::edits::Device;
use crate::error::{Error, Result};
use crate::glob;
use crate::inroot::{path_of, Root};

/// The host's file tree.
#[derive(Debug)]
pub struct Host {
    root: Root,
    /// The root as the caller wrote it, without a slash at its end.
    written: String,
    /// The root as the kernel names it, likewise.
    real: String,
}

/// What lies at a path of the host.
#[derive(Debug)]
pub struct Found {
    pub fd: OwnedFd,
    stat: Stat,
    /// The path to mount it from: free of links, beginning with the host's
    /// root as the caller wrote it. `None` when it isn't valid UTF-8.
    pub source: Option<String>,
    /// A link was followed on the way to it.
    pub linked: bool,
}

impl Found {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl Host {
    /// Errors: the root isn't a folder that can be opened.
    pub fn open(root: &Path) -> Result<Self> {
        let shown = root.display();
        let opened = Root::open(root)
            .map_err(|e| Error::not_found(format!("can't open the host's root {shown}: {e}")))?;
        let real = path_of(&opened).ok_or_else(|| {
            Error::failed(format!(
                "can't tell where {shown} lies: /proc is missing, or the path is not UTF-8"
            ))
        })?;
        Ok(Self {
            root: opened,
            written: root.to_string_lossy().trim_end_matches('/').to_owned(),
            real: real.trim_end_matches('/').to_owned(),
        })
    }

    /// The tree in which a vendor's files lie: a folder of the host, or its root.
    /// Errors: the driver isn't installed.
    pub fn tree(&self, folder: Option<&str>) -> Result<Tree<'_>> {
        let Some(folder) = folder else {
            return Ok(Tree {
                host: self,
                sub: None,
                written: self.written.clone(),
            });
        };
        let sub = self.root.sub(folder).map_err(|error| {
            Error::not_found(format!(
                "the driver is not installed: can't open {}{folder}: {error}",
                self.written
            ))
            .resolve("install it, or mend \"root\" in the vendor file")
        })?;
        let written = self.source(&sub).ok_or_else(|| {
            Error::failed(format!("can't tell where {}{folder} lies", self.written))
        })?;
        Ok(Tree {
            host: self,
            sub: Some(sub),
            written,
        })
    }

    /// Where an open file lies, the root as the caller wrote it.
    fn source(&self, fd: impl AsFd) -> Option<String> {
        let path = path_of(fd)?;
        let rest = path.strip_prefix(&self.real)?;
        Some(format!("{}{rest}", self.written))
    }

    /// The nodes that a device name, path or pattern stands for, by container path.
    pub fn devices(&self, wanted: &str) -> Vec<(String, DeviceFound)> {
        let name = wanted.strip_prefix("/dev/").unwrap_or(wanted);
        let names = if glob::is_pattern(name) {
            self.expand(name)
        } else {
            vec![name.to_owned()]
        };
        names
            .into_iter()
            .map(|name| format!("/dev/{name}"))
            .map(|path| {
                let found = self.device(&path);
                (path, found)
            })
            .collect()
    }

    fn device(&self, path: &str) -> DeviceFound {
        let stat = match self
            .root
            .open_in(path, OFlags::PATH)
            .and_then(rustix::fs::fstat)
        {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return DeviceFound::Missing,
            Err(error) => return DeviceFound::Unusable(error.to_string()),
        };
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => 'c',
            FileType::BlockDevice => 'b',
            FileType::Directory => {
                return DeviceFound::Unusable(format!("is a folder; \"{path}/*\" names its nodes"))
            }
            _ => return DeviceFound::Unusable("is not a device node".to_owned()),
        };
        DeviceFound::Node(Device {
            path: path.to_owned(),
            kind,
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
            mode: stat.st_mode & 0o777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        })
    }

    /// Names under `/dev` that match a pattern, part by part, in order.
    fn expand(&self, pattern: &str) -> Vec<String> {
        let mut names = vec![String::new()];
        for part in pattern.split('/') {
            names = names
                .iter()
                .flat_map(|folder| self.expand_part(folder, part))
                .collect();
        }
        names
    }

    fn expand_part(&self, folder: &str, part: &str) -> Vec<String> {
        let join =
            |name: &str| format!("{folder}{}{name}", if folder.is_empty() { "" } else { "/" });
        if !glob::is_pattern(part) {
            return vec![join(part)];
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let entries = self
            .root
            .open_in(&format!("dev/{folder}"), flags)
            .and_then(rustix::fs::Dir::new);
        let Ok(entries) = entries else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().map(str::to_owned).ok())
            .filter(|name| !name.starts_with('.') && glob::matches(part, name))
            .map(|name| join(&name))
            .collect();
        names.sort();
        names
    }
}

/// What a device path turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum DeviceFound {
    Node(Device),
    Missing,
    Unusable(String),
}

/// Where one vendor's files are looked up.
#[derive(Debug)]
pub struct Tree<'a> {
    host: &'a Host,
    sub: Option<Root>,
    /// Its folder, free of links below the host's root as the caller wrote it.
    written: String,
}

impl Tree<'_> {
    fn root(&self) -> &Root {
        self.sub.as_ref().unwrap_or(&self.host.root)
    }

    /// Looks a path up without opening what lies there.
    pub fn find(&self, path: &str) -> rustix::io::Result<Found> {
        let flags = OFlags::PATH;
        // Asking /proc where a file lies costs more than a second lookup, and
        // most paths have no link in them.
        let (fd, source, linked) = match self.root().open_plain(path, flags) {
            Ok(fd) => (fd, Some(format!("{}{path}", self.written)), false),
            Err(Errno::LOOP) => {
                let fd = self.root().open_in(path, flags)?;
                let source = self.host.source(&fd);
                (fd, source, true)
            }
            Err(error) => return Err(error),
        };
        Ok(Found {
            stat: rustix::fs::fstat(&fd)?,
            fd,
            source,
            linked,
        })
    }

    /// True when the path itself is a symbolic link.
    pub fn is_link(&self, path: &str) -> bool {
        self.root()
            .open_in(path, OFlags::PATH | OFlags::NOFOLLOW)
            .and_then(rustix::fs::fstat)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }
}

#[cfg(test)]
mod tests;
