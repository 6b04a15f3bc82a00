//! Device nodes that are made in a container.

use rustix::fs::{makedev, mknodat, AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;

use crate::edits::Device;
use crate::error::{Error, Result};
use crate::rootfs::{split, Rootfs};

/// What is there already, node or not, stays: the engine put it there.
/// Errors: the node can't be made.
pub fn make(rootfs: &Rootfs, device: &Device) -> Result<()> {
    try_make(rootfs, device).map_err(|error| {
        let path = &device.path;
        Error::failed(format!("can't make {path} in the container: {error}"))
    })
}

fn try_make(rootfs: &Rootfs, device: &Device) -> rustix::io::Result<()> {
    let (root, path) = rootfs.writer(&device.path);
    let (folder, name) = split(path).ok_or(Errno::INVAL)?;
    let folder = root.make_folder(folder)?;
    let kind = match device.kind {
        'b' => FileType::BlockDevice,
        'p' => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    // The mode is the host's to the bit: the hook has set the umask to nothing.
    let mode = Mode::from_raw_mode(device.mode);
    let numbers = makedev(device.major, device.minor);
    match mknodat(&folder, name, kind, mode, numbers) {
        Err(Errno::EXIST) => return Ok(()),
        other => other?,
    }
    // Whose process the container has is the spec's to say, which is not read here.
    let (owner, group) = (device.uid.unwrap_or(0), device.gid.unwrap_or(0));
    let (owner, group) = (Uid::from_raw(owner), Gid::from_raw(group));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(&folder, name, Some(owner), Some(group), flags)
}
