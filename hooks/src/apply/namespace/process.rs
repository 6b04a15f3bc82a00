//! The container's first process, through which its namespaces and cgroups are found.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

use crate::error::{Error, Result};
use crate::host::syscalls::set_fs_ids;

/// The inode of the user namespace that a host starts with: linux/nsfs.h, `USER_NS_INIT_INO`.
const HOSTS_USERS: u64 = 0xEFFF_FFFD;

/// A process with open namespaces. All parts belong to the same process, which was still alive
/// after the last one was opened.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    mounts: OwnedFd,
    /// `/proc/PID/cgroup`.
    pub cgroups: String,
    /// If the process has its own user namespace: the user and group outside that are its root.
    root: Option<(u32, u32)>,
    /// We only have the rights of a user: device nodes that we make would not work, and we can't change
    /// cgroups.
    pub is_rootless: bool,
}

impl Process {
    /// Errors: the process has ended, or shares our mount namespace.
    pub fn open(pid: Pid) -> Result<Self> {
        // Before Linux 5.3 there are no handles, and the number has to be enough.
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        if handle.as_ref().err() == Some(&Errno::SRCH) {
            return Err(gone(pid, Errno::SRCH));
        }
        let mounts = open(pid, "ns/mnt")?;
        let users = open(pid, "ns/user")?;
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup", pid = raw(pid)))
            .map_err(|e| gone(pid, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        if same(&mounts, "/proc/self/ns/mnt")? {
            return Err(Error::failed(format!(
                "the process {} has no mount namespace of its own: nothing is mounted into the host",
                raw(pid)
            )));
        }
        let root = if same(&users, "/proc/self/ns/user")? {
            None
        } else {
            Some((root_of(pid, "uid_map")?, root_of(pid, "gid_map")?))
        };
        if let Ok(handle) = handle {
            // Only the handle, not the number, shows that this was one process all the time.
            ended(&handle).map_err(|e| gone(pid, e))?;
        }
        Ok(Self { pid, mounts, cgroups, root, is_rootless: is_rootless() })
    }

    /// True if device nodes that we make would not work for it: it has its own user namespace, or
    /// we only have the rights of a user.
    pub fn needs_mounted_nodes(&self) -> bool {
        self.root.is_some() || self.is_rootless
    }

    /// Moves this process into the mount namespace.
    pub fn join(&self) -> Result<()> {
        use std::os::fd::AsFd;
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(self.mounts.as_fd(), kind).map_err(|e| {
            let pid = raw(self.pid);
            Error::failed(format!("can't join the mount namespace of the process {pid}: {e}"))
                .resolve("the hook needs the rights that the runtime has")
        })
    }

    /// From now on, files are made as the container's root, because the container's file systems may
    /// not know the host's. What lies in folders of the host's users has to be open before.
    pub fn become_root(&self) {
        if let Some((user, group)) = self.root {
            set_fs_ids(user, group);
        }
    }
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_pid()
}

fn open(pid: Pid, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{}/{name}", raw(pid)), flags, Mode::empty())
        .map_err(|e| gone(pid, e))
}

fn gone(pid: Pid, error: Errno) -> Error {
    let pid = raw(pid);
    match error {
        Errno::NOENT | Errno::SRCH => {
            Error::failed(format!("the container's process {pid} is gone"))
        }
        other => Error::failed(format!("can't look at the container's process {pid}: {other}")),
    }
}

/// The user or group outside that is number 0 in the process's user namespace
/// (`user_namespaces(7)`).
fn root_of(pid: Pid, map: &str) -> Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/{}/{map}", raw(pid)))
        .map_err(|e| gone(pid, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    root_in(&text).ok_or_else(|| {
        let pid = raw(pid);
        Error::failed(format!("the container's process {pid} has no root in its {map}"))
    })
}

/// The number outside that a map of users or groups gives to number 0.
fn root_in(map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace();
        (numbers.next() == Some("0")).then(|| numbers.next()?.parse().ok())?
    })
}

fn same(namespace: &OwnedFd, own: &str) -> Result<bool> {
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    let fail = |e: Errno| Error::failed(format!("can't compare with {own}: {e}"));
    let (theirs, ours) = (rustix::fs::fstat(namespace), rustix::fs::stat(own));
    Ok(identity(theirs.map_err(fail)?) == identity(ours.map_err(fail)?))
}

/// Errors: `SRCH` if the process has ended. Its handle is readable then.
fn ended(handle: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let mut one = [PollFd::new(handle, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut one, Some(&now))? {
        0 => Ok(()),
        _ => Err(Errno::SRCH),
    }
}

/// In a user namespace of its own, even root has only a user's rights, whichever users it maps.
fn is_rootless() -> bool {
    let own = rustix::fs::stat("/proc/self/ns/user");
    let is_hosts = own.is_ok_and(|own| own.st_ino == HOSTS_USERS);
    !is_hosts || !rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

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
}
