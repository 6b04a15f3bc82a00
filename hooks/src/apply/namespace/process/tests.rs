use super::*;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::thread::{unshare_unsafe, UnshareFlags};

/// A container's process, which ends with the test.
pub struct Sleeper(Child);

impl Sleeper {
    /// A process with its own mount namespace.
    pub fn with_mounts() -> Self {
        Self::begin(UnshareFlags::NEWNS)
    }

    fn begin(namespaces: UnshareFlags) -> Self {
        let mut command = Command::new("sleep");
        command.arg("60");
        // SAFETY: descriptors stay shared, and nothing is allocated after the fork.
        unsafe { command.pre_exec(move || Ok(unshare_unsafe(namespaces)?)) };
        Self(command.spawn().unwrap())
    }

    pub fn open(&self) -> Process {
        Process::open(Pid::from_child(&self.0)).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the work in a thread with its own mount namespace, and passes it the thread's number.
pub fn apart<T: Send>(work: impl FnOnce(Pid) -> T + Send) -> T {
    use rustix::mount::{mount_change, MountPropagationFlags};
    let run = || {
        // SAFETY: descriptors stay shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        work(rustix::thread::gettid())
    };
    let done = std::thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn maps_of_users_are_read() {
    for (map, root) in [
        ("         0          0 4294967295\n", Some(0)),
        ("         0     100000      65536\n", Some(100_000)),
        ("1000 7 1\n0 200000 1000\n", Some(200_000)),
        ("         1     100000      65536\n", None),
        ("0 x 1\n", None),
        ("", None),
    ] {
        assert_eq!(root_in(map), root, "{map}");
    }
}

/// The number may belong to another process by then, so files that were opened by it are not used.
#[test]
fn a_process_that_has_ended_is_known_by_its_handle() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
    assert_eq!(ended(&handle), Ok(()));
    child.kill().unwrap();
    // The process is still in /proc until it is waited for.
    rustix::event::poll(
        &mut [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)],
        None,
    )
    .unwrap();
    assert_eq!(ended(&handle), Err(Errno::SRCH));
    child.wait().unwrap();
    assert_eq!(ended(&handle), Err(Errno::SRCH));
    let error = Process::open(pid).unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");
}
