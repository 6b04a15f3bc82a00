//! One command at a time changes configuration files of the host.
//!
//! The lock is on this program's own file: nothing is left in foreign folders, no folder has to
//! exist for it, and the kernel releases it when a process is killed.

use std::fs::File;
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
        let held = take().unwrap();
        let error = take_within(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("has held the lock"), "{error}");
        drop(held);
        take().unwrap();
    }
}
