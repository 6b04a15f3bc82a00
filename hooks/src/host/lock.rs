//! One command at a time changes configuration files of the host.
//!
//! The lock is on this program's own file: nothing is left in foreign folders, no folder has to
//! exist for it, and the kernel releases it when a process is killed.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// A run that changes a file makes some synced writes.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
const OWN: &str = "/proc/self/exe";

/// Held while files are read, changed and written.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

/// Waits for the lock. A file system that has none, such as NFS, is worked on without.
/// Errors: another process holds it for too long.
pub fn take() -> Result<Lock> {
    take_within(LIMIT)
}

fn take_within(limit: Duration) -> Result<Lock> {
    let file = File::open(OWN).map_err(|e| Error::failed(format!("can't open {OWN}: {e}")))?;
    let deadline = Instant::now() + limit;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => {
                return Err(busy(&file, limit));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
            Ok(()) | Err(_) => return Ok(Lock(file)),
        }
    }
}

fn busy(file: &File, limit: Duration) -> Error {
    let inode = file.metadata().map(|about| about.ino()).unwrap_or_default();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let limit = limit.as_secs();
    let what = "configuration files of this host are being changed";
    match holder(&locks, inode) {
        Some(id) => Error::failed(format!("{what}: process {id} has held the lock for {limit} s"))
            .resolve(format!("wait until it is done, or end it, and try again: kill {id}")),
        None => Error::failed(format!("{what}: another process has held the lock for {limit} s"))
            .resolve(
                "find it, wait until it is done, and try again: ps -C oci-decorator,nvidia-ctk",
            ),
    }
}

/// The process that holds a lock on a file: proc(5), `/proc/locks`. The device there differs from
/// that of `stat` on some file systems, so only the inode is compared.
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
        let held = take().unwrap();
        let error = take_within(Duration::from_millis(30)).unwrap_err().to_string();
        let own = format!("process {} has held", std::process::id());
        assert!(error.contains(&own) && error.contains("kill "), "{error}");
        drop(held);
        take().unwrap();
    }
}
