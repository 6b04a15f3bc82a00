//! Mounts into a container by descriptors alone.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, CWD};
use rustix::io::Errno;
use rustix::mount::{move_mount, open_tree, MoveMountFlags, OpenTreeFlags};

use crate::edits::Mount;
use crate::error::{Error, Result};
use crate::inroot::{split, Root};
use crate::syscalls::restrict_mount;

/// Attributes of `mount_setattr(2)`.
const READ_ONLY: u64 = 0x1;
const NO_SUID: u64 = 0x2;
const NO_DEVICES: u64 = 0x4;
const NO_PROGRAMS: u64 = 0x8;
/// File systems that show the kernel, not files; nothing of a driver belongs there.
const KERNELS: [rustix::fs::FsWord; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];

/// A file or folder of the host, mounted nowhere yet.
#[derive(Debug)]
pub struct Tree {
    mount: OwnedFd,
    stat: Stat,
    target: String,
}

impl Tree {
    /// Opens what is to be mounted read-only. Errors: it is gone, or not ours to mount.
    pub fn open(mount: &Mount) -> Result<Self> {
        Self::with(
            &mount.source,
            &mount.target,
            READ_ONLY | NO_SUID | NO_DEVICES,
        )
    }

    /// Opens a device node that is to be mounted, where none can be made.
    pub fn open_device(source: &str, target: &str) -> Result<Self> {
        Self::with(source, target, NO_SUID | NO_PROGRAMS)
    }

    fn with(source: &str, target: &str, attributes: u64) -> Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let opened = open_tree(CWD, source, flags).and_then(|mount| {
            restrict_mount(&mount, attributes)?;
            Ok(Self {
                stat: rustix::fs::fstat(&mount)?,
                mount,
                target: target.to_owned(),
            })
        });
        opened.map_err(|error| {
            let failed = Error::failed(format!("can't open {source} for a mount: {error}"));
            match error {
                Errno::NOSYS => {
                    failed.resolve("the hook needs Linux 5.12; use oci-decorator-runtime")
                }
                _ => failed,
            }
        })
    }

    /// Mounts it. What is mounted there already stays as it is.
    pub fn attach(&self, root: &Root) -> Result<()> {
        let path = &self.target;
        let attached = place(root, path, self.kind()).and_then(|target| {
            let there = rustix::fs::fstat(&target)?;
            if (there.st_dev, there.st_ino) == (self.stat.st_dev, self.stat.st_ino) {
                return Ok(());
            }
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&self.mount, "", &target, "", flags)
        });
        attached.map_err(|error| fail(path, error))
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

fn fail(path: &str, error: Errno) -> Error {
    let why = match error {
        Errno::ISDIR => "the image has a folder there",
        Errno::NOTDIR => "the image has a file in its way",
        Errno::LOOP => "the image has a link there that leads nowhere",
        Errno::PERM => "the image leads it into /proc or /sys",
        Errno::ROFS => "the container's root is read-only, and has no such file to mount over",
        other => return Error::failed(format!("can't mount {path} in the container: {other}")),
    };
    Error::failed(format!("can't mount {path} in the container: {why}"))
}

/// What is to be mounted over: what the image has at the path, or what is made there.
/// Links of the image lead within the image only.
/// Errors: `ISDIR`, `NOTDIR`: another kind of thing is there; `LOOP`: a link that leads
/// nowhere; `PERM`: the path leads into a file system of the kernel.
fn place(root: &Root, path: &str, kind: FileType) -> rustix::io::Result<OwnedFd> {
    let is_folder = kind == FileType::Directory;
    let found = match root.open_in(path, OFlags::PATH) {
        Err(Errno::NOENT) if is_folder => root.make_folder(path)?,
        Err(Errno::NOENT) => make_file(root, path)?,
        other => other?,
    };
    let stat = rustix::fs::fstat(&found)?;
    let there = FileType::from_raw_mode(stat.st_mode);
    if KERNELS.contains(&rustix::fs::fstatfs(&found)?.f_type) {
        return Err(Errno::PERM);
    }
    match (there == FileType::Directory, is_folder) {
        (true, false) => Err(Errno::ISDIR),
        (false, true) => Err(Errno::NOTDIR),
        _ => Ok(found),
    }
}

/// Makes an empty file, owned as its folder is, and never through a link.
fn make_file(root: &Root, path: &str) -> rustix::io::Result<OwnedFd> {
    let (folder, name) = split(path).ok_or(Errno::INVAL)?;
    let folder = root.make_folder(folder)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = match rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o644)) {
        // The path itself led nowhere, so what has the name is a link.
        Err(Errno::EXIST) => return Err(Errno::LOOP),
        other => other?,
    };
    own_like(&made, &rustix::fs::fstat(&folder)?)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    if identity(rustix::fs::fstat(&opened)?) == identity(rustix::fs::fstat(&made)?) {
        Ok(opened)
    } else {
        Err(Errno::LOOP)
    }
}

fn own_like(fd: &OwnedFd, like: &Stat) -> rustix::io::Result<()> {
    let own = rustix::fs::fstat(fd)?;
    if (own.st_uid, own.st_gid) == (like.st_uid, like.st_gid) {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    rustix::fs::fchown(fd, Some(owner), Some(group))
}

/// True for a name of the folder that is there, whatever it is.
pub fn exists(folder: &OwnedFd, name: &str) -> Option<Stat> {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()
}
