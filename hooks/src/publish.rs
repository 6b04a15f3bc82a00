//! Puts a file into a folder so that no reader sees half of it.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::path::Arg;

/// Writes the bytes under the name, with the owner and the permissions of `like`.
///
/// `temporary` is always the same for a folder, so that what a killed start left is
/// found by the next one. Not synced: `docs/decisions/0014` says why.
pub fn publish(
    folder: &OwnedFd,
    temporary: &str,
    name: impl Arg,
    bytes: &[u8],
    like: &Stat,
) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(like.st_mode & 0o777);
    let fd = match create(folder, temporary, mode) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(folder, temporary, AtFlags::empty())?;
            create(folder, temporary, mode)?
        }
        other => other?,
    };
    let remove = || rustix::fs::unlinkat(folder, temporary, AtFlags::empty());
    fill(&fd, bytes, like, mode)
        .and_then(|()| rustix::fs::renameat(folder, temporary, folder, name))
        .inspect_err(|_| _ = remove())
}

fn create(folder: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, mode)
}

fn fill(fd: &OwnedFd, mut bytes: &[u8], like: &Stat, mode: Mode) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let own = rustix::fs::fstat(fd)?;
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid) {
        let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
        rustix::fs::fchown(fd, Some(owner), Some(group))?;
    }
    // The umask takes bits away.
    if Mode::from_raw_mode(own.st_mode) != mode {
        rustix::fs::fchmod(fd, mode)?;
    }
    Ok(())
}
