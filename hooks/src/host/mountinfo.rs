//! The mounts of this process's mount namespace: proc(5), `/proc/PID/mountinfo`.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

pub const FILE: &str = "/proc/self/mountinfo";

pub fn read() -> Result<String> {
    std::fs::read_to_string(FILE).map_err(|e| Error::failed(format!("can't read {FILE}: {e}")))
}

/// One of the mounts. Blanks in paths are escaped (`\\040`).
#[derive(Debug)]
pub struct MountPoint<'a> {
    /// Major and minor number of the file system.
    pub file_system: &'a str,
    /// The mounted part of the file system.
    pub root: &'a str,
    pub point: &'a str,
    pub kind: &'a str,
    /// Those of the file system.
    pub options: &'a str,
}

impl<'a> MountPoint<'a> {
    /// Every mount of the file's text, in the order in which they were made.
    pub fn all(text: &'a str) -> impl Iterator<Item = Self> + Clone {
        text.lines().filter_map(Self::parse)
    }

    fn parse(line: &'a str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(2);
        let (file_system, root, point) = (front.next()?, front.next()?, front.next()?);
        let mut back = back.split(' ');
        let kind = back.next()?;
        Some(Self { file_system, root, point, kind, options: back.nth(1)? })
    }

    /// The place of a path of the file system. `None`: it lies outside of the mounted part.
    pub fn place_of(&self, path: &str) -> Option<PathBuf> {
        let within = Path::new(path).strip_prefix(self.root).ok()?;
        let plain = |part| matches!(part, Component::Normal(_));
        let inside = within.components().all(plain);
        inside.then(|| Path::new(self.point).join(within))
    }
}
