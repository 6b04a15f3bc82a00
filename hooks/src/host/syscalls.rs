//! System calls that need unsafe code.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{pidfd_send_signal, waitid, Signal, WaitId, WaitIdOptions};

use crate::model::edits::{Attribute, Device};

/// From now on, this thread opens and creates files as this user and group.
pub fn set_fs_ids(user: u32, group: u32) {
    // SAFETY: both calls take a number and change only this thread's credentials. They can't
    // fail for root; for any other user, the next file operation reports the error.
    unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
    }
}

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets the attributes of an open mount, and makes it private.
/// Errors: `NOSYS` before Linux 5.12.
pub fn restrict_mount(mount: impl AsFd, attributes: &[Attribute]) -> rustix::io::Result<()> {
    let attributes = MountAttributes {
        set: attributes.iter().map(|attribute| bit(*attribute)).sum(),
        clear: 0,
        propagation: libc::MS_PRIVATE,
        user_namespace: 0,
    };
    let fd = mount.as_fd().as_raw_fd();
    let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: the kernel reads a string that ends with NUL and a structure of the given size.
    // Both live until the call returns.
    let result = unsafe {
        let size = size_of::<MountAttributes>();
        libc::syscall(libc::SYS_mount_setattr, fd, path, flags, &raw const attributes, size)
    };
    checked(result).map(drop)
}

/// `MOUNT_ATTR_…` of `linux/mount.h`.
fn bit(attribute: Attribute) -> u64 {
    match attribute {
        Attribute::ReadOnly => libc::MOUNT_ATTR_RDONLY,
        Attribute::NoSuid => libc::MOUNT_ATTR_NOSUID,
        Attribute::NoDevices => libc::MOUNT_ATTR_NODEV,
        Attribute::NoPrograms => libc::MOUNT_ATTR_NOEXEC,
    }
}

/// Calls bpf(2) with one of its structures.
///
/// # Safety
/// Every address in the structure must be valid for what the command does with it.
pub unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> rustix::io::Result<libc::c_long> {
    let size = size_of::<T>();
    // SAFETY: the structure has the size that is passed; the caller answers for its addresses.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    checked(result)
}

/// Longer than a look at some nodes takes.
const CHILD: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Flags of `linux/sched.h`.
const INTO_CGROUP: u64 = 0x2_0000_0000;
const PIDFD: u64 = 0x1000;
/// Waits for children that end without a signal too, which this process may ignore.
const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(0x4000_0000);

/// `struct clone_args` of `linux/sched.h`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    handle: u64,
    _child: u64,
    _parent: u64,
    _signal: u64,
    _stack: [u64; 5],
    cgroup: u64,
}

/// The first device that processes in the cgroup must not use. A child looks from there: access(2)
/// heeds the rules for devices and opens none. Errors: the child couldn't start or end there.
pub fn forbidden_in<'d>(
    cgroup: &OwnedFd,
    devices: &'d [Device],
) -> rustix::io::Result<Option<&'d Device>> {
    let modes = devices.iter().map(|device| {
        let read = if device.access.read { libc::R_OK } else { 0 };
        let write = if device.access.write { libc::W_OK } else { 0 };
        let path = CString::new(&*device.source).map_err(|_| Errno::INVAL)?;
        Ok((path, read | write))
    });
    let modes = modes.collect::<rustix::io::Result<Vec<_>>>()?;
    let mut handle: RawFd = -1;
    let mut arguments = CloneArguments {
        flags: INTO_CGROUP | PIDFD,
        handle: &raw mut handle as u64,
        cgroup: u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?,
        ..CloneArguments::default()
    };
    // SAFETY: the structure has its size, and its address is valid. This process has one thread, and
    // the child neither allocates nor returns.
    let pid = unsafe {
        let size = size_of::<CloneArguments>();
        checked(libc::syscall(libc::SYS_clone3, &raw mut arguments, size))?
    };
    if pid == 0 {
        let is_forbidden = |(path, mode): &(CString, libc::c_int)| {
            // SAFETY: the path ends with NUL.
            let looked = unsafe { libc::access(path.as_ptr(), *mode) };
            looked != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
        };
        let found = modes.iter().position(is_forbidden);
        let code = found.map_or(0, |at| i32::try_from(at + 1).unwrap_or(i32::MAX).min(255));
        // SAFETY: nothing of this process runs any more.
        unsafe { libc::_exit(code) };
    }
    // SAFETY: the kernel has just made it for us, with close-on-exec.
    let child = unsafe { OwnedFd::from_raw_fd(handle) };
    let mut one = [PollFd::new(&child, PollFlags::IN)];
    if poll(&mut one, Some(&CHILD))? == 0 {
        pidfd_send_signal(&child, Signal::KILL)?;
    }
    let ended = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | ALL)?;
    match ended.and_then(|ended| ended.exit_status()) {
        Some(0) => Ok(None),
        Some(code) => Ok(usize::try_from(code - 1).ok().and_then(|at| devices.get(at))),
        None => Err(Errno::TIMEDOUT),
    }
}

fn checked(result: libc::c_long) -> rustix::io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
