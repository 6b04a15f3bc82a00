//! Covers `/proc/driver/nvidia/params` in a container with a file that has `ModifyDeviceFiles: 0`,
//! so that the driver's own programs make no device nodes there.
//!
//! The file lies in its own file system in memory. The kernel only clones a mount of a file system
//! that is mounted. So this one is mounted over the folder first, while no process of the container
//! exists, and unmounted when the clone is made.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{fstat, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::error::{Error, Result};
use crate::host::rootfs::{open_regular, Rootfs};
use crate::host::syscalls::restrict_mount;
use crate::model::edits::FILE_MOUNT;

/// The file in which the driver shows its settings.
pub const PATH: &str = "/proc/driver/nvidia/params";
const SETTING: &str = "ModifyDeviceFiles:";
/// A hundred times the size of the driver's file.
const MAX_SIZE: u64 = 1 << 16;
const NAME: &str = "params";

/// Shows the container settings with which the driver's programs make no nodes. Does nothing if
/// there are no settings, or if they say so already. Errors: the file can't be put there.
pub fn mask_modify_device_files(rootfs: &Rootfs) -> Result<()> {
    let fail = |e: Errno| {
        Error::failed(format!("can't change {PATH} in the container: {e}"))
            .resolve("it needs Linux 5.12, and the rights of the runtime; `nvidia-ctk cdi generate --disable-hook=disable-device-node-modification` leaves it out of a specification")
    };
    try_mask(rootfs).map_err(fail)
}

fn try_mask(rootfs: &Rootfs) -> rustix::io::Result<()> {
    let found = match rootfs.mounted.open_plain(PATH, OFlags::PATH) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        other => other?,
    };
    // If the file lies on another file system than /proc, it is covered already.
    let proc = rootfs.mounted.open_plain("/proc", OFlags::PATH | OFlags::DIRECTORY)?;
    if fstat(&found)?.st_dev != fstat(&proc)?.st_dev {
        return Ok(());
    }
    let Some(new) = changed(&read(&found)?) else {
        return Ok(());
    };
    let folder = PATH.trim_end_matches(NAME).trim_end_matches('/');
    let folder = rootfs.mounted.open_plain(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    let file = file_mount(&folder, new.as_bytes())?;
    attach(&file, &found)
}

/// Reads a file of /proc, whose size is unknown.
fn read(found: &OwnedFd) -> rustix::io::Result<String> {
    let to_errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let (file, _) = open_regular(found)?;
    let mut text = String::new();
    let mut file = File::from(file).take(MAX_SIZE);
    file.read_to_string(&mut text).map_err(to_errno)?;
    Ok(text)
}

/// A mount of one file with these bytes, not attached yet.
fn file_mount(folder: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", "64k")?;
    fsconfig_set_string(context.as_fd(), "mode", "755")?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let permissions = Mode::from_raw_mode(0o444);
    let file = rustix::fs::openat(&memory, NAME, flags, permissions)?;
    let written = File::from(file).write_all(bytes);
    written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    attach(&memory, folder)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let clone = open_tree(&memory, NAME, flags);
    // Named by its descriptor, as the path may lead elsewhere.
    let own = format!("/proc/self/fd/{}", memory.as_raw_fd());
    unmount(own, UnmountFlags::DETACH)?;
    let clone = clone?;
    restrict_mount(&clone, FILE_MOUNT)?;
    Ok(clone)
}

fn attach(mount: &OwnedFd, place: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags)
}

/// The settings with `ModifyDeviceFiles` off. `None`: it is off already, or missing.
pub fn changed(text: &str) -> Option<String> {
    let is_on = |line: &str| {
        let value = line.strip_prefix(SETTING);
        value.is_some_and(|value| value.trim() != "0")
    };
    if !text.lines().any(is_on) {
        return None;
    }
    let mut new = String::with_capacity(text.len() + 2);
    for line in text.lines() {
        if is_on(line) {
            new.push_str(SETTING);
            new.push_str(" 0");
        } else {
            new.push_str(line);
        }
        new.push('\n');
    }
    Some(new)
}
