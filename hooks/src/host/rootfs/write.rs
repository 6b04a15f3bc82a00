//! Creates folders, empty files and links in a container's root. They have the owner of
//! the folder that they lie in, and the same mode whatever the umask of the engine.

use std::os::fd::OwnedFd;

use rustix::fs::{
    chownat, fchmod, fchown, fstat, readlinkat, renameat, symlinkat, unlinkat, AtFlags, Gid, Mode,
    OFlags, Stat, Uid,
};
use rustix::io::Errno;

use super::{is_same, Root};
use crate::model::edits::paths::split;

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

impl Root {
    /// Makes a folder and its parents, mode 0755. Existing folders stay as they are.
    pub fn make_folder(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_in(path, folder) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (parent, name) = split(path).ok_or(Errno::NOENT)?;
        let parent = self.make_folder(parent)?;
        match rustix::fs::mkdirat(&parent, name, FOLDER_MODE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return self.open_in(path, folder),
            Err(error) => return Err(error),
        }
        // A process of another container could have replaced it by now, but only by a
        // folder that it may write to anyway.
        let made = open_made(&parent, name, OFlags::DIRECTORY)?;
        hand_over(&made, &fstat(&parent)?, FOLDER_MODE)?;
        Ok(made)
    }

    /// Makes an empty file and its folder, mode 0644, and never through a link.
    /// Returns an `O_PATH` descriptor. Errors: `LOOP` for a link that leads nowhere.
    pub fn make_file(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let (folder, name) = split(path).ok_or(Errno::INVAL)?;
        let folder = self.make_folder(folder)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made = match rustix::fs::openat(&folder, name, flags | OFlags::CLOEXEC, FILE_MODE) {
            // The path itself led nowhere, so this name is a link.
            Err(Errno::EXIST) => return Err(Errno::LOOP),
            other => other?,
        };
        hand_over(&made, &fstat(&folder)?, FILE_MODE)?;
        let opened = open_made(&folder, name, OFlags::PATH)?;
        if is_same(&fstat(&opened)?, &fstat(&made)?) {
            Ok(opened)
        } else {
            Err(Errno::LOOP)
        }
    }
}

/// Opens what was made just now, but no link that has replaced it.
fn open_made(folder: &OwnedFd, name: &str, kind: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = kind | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// The name of a link until it is in its place. The name is always the same, so that the
/// next start finds what a killed start left.
const TEMPORARY_LINK: &str = ".oci-decorator.link";
/// How often another start may take the temporary link away.
const LINK_TRIES: u32 = 16;

impl Root {
    /// Makes a symbolic link and its folder, in place of an older link; never through one.
    /// Errors: `EXIST` where a file or folder has the name.
    pub fn make_link(&self, path: &str, target: &str) -> rustix::io::Result<()> {
        let (folder, name) = split(path).ok_or(Errno::INVAL)?;
        let folder = self.make_folder(folder)?;
        match readlinkat(&folder, name, Vec::new()) {
            Ok(there) if there.as_bytes() == target.as_bytes() => return Ok(()),
            Ok(_) => {}
            Err(Errno::NOENT) => match symlinkat(target, &folder, name) {
                Ok(()) => return own_link(&folder, name),
                // Another start was here since.
                Err(Errno::EXIST) => return self.make_link(path, target),
                Err(error) => return Err(error),
            },
            Err(Errno::INVAL) => return Err(Errno::EXIST),
            Err(error) => return Err(error),
        }
        replace_link(&folder, name, target)
    }
}

/// Replaces a link atomically, so that the name exists at every moment.
fn replace_link(folder: &OwnedFd, name: &str, target: &str) -> rustix::io::Result<()> {
    for _ in 0..LINK_TRIES {
        match symlinkat(target, folder, TEMPORARY_LINK) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                unlinkat(folder, TEMPORARY_LINK, AtFlags::empty())?;
                continue;
            }
            Err(error) => return Err(error),
        }
        own_link(folder, TEMPORARY_LINK)?;
        match renameat(folder, TEMPORARY_LINK, folder, name) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn own_link(folder: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let like = fstat(folder)?;
    let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    match chownat(folder, name, Some(owner), Some(group), flags) {
        // Without the right to change the owner, this process stays the owner. Another
        // start may have taken a temporary link.
        Err(Errno::PERM | Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Sets the owner and the mode of a new file or folder.
fn hand_over(new: &OwnedFd, like: &Stat, mode: Mode) -> rustix::io::Result<()> {
    let own = fstat(new)?;
    // First the mode: once another user owns the file, only root may change it.
    if Mode::from_raw_mode(own.st_mode & 0o777) != mode {
        fchmod(new, mode)?;
    }
    if (own.st_uid, own.st_gid) == (like.st_uid, like.st_gid) {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    match fchown(new, Some(owner), Some(group)) {
        // Without the right to change the owner, this process stays the owner.
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
