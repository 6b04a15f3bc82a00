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

    /// A process that also has a user namespace, in which root is this user and the group with the
    /// next number.
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
        // The mount namespace is that of a thread that mounts a file system there.
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
                // SAFETY: descriptors stay shared. A thread can't join a mount namespace while it
                // shares its working folder with other threads.
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

/// Another user has no more rights even in the host's namespace.
#[test]
fn a_user_other_than_root_is_rootless() {
    if !crate::need::root("setresuid") {
        return;
    }
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
fn the_end_of_a_process_is_reported() {
    let pid = rustix::process::getpid();
    for (error, part) in [
        (Errno::NOENT, "is gone"),
        (Errno::SRCH, "is gone"),
        (Errno::ACCESS, "can't look at"),
    ] {
        assert!(gone(pid, error).to_string().contains(part), "{error}");
    }
}
