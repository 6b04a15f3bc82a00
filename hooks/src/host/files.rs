//! Reads and writes configuration files of the host: whole or not at all, with the owner, the
//! permissions and the `SELinux` label of the old file.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::publish::{publish_after, write_through};

/// Larger than any hand-written configuration.
const MAX_SIZE: u64 = 16 << 20;
/// The mode of new files.
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
    publish_after(&folder, &temporary, name, text.as_bytes(), &like, |file| {
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

/// The missing folders above a file, the outermost first.
pub fn missing_folders(path: &Path) -> Vec<PathBuf> {
    let above = path.ancestors().skip(1);
    let above = above.filter(|folder| !folder.as_os_str().is_empty());
    let missing = above.take_while(|folder| !folder.exists());
    let mut missing: Vec<_> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Makes the missing folders above a file. Everyone may read them, whatever the umask, because an
/// engine that runs as a user looks there.
pub fn make_folders(path: &Path) -> std::io::Result<()> {
    for folder in missing_folders(path) {
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => {
                made?;
                std::fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_waits_and_then_gives_up() {
        let held = lock().unwrap();
        let error = lock_within(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("has held the lock"), "{error}");
        drop(held);
        lock().unwrap();
    }
}
