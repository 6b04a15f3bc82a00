//! Files of the host that are read for what they say, and not given to a container.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use super::host::Host;
use crate::config::trust;
use crate::rootfs::open_regular;

/// More than the kernel writes into one of the files that are read here.
const MAX_KERNEL_TEXT: u64 = 64 << 10;

impl Host {
    /// Reads a regular file of at most `limit` bytes.
    /// Errors: `INVAL` for what is no regular file, `FBIG` for a larger one.
    pub fn read_file(&self, path: &str, limit: u64) -> rustix::io::Result<(Vec<u8>, Stat)> {
        self.root.read(path, limit)
    }

    /// Why others than root may have written what lies at a path, if so: every folder and link
    /// on the way counts.
    pub fn distrust(&self, path: &str) -> rustix::io::Result<Option<String>> {
        let shown = self.shown(path);
        if self.shown("").is_empty() {
            return trust::open(Path::new(&shown)).map(|found| found.problem);
        }
        // Links are followed within the root.
        let found = self.root.open_in(path, OFlags::PATH)?;
        let place = self.source(found).ok_or(Errno::NOENT)?;
        trust::open(Path::new(&place)).map(|found| found.problem)
    }

    /// A file that the kernel makes when it is read, and whose size it does not say.
    pub fn text_of_kernel(&self, path: &str) -> Option<Vec<u8>> {
        let found = self.root.open_in(path, OFlags::PATH).ok()?;
        let (fd, _) = open_regular(found).ok()?;
        let mut text = Vec::new();
        let mut file = File::from(fd).take(MAX_KERNEL_TEXT);
        file.read_to_end(&mut text).ok()?;
        Some(text)
    }

    /// The names in a folder, in order.
    pub fn names_in(&self, folder: &str) -> rustix::io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.root.open_in(folder, flags)?;
        let mut names = crate::rootfs::listing::names_in(opened)?;
        names.sort();
        Ok(names)
    }

    /// What the link at a path says. `None`: it is no link.
    pub fn link(&self, path: &str) -> Option<String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = self.root.open_in(path, flags).ok()?;
        let target = rustix::fs::readlinkat(fd, "", Vec::new()).ok()?;
        let target = target.into_string().ok()?;
        Some(target).filter(|target| !target.is_empty())
    }
}
