//! Writes a file so that no reader ever sees half of it, and never replaces what is no file.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{absolute, Path};

use rustix::fs::{flock, AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::host::rootfs::is_same;

/// How many starts may write into one folder at the same time, each to its own file.
const WRITERS: u32 = 64;

/// Writes the bytes under the name, with the owner and the permissions of `like`.
///
/// `temporary` is the name of the file until it is complete, followed by a number while other
/// starts are writing. These names are always the same for a folder, so that a later start
/// finds what a killed start left. Errors: `AGAIN` if all of them are taken.
/// Not synced: `docs/decisions/03-editing-a-container.md` says why.
pub fn publish(
    folder: &OwnedFd,
    temporary: &str,
    name: impl Arg,
    bytes: &[u8],
    like: &Stat,
) -> rustix::io::Result<()> {
    publish_after(folder, temporary, name, bytes, like, |_| Ok(()))
}

/// The same, with a last step before the file gets its name.
pub fn publish_after(
    folder: &OwnedFd,
    temporary: &str,
    name: impl Arg,
    bytes: &[u8],
    like: &Stat,
    last: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(like.st_mode & 0o777);
    let (fd, temporary) = create_temporary(folder, temporary, mode)?;
    let remove = || rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
    fill(&fd, bytes, like, mode)
        .and_then(|()| last(&fd))
        .and_then(|()| rustix::fs::renameat(folder, &*temporary, folder, name))
        .inspect_err(|_| _ = remove())
}

/// A new file, and its name. The file is locked until its descriptor is closed, so that no other
/// start takes it for what a killed start left, however long its writer stalls.
fn create_temporary<'a>(
    folder: &OwnedFd,
    temporary: &'a str,
    mode: Mode,
) -> rustix::io::Result<(OwnedFd, Cow<'a, str>)> {
    for number in 0..WRITERS {
        let name = match number {
            0 => Cow::Borrowed(temporary),
            number => Cow::Owned(format!("{temporary}.{number}")),
        };
        let fd = match create(folder, &name, mode) {
            Err(Errno::EXIST) if is_anothers(folder, &name) => continue,
            Err(Errno::EXIST) => {
                match rustix::fs::unlinkat(folder, &*name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error),
                }
                match create(folder, &name, mode) {
                    Err(Errno::EXIST) => continue,
                    other => other?,
                }
            }
            other => other?,
        };
        // Until it was locked, another start may have removed it.
        if flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_named(&fd, folder, &name)
        {
            return Ok((fd, name));
        }
    }
    Err(Errno::AGAIN)
}

/// True if another start is writing to the file right now.
fn is_anothers(folder: &OwnedFd, name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let is_file = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_file)
        && rustix::fs::openat(folder, name, flags, Mode::empty())
            .is_ok_and(|fd| flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err())
}

fn is_named(fd: &OwnedFd, folder: &OwnedFd, name: &str) -> bool {
    let named = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let own = rustix::fs::fstat(fd);
    named.is_ok_and(|named| own.is_ok_and(|own| is_same(&own, &named)))
}

fn create(folder: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<OwnedFd> {
    // No call with EXCL follows a link that has the name: open(2).
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, mode)
}

/// Writes to a device, a pipe, a socket or a descriptor of this process, links followed: the path
/// is what a user named. False: it is a file's, or nothing has it.
///
/// Not for the root of a container, where an image may have put anything anywhere.
pub fn write_through(path: &Path, bytes: &[u8]) -> std::io::Result<bool> {
    let own = own_descriptor(path);
    let Ok(kind) = std::fs::metadata(path).map(|about| about.file_type()) else {
        return Ok(false);
    };
    if own == Some(1) {
        // As it is: a file keeps its position, and a socket can't be opened.
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
    } else if own == Some(2) {
        std::io::stderr().write_all(bytes)?;
    } else if own.is_none() && (kind.is_file() || kind.is_dir()) {
        return Ok(false);
    } else if kind.is_socket() {
        UnixStream::connect(path)?.write_all(bytes)?;
    } else {
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(libc::O_NOCTTY);
        options.open(path)?.write_all(bytes)?;
    }
    Ok(true)
}

/// The descriptor of this process that a path such as `/dev/stdout` leads to.
fn own_descriptor(path: &Path) -> Option<u32> {
    let own = std::fs::canonicalize("/proc/self/fd").ok()?;
    let mut path = absolute(path).ok()?;
    // As many links as the kernel follows: path_resolution(7).
    for _ in 0..40 {
        let folder = std::fs::canonicalize(path.parent()?).ok()?;
        if folder == own {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = folder.join(std::fs::read_link(&path).ok()?);
    }
    None
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
    // The umask has removed bits.
    if Mode::from_raw_mode(own.st_mode) != mode {
        rustix::fs::fchmod(fd, mode)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const NAME: &str = ".tmp";

    fn folder_of(tree: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        rustix::fs::open(tree, flags, Mode::empty()).unwrap()
    }

    /// The names are known, so such files never accumulate.
    #[test]
    fn files_of_killed_starts_are_replaced_and_those_of_slow_ones_are_not() {
        let tree = tempfile::tempdir().unwrap();
        let folder = folder_of(tree.path());
        let mode = Mode::from_raw_mode(0o600);
        std::fs::write(tree.path().join("outside"), "kept").unwrap();
        std::os::unix::fs::symlink("outside", tree.path().join(NAME)).unwrap();
        std::fs::write(tree.path().join(".tmp.1"), "half").unwrap();
        let make = || create_temporary(&folder, NAME, mode).unwrap();
        let (first, second, third) = (make(), make(), make());
        assert_eq!([&*first.1, &second.1, &third.1], [NAME, ".tmp.1", ".tmp.2"]);
        assert_eq!(std::fs::read_to_string(tree.path().join(".tmp.1")).unwrap(), "");
        // Its process has ended.
        drop(second);
        let name = || make().1;
        assert_eq!([name(), name()], [".tmp.1"; 2]);
        let outside = std::fs::read_to_string(tree.path().join("outside"));
        assert_eq!(outside.unwrap(), "kept");
        let _held: Vec<_> = (2..WRITERS).map(|_| make()).collect();
        assert_eq!(create_temporary(&folder, NAME, mode).unwrap_err(), Errno::AGAIN);
    }

    /// A file that another start has put there is not given the name.
    #[test]
    fn a_file_that_lost_its_name_is_not_ours() {
        let tree = tempfile::tempdir().unwrap();
        let folder = folder_of(tree.path());
        let fd = create(&folder, NAME, Mode::from_raw_mode(0o600)).unwrap();
        assert!(is_named(&fd, &folder, NAME));
        std::fs::remove_file(tree.path().join(NAME)).unwrap();
        std::fs::write(tree.path().join(NAME), "half").unwrap();
        assert!(!is_named(&fd, &folder, NAME));
    }

    #[test]
    fn what_can_not_be_put_in_place_leaves_nothing() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("cache")).unwrap();
        let folder = folder_of(tree.path());
        let like = rustix::fs::fstat(&folder).unwrap();
        let failed = publish(&folder, NAME, "cache", b"new", &like);
        assert_eq!(failed, Err(Errno::ISDIR));
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 1);
        // A folder with the temporary name is never removed.
        std::fs::create_dir(tree.path().join(NAME)).unwrap();
        let failed = create_temporary(&folder, NAME, Mode::empty());
        assert_eq!(failed.unwrap_err(), Errno::ISDIR);
    }
}
