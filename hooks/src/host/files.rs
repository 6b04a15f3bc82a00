//! Reads and writes configuration files of the host: whole or not at all, with the owner, the
//! permissions and the `SELinux` label of the old file.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{absolute, Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    flock, Access, AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::error::{Error, Result};
use crate::host::rootfs::is_same;

/// Larger than any hand-written configuration.
const MAX_SIZE: u64 = 16 << 20;
const MODE: u32 = 0o644;
const LABEL: &str = "security.selinux";

/// The text of a file. `None`: it does not exist. Errors: it is not a regular file or not UTF-8, is
/// too large, or is a link to another folder, so another program may own it.
pub fn read(path: &Path) -> Result<Option<String>> {
    read_others(&real(path)?)
}

/// The same of a file that is never changed: a link is followed anywhere.
pub fn read_others(path: &Path) -> Result<Option<String>> {
    let shown = path.display();
    let fail = |problem: &str| Error::failed(format!("can't read {shown}: {problem}"));
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::of_file("read", path, &error)),
    };
    let move_away = format!("move it away, and run the command again: mv {shown} {shown}.old");
    if !about.is_file() {
        return Err(fail("it is not a regular file").resolve(move_away));
    }
    if about.len() > MAX_SIZE {
        return Err(fail(&format!("it is larger than {MAX_SIZE} bytes")).resolve(move_away));
    }
    let bytes = std::fs::read(path).map_err(|error| Error::of_file("read", path, &error))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        fail("it is not valid UTF-8")
            .resolve(format!("correct these lines: LC_ALL=C.UTF-8 grep -naxv '.*' {shown}"))
    })?;
    Ok(Some(text))
}

/// Writes a file, or to what is no file, as [`write_through`] says. A link within the folder is
/// followed. Errors: the link leads elsewhere.
pub fn write(path: &Path, text: &str, mode: Option<u32>) -> Result<()> {
    if write_through(path, text.as_bytes()).map_err(|e| Error::of_file("write", path, &e))? {
        return Ok(());
    }
    replace(&real(path)?, text, mode)
}

/// Writes a file by one rename, synced. Missing folders are made. Without a mode, it keeps its own.
pub fn replace(path: &Path, text: &str, mode: Option<u32>) -> Result<()> {
    let path = &std::path::absolute(path).map_err(|error| Error::of_file("find", path, &error))?;
    let fail = |error: rustix::io::Errno| Error::of_file("write", path, &error.into());
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(rustix::io::Errno::ISDIR));
    };
    make_folders(path).map_err(|error| Error::of_file("write", path, &error))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(fail)?;
    let old = rustix::fs::lstat(path).ok();
    let mut like = old.map_or_else(|| rustix::fs::fstat(&folder), Ok).map_err(fail)?;
    if old.is_none() {
        like.st_mode = MODE;
        like.st_uid = rustix::process::geteuid().as_raw();
        like.st_gid = rustix::process::getegid().as_raw();
    }
    like.st_mode = mode.unwrap_or(like.st_mode);
    let temporary = format!(".{}.oci-decorator", name.to_string_lossy());
    publish(&folder, &temporary, name, text.as_bytes(), &like, |file| {
        keep_label(path, file);
        rustix::fs::fsync(file)
    })
    .and_then(|()| rustix::fs::fsync(&folder))
    .map_err(fail)
}

/// Copies the `SELinux` label of the old file, as a new file has the folder's label.
fn keep_label(path: &Path, file: &OwnedFd) {
    let mut label = [0; 256];
    if let Ok(length) = rustix::fs::getxattr(path, LABEL, &mut label[..]) {
        let _ = rustix::fs::fsetxattr(file, LABEL, &label[..length], XattrFlags::empty());
    }
}

/// Removes a file, which may be missing.
pub fn remove(path: &Path) -> Result<()> {
    let path = real(path)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::of_file("remove", &path, &error))
        }
        _ => Ok(()),
    }
}

/// Makes the missing folders above a file. Everyone may read them, whatever the umask, because an
/// engine that runs as a user looks there.
pub fn make_folders(path: &Path) -> std::io::Result<()> {
    let above = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    let missing: Vec<_> = above.take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        match std::fs::create_dir(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => {
                made?;
                std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(())
}

/// The real path of a file. A link within the folder is followed. Errors: the link leads elsewhere.
fn real(path: &Path) -> Result<PathBuf> {
    // A name without a folder means the working folder.
    let path = &std::path::absolute(path).map_err(|error| Error::of_file("find", path, &error))?;
    if !path.is_symlink() {
        return Ok(path.to_owned());
    }
    let shown = path.display();
    let target = std::fs::canonicalize(path).map_err(|error| {
        Error::failed(format!("{shown} is a link that can't be followed: {error}"))
            .resolve(format!("remove it: rm {shown}"))
    })?;
    let own = path.parent().map(std::fs::canonicalize);
    if own.and_then(std::result::Result::ok).as_deref() == target.parent() {
        return Ok(target);
    }
    let target = target.display();
    Err(Error::failed(format!("{shown} is a link to {target}, which another program may own"))
        .resolve(format!("to change it anyway, name it: --config {target}")))
}

/// The folders in which programs are looked up without a `PATH`, and the `PATH` of hooks that run
/// other programs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The possible paths of a program: an absolute path itself, or a name in each absolute folder of
/// the list. A relative folder would lie in the working folder, which is a bundle.
pub fn candidates(name: &str, search: &OsStr) -> Vec<PathBuf> {
    if name.starts_with('/') {
        return vec![name.into()];
    }
    let folders = std::env::split_paths(search).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).collect()
}

/// True for a file that this process may run.
pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|stat| stat.is_file())
        && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// A run that changes a file makes some synced writes.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
const OWN: &str = "/proc/self/exe";

/// Held while files are read, changed and written: one command at a time changes configuration files of
/// the host. The lock is on this program's own file: nothing is left in foreign folders, no folder has to
/// exist for it, and the kernel releases it when a process is killed.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

/// Waits for the lock. A file system that has none, such as NFS, is worked on without.
/// Errors: another process holds it for too long.
pub fn lock() -> Result<Lock> {
    lock_within(LOCK_LIMIT)
}

fn lock_within(limit: Duration) -> Result<Lock> {
    let file = File::open(OWN).map_err(|e| Error::failed(format!("can't open {OWN}: {e}")))?;
    let deadline = Instant::now() + limit;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => {
                return Err(Error::failed(format!(
                    "configuration files of this host are being changed: another process has held the lock for {} s",
                    limit.as_secs()
                ))
                .resolve("find it, wait until it is done, and try again: ps -C oci-decorator,nvidia-ctk"));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
            Ok(()) | Err(_) => return Ok(Lock(file)),
        }
    }
}

// Writes a file so that no reader ever sees half of it, and never replaces what is no file.

/// How many starts may write into one folder at the same time, each to its own file.
const WRITERS: u32 = 64;

/// Writes the bytes under the name, with the owner and the permissions of `like`.
///
/// `temporary` is the name of the file until it is complete, followed by a number while other
/// starts are writing. These names are always the same for a folder, so that a later start
/// finds what a killed start left. Errors: `AGAIN` if all of them are taken.
/// `last` is done before the file gets its name. Not synced otherwise:
/// `docs/decisions/03-editing-a-container.md` says why.
pub fn publish(
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
    use std::path::Path;

    use super::*;

    #[test]
    fn a_second_one_waits_and_then_gives_up() {
        let held = lock().unwrap();
        let error = lock_within(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("has held the lock"), "{error}");
        drop(held);
        lock().unwrap();
    }

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
        let failed = publish(&folder, NAME, "cache", b"new", &like, |_| Ok(()));
        assert_eq!(failed, Err(Errno::ISDIR));
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 1);
        // A folder with the temporary name is never removed.
        std::fs::create_dir(tree.path().join(NAME)).unwrap();
        let failed = create_temporary(&folder, NAME, Mode::empty());
        assert_eq!(failed.unwrap_err(), Errno::ISDIR);
    }
}
