//! Locks folders, so that only one process at a time changes their files.
//!
//! The lock is on the folder itself, so no lock file is left there, and the kernel releases it when
//! a process is killed.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::files;
use crate::error::{Error, Result};

/// A run that changes a file makes some synced writes.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// Held while files are read, changed and written.
#[derive(Debug)]
pub struct Lock {
    // Dropped first, because without the locks another process may write into these folders.
    made: Made,
    _folders: Vec<Folder>,
    is_sure: bool,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
}

/// Folders that were made for the lock, the outermost first. Empty ones are removed at the end.
#[derive(Debug, Default)]
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

impl Lock {
    /// False if a file system, such as NFS, can't lock folders.
    pub fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// The folders above a file that were made, the outermost first.
    pub fn made_for(&self, file: &Path) -> Vec<String> {
        let above = self.made.0.iter().filter(|folder| file.starts_with(folder));
        above.map(|folder| folder.display().to_string()).collect()
    }
}

/// Locks the folders of files. Missing folders are made if `makes` is true, else they are left out.
/// Errors: another process holds a folder for too long, or a folder can't be made or opened.
pub fn take(paths: &[&Path], makes: bool) -> Result<Lock> {
    take_within(paths, makes, LIMIT)
}

fn take_within(paths: &[&Path], makes: bool, limit: Duration) -> Result<Lock> {
    let deadline = Instant::now() + limit;
    let mut made = Made::default();
    loop {
        let opened = open_all(paths, makes, &mut made)?;
        if let Some(folders) = opened {
            let mut is_sure = true;
            for folder in &folders {
                is_sure &= wait(folder, deadline, limit)?;
            }
            // Another process may have removed a folder while this one waited.
            if folders.iter().all(Folder::is_there) {
                return Ok(Lock {
                    made,
                    _folders: folders,
                    is_sure,
                });
            }
        }
        if Instant::now() >= deadline {
            let shown = paths.first().map(|path| path.display().to_string());
            return Err(Error::failed(format!(
                "can't write {}: its folder was removed again and again",
                shown.unwrap_or_default()
            ))
            .resolve("wait until other programs are done, and try again"));
        }
    }
}

/// Opens the folders, in the same order in every process. `None`: one was removed meanwhile.
fn open_all(paths: &[&Path], makes: bool, made: &mut Made) -> Result<Option<Vec<Folder>>> {
    let mut folders = Vec::new();
    for path in paths {
        let fail = |error: std::io::Error| Error::of_file("write", path, &error);
        let path = std::path::absolute(path).map_err(fail)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let found = if makes { make(&path, made) } else { Ok(()) };
        match found.and_then(|()| Folder::open(folder)) {
            Ok(folder) => folders.push(folder),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(fail(error)),
            Err(_) if makes => return Ok(None),
            Err(_) => {}
        }
    }
    folders.sort_by_key(|folder| folder.identity);
    folders.dedup_by_key(|folder| folder.identity);
    Ok(Some(folders))
}

fn make(file: &Path, made: &mut Made) -> std::io::Result<()> {
    for folder in files::missing_folders(file).into_iter().map(PathBuf::from) {
        match std::fs::create_dir(&folder) {
            Ok(()) if made.0.contains(&folder) => {}
            Ok(()) => made.0.push(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Folder {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            identity: (about.dev(), about.ino()),
        })
    }

    fn is_there(&self) -> bool {
        let about = std::fs::metadata(&self.path);
        about.is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }
}

/// Waits for a lock. False: the file system has no such locks, for example a user's home on NFS.
fn wait(folder: &Folder, deadline: Instant, limit: Duration) -> Result<bool> {
    loop {
        match rustix::fs::flock(&folder.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => {
                return Err(busy(folder, limit));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
            Err(_) => return Ok(false),
        }
    }
}

fn busy(folder: &Folder, limit: Duration) -> Error {
    let shown = folder.path.display();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let limit = limit.as_secs();
    match holder(&locks, folder.identity.1) {
        Some(id) => {
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            let name = name.trim();
            Error::failed(format!(
                "can't lock {shown}: process {id} ({name}) has held it for {limit} s"
            ))
            .resolve(format!(
                "wait until it is done, or end it, and try again: kill {id}"
            ))
        }
        None => Error::failed(format!(
            "can't lock {shown}: another process has held it for {limit} s"
        ))
        .resolve(format!(
            "find it, wait until it is done, and try again: fuser -v {shown}"
        )),
    }
}

/// The process that holds a folder: proc(5), `/proc/locks`. The device there differs from that of
/// `stat` on some file systems, so only the inode is compared.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    let suffix = format!(":{inode}");
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, id, place, ..] = words.as_slice() else {
            return None;
        };
        place.ends_with(&suffix).then(|| id.parse().ok()).flatten()
    });
    holders.find(|id| *id > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_waits_and_then_names_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let held = take(&[&one, &two], false).unwrap();
        assert!(held.is_sure());
        let short = Duration::from_millis(30);
        let error = take_within(&[&two], false, short).unwrap_err().to_string();
        assert!(error.contains("can't lock"), "{error}");
        let own = format!("process {} (", std::process::id());
        assert!(error.contains(&own), "{error}");
        assert!(error.contains("kill "), "{error}");
        drop(held);
        take(&[&two], false).unwrap();
    }

    #[test]
    fn folders_are_made_and_empty_ones_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b/file");
        let without = take(&[&file], false).unwrap();
        assert!(!dir.path().join("a").exists());
        drop(without);
        let held = take(&[&file], true).unwrap();
        let made = held.made_for(&file);
        assert_eq!(made.len(), 2);
        assert!(made[0].ends_with("/a") && made[1].ends_with("/a/b"));
        assert!(held.made_for(Path::new("/other")).is_empty());
        drop(held);
        assert!(!dir.path().join("a").exists());
        let held = take(&[&file], true).unwrap();
        std::fs::write(dir.path().join("a/kept"), "").unwrap();
        drop(held);
        assert!(dir.path().join("a/kept").exists() && !dir.path().join("a/b").exists());
    }

    /// The second process waits for a folder that the first one removes.
    #[test]
    fn a_folder_that_is_removed_meanwhile_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/file");
        let held = take(&[&file], true).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _held = take(&[&file], true).unwrap();
                std::fs::write(&file, "x").unwrap();
            });
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
            other.join().unwrap();
        });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
    }

    /// Two processes that lock the same folders in different orders would wait for each other.
    #[test]
    fn the_order_in_which_files_are_named_makes_no_difference() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a/x", "b/x", "c/x", "a/y"].map(|name| dir.path().join(name));
        for file in &files[..3] {
            std::fs::create_dir(file.parent().unwrap()).unwrap();
        }
        let locked = |order: [usize; 4]| -> Vec<_> {
            let paths = order.map(|at| files[at].as_path());
            let folders = open_all(&paths, false, &mut Made::default());
            let folders = folders.unwrap().unwrap();
            folders.iter().map(|folder| folder.identity).collect()
        };
        let first = locked([0, 1, 2, 3]);
        assert_eq!(first.len(), 3, "a folder is locked once");
        for order in [[2, 1, 0, 3], [3, 2, 0, 1], [1, 3, 2, 0]] {
            assert_eq!(locked(order), first, "{order:?}");
        }
    }

    #[test]
    fn the_holder_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 fd:01:77 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 6 fd:01:177 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 7 fd:01:77 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 8 fd:01:77 0 EOF\n";
        assert_eq!(holder(locks, 77), Some(7));
        assert_eq!(holder(locks, 78), None);
        assert_eq!(holder("", 77), None);
    }
}
