//! Puts a file into a folder so that no reader sees half of it.

use std::borrow::Cow;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::clock;

/// A file with the temporary name that hasn't changed for so long is nobody's any more.
const ABANDONED_AFTER_S: u64 = 10;

/// The name of a file until it is whole. Always the same for a folder, so that what a
/// killed start left is found by a later one.
#[derive(Clone, Copy, Debug)]
pub enum Temporary<'a> {
    /// Nobody else writes here.
    Alone(&'a str),
    /// Other starts may be writing right now, for containers that share the folder.
    Shared(&'a str),
}

/// Writes the bytes under the name, with the owner and the permissions of `like`.
/// Not synced: `docs/decisions/0014` says why.
pub fn publish(
    folder: &OwnedFd,
    temporary: Temporary,
    name: impl Arg,
    bytes: &[u8],
    like: &Stat,
) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(like.st_mode & 0o777);
    let (fd, temporary) = create_temporary(folder, temporary, mode)?;
    let remove = || rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
    fill(&fd, bytes, like, mode)
        .and_then(|()| rustix::fs::renameat(folder, &*temporary, folder, name))
        .inspect_err(|_| _ = remove())
}

/// A new file, and its name.
fn create_temporary<'a>(
    folder: &OwnedFd,
    temporary: Temporary<'a>,
    mode: Mode,
) -> rustix::io::Result<(OwnedFd, Cow<'a, str>)> {
    let (Temporary::Alone(name) | Temporary::Shared(name)) = temporary;
    match create(folder, name, mode) {
        Err(Errno::EXIST) => {}
        other => return other.map(|fd| (fd, Cow::Borrowed(name))),
    }
    let name = match temporary {
        Temporary::Shared(_) if is_anothers(folder, name) => {
            Cow::Owned(format!("{name}.{}", std::process::id()))
        }
        _ => Cow::Borrowed(name),
    };
    match rustix::fs::unlinkat(folder, &*name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => create(folder, &name, mode).map(|fd| (fd, name)),
        Err(error) => Err(error),
    }
}

/// True if another start is writing to the file right now.
fn is_anothers(folder: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| !is_abandoned(&stat, clock::seconds()))
}

/// The time of the last change of its inode, which no image can choose, is long ago or to come.
fn is_abandoned(stat: &Stat, now: u64) -> bool {
    let changed = u64::try_from(stat.st_ctime).unwrap_or_default();
    now.checked_sub(changed)
        .is_none_or(|age| age >= ABANDONED_AFTER_S)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const NAME: &str = ".tmp";

    fn folder_of(tree: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        rustix::fs::open(tree, flags, Mode::empty()).unwrap()
    }

    fn published(tree: &Path, bytes: &[u8]) {
        let folder = folder_of(tree);
        let like = rustix::fs::fstat(&folder).unwrap();
        publish(&folder, Temporary::Shared(NAME), "cache", bytes, &like).unwrap();
    }

    #[test]
    fn leaves_nothing_but_the_file() {
        let tree = tempfile::tempdir().unwrap();
        published(tree.path(), b"one");
        published(tree.path(), b"two");
        assert_eq!(std::fs::read(tree.path().join("cache")).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_another_start_is_writing_stays_its_own() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join(NAME), "half").unwrap();
        published(tree.path(), b"whole");
        assert_eq!(std::fs::read(tree.path().join("cache")).unwrap(), b"whole");
        assert_eq!(std::fs::read(tree.path().join(NAME)).unwrap(), b"half");
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_a_killed_start_left_is_abandoned_after_a_while() {
        let tree = tempfile::tempdir().unwrap();
        let mut stat = rustix::fs::fstat(folder_of(tree.path())).unwrap();
        for (ctime, abandoned) in [(1000, false), (991, false), (990, true), (1001, true)] {
            stat.st_ctime = ctime;
            assert_eq!(is_abandoned(&stat, 1000), abandoned, "{ctime}");
        }
    }
}
