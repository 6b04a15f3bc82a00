//! System calls that need unsafe code.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::edits::Attribute;

/// From now on, this thread opens and creates files as this user and group.
pub fn use_files_as(user: u32, group: u32) {
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

fn checked(result: libc::c_long) -> rustix::io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edits::{DEVICE_MOUNT, FILE_MOUNT};
    use rustix::fs::{fstatvfs, StatVfsMountFlags as Flags, CWD};
    use rustix::mount::{open_tree, OpenTreeFlags};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// The numbers of `linux/mount.h`.
    #[test]
    fn attributes_have_the_kernels_numbers() {
        let bits = [
            (Attribute::ReadOnly, 1),
            (Attribute::NoSuid, 2),
            (Attribute::NoDevices, 4),
            (Attribute::NoPrograms, 8),
        ];
        for (attribute, number) in bits {
            assert_eq!(bit(attribute), number, "{attribute:?}");
        }
    }

    /// The test uses a clone that is mounted nowhere.
    #[test]
    fn a_mount_has_the_attributes_that_were_set() {
        if !crate::need::root("open_tree") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for (attributes, expected) in [
            (FILE_MOUNT, Flags::RDONLY | Flags::NOSUID | Flags::NODEV),
            (DEVICE_MOUNT, Flags::NOSUID | Flags::NOEXEC),
        ] {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let mount = open_tree(CWD, folder.path(), flags).unwrap();
            // A temporary folder may lie on a mount that has attributes already.
            let before = fstatvfs(&mount).unwrap().f_flag;
            restrict_mount(&mount, attributes).unwrap();
            let known = Flags::RDONLY | Flags::NOSUID | Flags::NODEV | Flags::NOEXEC;
            let found = fstatvfs(&mount).unwrap().f_flag;
            assert_eq!(found & known, (before | expected) & known);
        }
    }

    /// Credentials for files belong to one thread and end with it.
    #[test]
    fn files_are_made_as_the_user_that_was_named() {
        if !crate::need::root("setfsuid") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let everyone = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), everyone).unwrap();
        let file = folder.path().join("file");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // That user may have no access to the folders above.
                let open = std::fs::File::open(folder.path()).unwrap();
                use_files_as(12345, 23456);
                let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::openat(&open, "file", flags, mode).unwrap();
            });
        });
        let about = std::fs::metadata(file).unwrap();
        assert_eq!((about.uid(), about.gid()), (12345, 23456));
    }
}
