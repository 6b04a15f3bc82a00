//! The calls to the kernel that the compiler can't check.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::edits::Attribute;

/// Looks at files, and makes them, as this user and group from now on.
pub fn use_files_as(user: u32, group: u32) {
    // SAFETY: both take a number and change nothing but this thread's credentials. They
    // can't fail for root, and for others the next file says so.
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

/// Sets attributes of a mount that is open, and makes it private.
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
    // SAFETY: the kernel reads a string that ends with NUL and a structure of the size
    // that it is given; both live until the call is over.
    let result = unsafe {
        let size = size_of::<MountAttributes>();
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            path,
            flags,
            &raw const attributes,
            size,
        )
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

/// bpf(2) with one of its structures.
///
/// # Safety
/// Every address within the structure must be valid for what the command does with it.
pub unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> rustix::io::Result<libc::c_long> {
    let size = size_of::<T>();
    // SAFETY: the structure has the size that the kernel is given; the rest is the caller's.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    checked(result)
}

fn checked(result: libc::c_long) -> rustix::io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
