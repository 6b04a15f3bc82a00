//! Writes a file so that no reader ever sees half of it, and never replaces what is no file.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{absolute, Path};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::log::clock;

/// A temporary file that hasn't changed for this long no longer belongs to any process.
const ABANDONED_AFTER_S: u64 = 10;

/// How many starts may write into one folder at the same time, each to its own file.
const WRITERS: u32 = 64;

/// Writes the bytes under the name, with the owner and the permissions of `like`.
///
/// `temporary` is the name of the file until it is complete, followed by a number while other
/// starts are writing. These names are always the same for a folder, so that a later start
/// finds what a killed start left. Errors: `AGAIN` if all of them are taken.
/// Not synced: `docs/decisions/04-editing-a-container.md` says why.
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
    let (fd, temporary) = create_temporary(folder, temporary, mode, clock::seconds())?;
    let remove = || rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
    fill(&fd, bytes, like, mode)
        .and_then(|()| last(&fd))
        .and_then(|()| rustix::fs::renameat(folder, &*temporary, folder, name))
        .inspect_err(|_| _ = remove())
}

/// A new file, and its name.
fn create_temporary<'a>(
    folder: &OwnedFd,
    temporary: &'a str,
    mode: Mode,
    now: u64,
) -> rustix::io::Result<(OwnedFd, Cow<'a, str>)> {
    for number in 0..WRITERS {
        let name = match number {
            0 => Cow::Borrowed(temporary),
            number => Cow::Owned(format!("{temporary}.{number}")),
        };
        match create(folder, &name, mode) {
            Err(Errno::EXIST) if is_anothers(folder, &name, now) => continue,
            Err(Errno::EXIST) => {}
            other => return other.map(|fd| (fd, name)),
        }
        match rustix::fs::unlinkat(folder, &*name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        match create(folder, &name, mode) {
            Err(Errno::EXIST) => {}
            other => return other.map(|fd| (fd, name)),
        }
    }
    Err(Errno::AGAIN)
}

/// True if another start is writing to the file right now.
fn is_anothers(folder: &OwnedFd, name: &str, now: u64) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| !is_abandoned(&stat, now))
}

/// True if the last change of its inode, a time that no image can choose, is long ago or in the
/// future.
fn is_abandoned(stat: &Stat, now: u64) -> bool {
    let changed = u64::try_from(stat.st_ctime).unwrap_or_default();
    // The file of another start may be a second younger than `now`, which was read just before.
    now.abs_diff(changed) >= ABANDONED_AFTER_S
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

    #[test]
    fn what_a_killed_start_left_is_abandoned_after_a_while() {
        let tree = tempfile::tempdir().unwrap();
        let mut stat = rustix::fs::fstat(folder_of(tree.path())).unwrap();
        for (ctime, abandoned) in
            [(1000, false), (991, false), (990, true), (1001, false), (1010, true)]
        {
            stat.st_ctime = ctime;
            assert_eq!(is_abandoned(&stat, 1000), abandoned, "{ctime}");
        }
        std::fs::write(tree.path().join(NAME), "half").unwrap();
        let folder = folder_of(tree.path());
        let now = clock::seconds();
        for (name, now, expected) in
            [(NAME, now, true), (NAME, now + 60, false), ("no", now, false)]
        {
            assert_eq!(is_anothers(&folder, name, now), expected, "{name} {now}");
            // Then its own name is used again, for a new file.
            let mode = Mode::from_raw_mode(0o600);
            let (_, name) = create_temporary(&folder, NAME, mode, now + 60).unwrap();
            assert_eq!(name, NAME);
            assert_eq!(std::fs::read(tree.path().join(NAME)).unwrap(), b"");
        }
    }

    /// The names are known, so such files never accumulate.
    #[test]
    fn files_of_killed_starts_are_replaced_under_known_names() {
        let tree = tempfile::tempdir().unwrap();
        let folder = folder_of(tree.path());
        let (now, mode) = (clock::seconds(), Mode::from_raw_mode(0o600));
        std::fs::write(tree.path().join("outside"), "kept").unwrap();
        std::os::unix::fs::symlink("outside", tree.path().join(NAME)).unwrap();
        let names = |now| -> Vec<String> {
            (0..3)
                .map(|_| create_temporary(&folder, NAME, mode, now).unwrap().1)
                .map(Cow::into_owned)
                .collect()
        };
        assert_eq!(names(now), [".tmp.1", ".tmp.2", ".tmp.3"]);
        assert_eq!(names(now + 60), [NAME; 3]);
        let outside = std::fs::read_to_string(tree.path().join("outside"));
        assert_eq!(outside.unwrap(), "kept");
        for number in 4..WRITERS {
            std::fs::write(tree.path().join(format!("{NAME}.{number}")), "").unwrap();
        }
        let full = create_temporary(&folder, NAME, mode, now);
        assert_eq!(full.unwrap_err(), Errno::AGAIN);
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
        let later = clock::seconds() + 60;
        let failed = create_temporary(&folder, NAME, Mode::empty(), later);
        assert_eq!(failed.unwrap_err(), Errno::ISDIR);
    }
}
