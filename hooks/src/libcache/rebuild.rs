//! The fallback for a cache that can't be read: the host's own `ldconfig`
//! builds the image's cache anew, in namespaces where the image's root is all
//! there is, read-only, and the result comes back through a pipe. Only then
//! are our entries merged, as ever. No program of the image is run.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Resource, Rlimit};

use super::MAX_CACHE;
use crate::elf;
use crate::inroot::{path_of, Root};
use crate::syscalls;

/// The hidden verb under which this program calls itself.
pub const VERB: &str = "rebuild-library-cache";
const LDCONFIG: [&str; 3] = [
    "/sbin/ldconfig.real",
    "/sbin/ldconfig",
    "/usr/sbin/ldconfig",
];
/// Folders that every container has, to lay a small file system over.
const SCRATCH: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];
const TIMEOUT: Duration = Duration::from_secs(10);
const SCRATCH_OPTIONS: &std::ffi::CStr = c"size=16m,mode=0700";

/// A new cache for the root, without our entries. `None` when it can't be had.
pub fn rebuild(root: &Root) -> Option<Vec<u8>> {
    let output = Command::new("/proc/self/exe")
        .args([VERB, &path_of(root)?])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then_some(output.stdout)
}

/// What the hidden verb does: everything but the merge, in a process of its own.
pub fn run_in_namespaces(root: &str) -> std::io::Result<()> {
    let ldconfig = static_ldconfig().ok_or(std::io::ErrorKind::NotFound)?;
    // The image may have no /dev/null, and its nodes can't be opened.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    syscalls::leave_the_hosts()?;
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    rustix::mount::mount_bind(root, root)?;
    let locked = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(root, locked, c"")?;
    let scratch = lay_scratch(root, &ldconfig)?;
    rustix::process::chdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    limit_resources()?;
    run_ldconfig(&scratch, &null)?;
    let mut cache = Vec::new();
    File::open(format!("{scratch}/cache"))?
        .take(MAX_CACHE)
        .read_to_end(&mut cache)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&cache)?;
    out.flush()
}

/// The host's `ldconfig`; a dynamic one would load the image's libraries.
fn static_ldconfig() -> Option<Vec<u8>> {
    LDCONFIG.iter().find_map(|path| {
        let file = File::open(path).ok()?;
        let found = elf::read(&file)?;
        (!found.interpreted).then(|| std::fs::read(path).ok())?
    })
}

/// Mounts a small file system over a folder of the root and puts the program
/// into it. Gives the folder's path within the root.
fn lay_scratch(root: &str, ldconfig: &[u8]) -> std::io::Result<String> {
    let tree = Root::open(Path::new(root))?;
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let (name, fd) = SCRATCH
        .iter()
        .find_map(|name| Some((*name, tree.open_in(name, folder).ok()?)))
        .ok_or(std::io::ErrorKind::NotFound)?;
    let target = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", target, "tmpfs", flags, SCRATCH_OPTIONS)?;
    let mounted: OwnedFd = tree.open_in(name, folder)?;
    let program = rustix::fs::openat(
        &mounted,
        "ldconfig",
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o700),
    )?;
    File::from(program).write_all(ldconfig)?;
    Ok(format!("/{name}"))
}

fn limit_resources() -> std::io::Result<()> {
    let limits = [
        (Resource::Cpu, 10),
        (Resource::As, 2 << 30),
        (Resource::Fsize, MAX_CACHE),
        (Resource::Nofile, 64),
        (Resource::Core, 0),
    ];
    for (resource, limit) in limits {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        rustix::process::setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Runs it as the first process of the new process namespace, within a time
/// limit: a FIFO in the image's configuration would hold it for ever.
fn run_ldconfig(scratch: &str, null: &File) -> std::io::Result<()> {
    let mut child = Command::new(format!("{scratch}/ldconfig"))
        .args(["-X", "-i", "-C", &format!("{scratch}/cache")])
        .env_clear()
        .stdin(null.try_clone()?)
        .stdout(null.try_clone()?)
        .stderr(null.try_clone()?)
        .spawn()?;
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Some(status) = child.try_wait()? {
            let failed = || std::io::Error::other(format!("ldconfig ended with {status}"));
            return status.success().then_some(()).ok_or_else(failed);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait()?;
    Err(std::io::ErrorKind::TimedOut.into())
}
