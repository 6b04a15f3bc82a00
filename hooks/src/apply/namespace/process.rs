//! The container's first process, by which its namespaces and cgroups are found.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

use crate::error::{Error, Result};
use crate::syscalls::use_files_as;

/// A process whose namespaces are open. All of it is of one process: that it still
/// lived after the last part was opened was made sure of.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    mounts: OwnedFd,
    /// `/proc/PID/cgroup`.
    pub cgroups: String,
    /// It lives in another user namespace than we do: who its root is to us.
    root: Option<(u32, u32)>,
    rootless: bool,
}

impl Process {
    /// Errors: it is gone, or shares the mount namespace that we are in.
    pub fn open(pid: Pid) -> Result<Self> {
        // Before Linux 5.3 there are none; then its number has to do.
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
            // The handle, not the number, says whether all of that was one process.
            ended(&handle).map_err(|e| gone(pid, e))?;
        }
        Ok(Self {
            pid,
            mounts,
            cgroups,
            root,
            rootless: is_rootless(),
        })
    }

    /// True when it lives in another user namespace than we do.
    pub fn has_own_users(&self) -> bool {
        self.root.is_some()
    }

    /// True when we have no rights beyond those of a user: no device node that we made
    /// would work, and cgroups are not ours to change.
    pub fn is_rootless(&self) -> bool {
        self.rootless
    }

    /// Moves this process into the mount namespace. From there on, files are made as the
    /// container's own root: the host's may not even be known to its file systems.
    pub fn join(&self) -> Result<()> {
        use std::os::fd::AsFd;
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(self.mounts.as_fd(), kind).map_err(|e| {
            let pid = raw(self.pid);
            Error::failed(format!(
                "can't join the mount namespace of the process {pid}: {e}"
            ))
            .resolve("the hook needs the rights that the runtime has")
        })?;
        if let Some((user, group)) = self.root {
            use_files_as(user, group);
        }
        Ok(())
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
        other => Error::failed(format!(
            "can't look at the container's process {pid}: {other}"
        )),
    }
}

/// Who the number 0 of the process's user namespace is to us (`user_namespaces(7)`).
fn root_of(pid: Pid, map: &str) -> Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/{}/{map}", raw(pid)))
        .map_err(|e| gone(pid, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    root_in(&text).ok_or_else(|| {
        let pid = raw(pid);
        Error::failed(format!(
            "the container's process {pid} has no root in its {map}"
        ))
    })
}

/// Who the number 0 is outside, in a map of users or groups.
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

/// Errors: `SRCH` when the process has ended; its handle is readable then.
fn ended(handle: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let mut one = [PollFd::new(handle, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut one, Some(&now))? {
        0 => Ok(()),
        _ => Err(Errno::SRCH),
    }
}

/// In a user namespace that does not map every user, even root is another user.
fn is_rootless() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !maps_everyone(&map) || !rustix::process::geteuid().is_root()
}

fn maps_everyone(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
#[allow(unsafe_code)]
pub(crate) mod tests;
