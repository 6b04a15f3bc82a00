//! Puts a file into a folder of the image by one rename.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

/// Always the same, so that what a killed start left is found by the next one.
const TEMPORARY: &str = ".oci-decorator.tmp";

/// Writes the bytes under the name, with the owner and mode of `like`.
/// Not synced: `docs/decisions/0014` says why.
pub fn publish(folder: &OwnedFd, name: &str, bytes: &[u8], like: &Stat) -> rustix::io::Result<()> {
    let fd = match create(folder) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty())?;
            create(folder)?
        }
        other => other?,
    };
    fill(fd, bytes, like)
        .and_then(|()| rustix::fs::renameat(folder, TEMPORARY, folder, name))
        .inspect_err(|_| _ = rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty()))
}

fn create(folder: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, TEMPORARY, flags, Mode::from_raw_mode(0o600))
}

fn fill(fd: OwnedFd, bytes: &[u8], like: &Stat) -> rustix::io::Result<()> {
    let mut file = File::from(fd);
    file.write_all(bytes)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let own = rustix::fs::fstat(&file)?;
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid) {
        let owner = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
        rustix::fs::fchown(file.as_fd(), Some(owner.0), Some(owner.1))?;
    }
    // Never more than a data file needs, whatever the image's file had.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(like.st_mode & 0o644))
}
