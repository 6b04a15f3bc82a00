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
pub(crate) mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use rustix::thread::{unshare_unsafe, UnshareFlags};

    /// A process of a container. It ends with the test.
    pub struct Sleeper(Child);

    impl Sleeper {
        /// With a mount namespace of its own.
        pub fn with_mounts() -> Self {
            Self::begin(UnshareFlags::NEWNS)
        }

        /// With a user namespace too, where root is this user, and the group of the next number.
        pub fn with_users(root: u32) -> Self {
            let sleeper = Self::begin(UnshareFlags::NEWNS | UnshareFlags::NEWUSER);
            let pid = sleeper.0.id();
            for (map, root) in [("uid_map", root), ("gid_map", root + 1)] {
                std::fs::write(format!("/proc/{pid}/{map}"), format!("0 {root} 1000")).unwrap();
            }
            sleeper
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

    /// Does it in a thread with a mount namespace of its own, which ends with it. Gives the
    /// thread's number too.
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
    fn a_container_without_users_of_its_own_has_our_root() {
        if !crate::need::root("namespaces") {
            return;
        }
        let sleeper = Sleeper::with_mounts();
        let process = sleeper.open();
        assert!(!process.has_own_users());
        assert_eq!(process.is_rootless(), is_rootless());
        for rootless in [true, false] {
            let process = Process {
                rootless,
                ..sleeper.open()
            };
            assert_eq!(process.is_rootless(), rootless);
        }
        let own = std::fs::read_to_string(format!("/proc/{}/cgroup", sleeper.0.id()));
        assert_eq!(process.cgroups, own.unwrap());
        let flags = rustix::io::fcntl_getfd(&process.mounts).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn files_are_made_in_its_mounts_as_its_root() {
        use std::os::unix::fs::{chown, MetadataExt};
        if !crate::need::root("namespaces") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for sleeper in [Sleeper::with_mounts(), Sleeper::with_users(100_000)] {
            let mut process = sleeper.open();
            let expected = process.has_own_users().then_some((100_000, 100_001));
            assert_eq!(process.root, expected);
            // Its own mounts, but those of a thread that puts a file system there.
            let mounts = apart(|own| {
                rustix::mount::mount(
                    "none",
                    path,
                    "tmpfs",
                    rustix::mount::MountFlags::empty(),
                    None,
                )
                .unwrap();
                std::fs::write(path.join("within"), "").unwrap();
                chown(path, Some(100_000), Some(100_001)).unwrap();
                open(own, "ns/mnt").unwrap()
            });
            process.mounts = mounts;
            let owner = std::thread::scope(|scope| {
                let run = || {
                    assert!(!path.join("within").exists());
                    // SAFETY: descriptors stay shared. A thread that shares its folder with
                    // others joins no mount namespace.
                    unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
                    process.join().unwrap();
                    assert!(path.join("within").exists());
                    std::fs::write(path.join("made"), "").unwrap();
                    let about = std::fs::metadata(path.join("made")).unwrap();
                    (about.uid(), about.gid())
                };
                scope.spawn(run).join()
            });
            assert_eq!(owner.unwrap(), expected.unwrap_or((0, 0)));
        }
    }

    /// As another user even where every user is mapped.
    #[test]
    fn who_is_not_root_is_rootless() {
        if !crate::need::root("setresuid") {
            return;
        }
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        let whole = map.split_whitespace().collect::<Vec<_>>() == ["0", "0", "4294967295"];
        assert_eq!(is_rootless(), !whole);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let user = rustix::process::Uid::from_raw(12345);
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                assert!(is_rootless());
            });
        });
    }

    #[test]
    fn maps_of_users_are_read() {
        for (map, root, everyone) in [
            ("         0          0 4294967295\n", Some(0), true),
            ("         0     100000      65536\n", Some(100_000), false),
            ("1000 7 1\n0 200000 1000\n", Some(200_000), false),
            ("         1     100000      65536\n", None, false),
            ("         0          0      65536\n", Some(0), false),
            ("0 x 1\n", None, false),
            ("", None, false),
        ] {
            assert_eq!(root_in(map), root, "{map}");
            assert_eq!(maps_everyone(map), everyone, "{map}");
        }
    }

    /// Its number may be another process's by then: what was opened by it isn't used.
    #[test]
    fn a_process_that_has_ended_is_known_by_its_handle() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert_eq!(ended(&handle), Ok(()));
        child.kill().unwrap();
        // Before it is waited for, /proc has it still.
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(
                &handle,
                rustix::event::PollFlags::IN,
            )],
            None,
        )
        .unwrap();
        assert_eq!(ended(&handle), Err(Errno::SRCH));
        child.wait().unwrap();
        assert_eq!(ended(&handle), Err(Errno::SRCH));
        let error = Process::open(pid).unwrap_err();
        assert!(error.to_string().contains("is gone"), "{error}");
    }

    #[test]
    fn our_own_mount_namespace_is_refused() {
        let error = Process::open(rustix::process::getpid()).unwrap_err();
        assert!(error.to_string().contains("no mount namespace of its own"));
        let own = open(rustix::process::getpid(), "ns/mnt").unwrap();
        assert_eq!(same(&own, "/proc/self/ns/mnt"), Ok(true));
        assert_eq!(same(&own, "/proc/self/ns/user"), Ok(false));
        assert!(same(&own, "/proc/self/ns/none").is_err());
    }

    #[test]
    fn what_became_of_a_process_is_said() {
        let pid = rustix::process::getpid();
        for (error, part) in [
            (Errno::NOENT, "is gone"),
            (Errno::SRCH, "is gone"),
            (Errno::ACCESS, "can't look at"),
        ] {
            assert!(gone(pid, error).to_string().contains(part), "{error}");
        }
    }
}
