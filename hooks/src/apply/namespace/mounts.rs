//! Mounts files into a container, by descriptors only.

use std::os::fd::OwnedFd;

use rustix::fs::{fstat, FileType, OFlags, Stat, CWD};
use rustix::io::Errno;
use rustix::mount::{move_mount, open_tree, MoveMountFlags, OpenTreeFlags};

use crate::error::{Error, Result};
use crate::host::rootfs::{is_same, Root, Rootfs};
use crate::host::syscalls::restrict_mount;
use crate::log::level::Level;
use crate::log::Note;
use crate::model::edits::{Attribute, Device, Mount, DEVICE_MOUNT, FILE_MOUNT};

/// File systems of the kernel. No file of a driver belongs there.
const KERNELS: [rustix::fs::FsWord; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];

/// A file or folder of the host that is not mounted yet.
#[derive(Debug)]
pub struct Opened {
    mount: OwnedFd,
    stat: Stat,
}

impl Opened {
    /// Opens a file to mount it read-only. Errors: it does not exist, or may not be mounted.
    pub fn file(mount: &Mount) -> Result<Self> {
        Self::with(&mount.source, FILE_MOUNT)
    }

    /// Opens a device node to mount it, for containers in which none can be made.
    pub fn device(device: &Device) -> Result<Self> {
        Self::with(&device.source, DEVICE_MOUNT)
    }

    fn with(source: &str, attributes: &[Attribute]) -> Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let opened = open_tree(CWD, source, flags).and_then(|mount| {
            restrict_mount(&mount, attributes)?;
            Ok(Self { stat: fstat(&mount)?, mount })
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

    /// Mounts the file at the path, which is made in the image if it is missing. A mount that is
    /// there already stays, with a note unless it is the same file.
    pub fn attach(self, rootfs: &Rootfs, path: &str) -> Result<Option<Note>> {
        self.try_attach(rootfs, path).map_err(|error| fail(path, error))
    }

    fn try_attach(&self, rootfs: &Rootfs, path: &str) -> rustix::io::Result<Option<Note>> {
        let (root, within) = rootfs.writer(path);
        let place = fstat(place(root, within, self.kind())?)?;
        // The container's own mounts hide the path: nothing is mounted over them.
        let Ok(seen) = rootfs.mounted.open_plain(path, OFlags::PATH) else {
            return Ok(Some(covered(path)));
        };
        let stat = fstat(&seen)?;
        if is_same(&stat, &self.stat) {
            return Ok(None);
        }
        if !is_same(&stat, &place) {
            return Ok(Some(covered(path)));
        }
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&self.mount, "", &seen, "", flags)?;
        Ok(None)
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

fn covered(path: &str) -> Note {
    let message = format!("the mount at {path} in the container stays as it is");
    Note::new(Level::Warning, message)
}

fn fail(path: &str, error: Errno) -> Error {
    let why = match error {
        Errno::ISDIR => "the image has a folder there",
        Errno::NOTDIR => "the image has a file in its path",
        Errno::LOOP => "the image has a link there that leads nowhere",
        Errno::PERM => "the image leads it into /proc or /sys",
        Errno::ROFS => "the container's root is read-only, and has no such file to mount over",
        other => return Error::failed(format!("can't mount {path} in the container: {other}")),
    };
    Error::failed(format!("can't mount {path} in the container: {why}"))
}

/// The mount point: what the image has at the path, or what is made there. Links are followed
/// within the image. Errors: `ISDIR`, `NOTDIR` if another kind of file is there, `LOOP` for a link
/// that leads nowhere, `PERM` if the path leads into a file system of the kernel.
fn place(root: &Root, path: &str, kind: FileType) -> rustix::io::Result<OwnedFd> {
    let is_folder = kind == FileType::Directory;
    let found = match root.open_in(path, OFlags::PATH) {
        Err(Errno::NOENT) if is_folder => root.make_folder(path)?,
        Err(Errno::NOENT) => root.make_file(path)?,
        other => other?,
    };
    let there = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if KERNELS.contains(&rustix::fs::fstatfs(&found)?.f_type) {
        return Err(Errno::PERM);
    }
    match (there == FileType::Directory, is_folder) {
        (true, false) => Err(Errno::ISDIR),
        (false, true) => Err(Errno::NOTDIR),
        _ => Ok(found),
    }
}
