//! Applies edits to a container whose namespaces and mounts exist already, by descriptors.

pub mod cgroup;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustc_hash::FxHashMap;
use rustix::fs::{fstat, makedev, mknodat, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, CWD};
use rustix::io::Errno;
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};

use crate::error::{Error, Result};
use crate::host::rootfs::{is_same, open_regular, read_lossy, Root, Rootfs};
use crate::log::{Level, Note};
use crate::model::edits::{
    split, variable_name, Attribute, Device, Edits, Settled, DEVICE_MOUNT, FILE_MOUNT,
};

/// Opened files by their sources. Each can be mounted once.
type BySource = FxHashMap<String, Vec<Opened>>;

/// The files and nodes of the host that a container may get, opened before its namespace is joined.
#[derive(Debug, Default)]
pub struct DetachedMounts {
    mounts: BySource,
    /// Nodes to mount, for containers in which nodes that we make would not work: in a user
    /// namespace, the kernel opens no device through them.
    nodes: Option<BySource>,
}

impl DetachedMounts {
    /// `mounts_nodes`: see [`Self::nodes`].
    /// Errors: a file or node of the host can't be opened for a mount.
    pub fn open(edits: &Edits, mounts_nodes: bool) -> Result<Self> {
        let mounts = open_all(edits.mounts.iter().map(|mount| &mount.source), FILE_MOUNT)?;
        let nodes = edits.devices.iter().map(|device| &device.source);
        let nodes = mounts_nodes.then(|| open_all(nodes, DEVICE_MOUNT)).transpose()?;
        Ok(Self { mounts, nodes })
    }

    /// Puts the settled edits into the container. Notes: existing mounts that the container's
    /// configuration does not have, which stay. Errors: something can't be mounted or made.
    pub fn put_into(mut self, rootfs: &Rootfs, edits: &Settled) -> Result<Vec<Note>> {
        let mut notes = Vec::new();
        for mount in &edits.mounts {
            notes.extend(attach(&mut self.mounts, rootfs, &mount.source, &mount.target)?);
        }
        notes.extend(left_out(edits));
        for device in &edits.devices {
            match &mut self.nodes {
                None => make_node(rootfs, device)?,
                Some(opened) => notes.extend(attach(opened, rootfs, &device.source, &device.path)?),
            }
        }
        Ok(notes)
    }
}

/// A warning about edits that only a spec can have: the container's process and its hooks are made
/// from it already.
fn left_out(edits: &Settled) -> Option<Note> {
    let mut what = Vec::new();
    let names = edits.environment.iter().map(|entry| variable_name(entry));
    let names: Vec<&str> = names.chain(edits.unset.iter().map(String::as_str)).collect();
    if !names.is_empty() {
        what.push(format!("the variables {}", names.join(", ")));
    }
    if !edits.groups.is_empty() {
        let groups: Vec<_> = edits.groups.iter().map(ToString::to_string).collect();
        what.push(format!("the groups {}", groups.join(", ")));
    }
    (!what.is_empty()).then(|| {
        let message = format!(
            "a hook comes too late for {}: use oci-decorator-runtime, which edits the spec",
            what.join(", ")
        );
        Note::new(Level::Warning, message)
    })
}

fn open_all<'s>(
    sources: impl Iterator<Item = &'s String>,
    attributes: &[Attribute],
) -> Result<BySource> {
    let mut all = BySource::default();
    for source in sources {
        all.entry(source.clone()).or_default().push(Opened::open(source, attributes)?);
    }
    Ok(all)
}

/// Makes a device node. What is already at its path stays, node or not: the engine put it there.
/// Errors: the node can't be made.
fn make_node(rootfs: &Rootfs, device: &Device) -> Result<()> {
    try_make_node(rootfs, device).map_err(|error| {
        let path = &device.path;
        Error::failed(format!("can't make {path} in the container: {error}"))
    })
}

fn try_make_node(rootfs: &Rootfs, device: &Device) -> rustix::io::Result<()> {
    let (root, path) = rootfs.writer(&device.path);
    let (folder, name) = split(path).ok_or(Errno::INVAL)?;
    let folder = root.make_folder(folder)?;
    let kind = match device.kind {
        'b' => FileType::BlockDevice,
        _ => FileType::CharacterDevice,
    };
    // The mode is exactly the host's, because the hook has cleared the umask.
    let mode = Mode::from_raw_mode(device.mode);
    let numbers = makedev(device.major, device.minor);
    match mknodat(&folder, name, kind, mode, numbers) {
        Err(Errno::EXIST) => return Ok(()),
        other => other?,
    }
    // The spec has the process's user, but it is not read here.
    let (owner, group) = (device.uid.unwrap_or(0), device.gid.unwrap_or(0));
    let (owner, group) = (Uid::from_raw(owner), Gid::from_raw(group));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(&folder, name, Some(owner), Some(group), flags)
}

fn attach(
    opened: &mut BySource,
    rootfs: &Rootfs,
    source: &str,
    target: &str,
) -> Result<Option<Note>> {
    let one = opened.get_mut(source).and_then(Vec::pop);
    one.map_or(Ok(None), |one| one.attach(rootfs, target)).map_err(|error| fail(target, error))
}

/// File systems of the kernel. No file of a driver belongs there.
const KERNELS: [rustix::fs::FsWord; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];

/// A file or folder of the host that is not mounted yet.
#[derive(Debug)]
pub struct Opened {
    mount: OwnedFd,
    stat: Stat,
}

impl Opened {
    /// Opens a file or node to mount it. Errors: it does not exist, or may not be mounted.
    fn open(source: &str, attributes: &[Attribute]) -> Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let opened = open_tree(CWD, source, flags).and_then(|mount| {
            restrict_mount(&mount, attributes)?;
            Ok(Self { stat: fstat(&mount)?, mount })
        });
        opened.map_err(|error| {
            let failed = Error::failed(format!("can't open {source} for a mount: {error}"));
            match error {
                Errno::NOSYS => {
                    failed.resolve("the hook needs Linux 5.12; use oci-decorator-runtime")
                }
                _ => failed,
            }
        })
    }

    /// Mounts the file at the path, which is made in the image if it is missing. A mount that is
    /// there already stays, with a note unless it is the same file.
    fn attach(&self, rootfs: &Rootfs, path: &str) -> rustix::io::Result<Option<Note>> {
        let (root, within) = rootfs.writer(path);
        let place = fstat(place(root, within, self.kind())?)?;
        // The container's own mounts hide the path: nothing is mounted over them.
        let Ok(seen) = rootfs.mounted.open_plain(path, OFlags::PATH) else {
            return Ok(Some(covered(path)));
        };
        let stat = fstat(&seen)?;
        if is_same(&stat, &self.stat) {
            return Ok(None);
        }
        if !is_same(&stat, &place) {
            return Ok(Some(covered(path)));
        }
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&self.mount, "", &seen, "", flags)?;
        Ok(None)
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

fn covered(path: &str) -> Note {
    let message = format!("the mount at {path} in the container stays as it is");
    Note::new(Level::Warning, message)
}

fn fail(path: &str, error: Errno) -> Error {
    let why = match error {
        Errno::ISDIR => "the image has a folder there",
        Errno::NOTDIR => "the image has a file in its path",
        Errno::LOOP => "the image has a link there that leads nowhere",
        Errno::PERM => "the image leads it into /proc or /sys",
        Errno::ROFS => "the container's root is read-only, and has no such file to mount over",
        other => return Error::failed(format!("can't mount {path} in the container: {other}")),
    };
    Error::failed(format!("can't mount {path} in the container: {why}"))
}

/// The mount point: what the image has at the path, or what is made there. Links are followed
/// within the image. Errors: `ISDIR`, `NOTDIR` if another kind of file is there, `LOOP` for a link
/// that leads nowhere, `PERM` if the path leads into a file system of the kernel.
fn place(root: &Root, path: &str, kind: FileType) -> rustix::io::Result<OwnedFd> {
    let is_folder = kind == FileType::Directory;
    let found = match root.open_in(path, OFlags::PATH) {
        Err(Errno::NOENT) if is_folder => root.make_folder(path)?,
        Err(Errno::NOENT) => root.make_file(path)?,
        other => other?,
    };
    let there = FileType::from_raw_mode(fstat(&found)?.st_mode);
    if KERNELS.contains(&rustix::fs::fstatfs(&found)?.f_type) {
        return Err(Errno::PERM);
    }
    match (there == FileType::Directory, is_folder) {
        (true, false) => Err(Errno::ISDIR),
        (false, true) => Err(Errno::NOTDIR),
        _ => Ok(found),
    }
}

/// The inode of the user namespace that a host starts with: linux/nsfs.h, `USER_NS_INIT_INO`.
const HOSTS_USERS: u64 = 0xEFFF_FFFD;

/// A process with open namespaces. All parts belong to the same process, which was still alive
/// after the last one was opened.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    mounts: OwnedFd,
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
        let mounts = open_of(pid, "ns/mnt")?;
        let users = open_of(pid, "ns/user")?;
        let cgroups = read_lossy(format!("/proc/{pid}/cgroup", pid = raw(pid)))
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

fn open_of(pid: Pid, name: &str) -> Result<OwnedFd> {
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

// Covers `/proc/driver/nvidia/params` in a container with a file that has `ModifyDeviceFiles: 0`,
// so that the driver's own programs make no device nodes there.
//
// The file lies in its own file system in memory. The kernel only clones a mount of a file system
// that is mounted. So this one is mounted over the folder first, while no process of the container
// exists, and unmounted when the clone is made.

/// The file in which the driver shows its settings.
pub const PARAMS: &str = "/proc/driver/nvidia/params";
const SETTING: &str = "ModifyDeviceFiles:";
/// A hundred times the size of the driver's file.
const MAX_SIZE: u64 = 1 << 16;
const PARAMS_NAME: &str = "params";

/// Shows the container settings with which the driver's programs make no nodes. Does nothing if
/// there are no settings, or if they say so already. Errors: the file can't be put there.
pub fn mask_modify_device_files(rootfs: &Rootfs) -> Result<()> {
    let fail = |e: Errno| {
        Error::failed(format!("can't change {PARAMS} in the container: {e}"))
            .resolve("it needs Linux 5.12, and the rights of the runtime; `nvidia-ctk cdi generate --disable-hook=disable-device-node-modification` leaves it out of a specification")
    };
    try_mask(rootfs).map_err(fail)
}

fn try_mask(rootfs: &Rootfs) -> rustix::io::Result<()> {
    let found = match rootfs.mounted.open_plain(PARAMS, OFlags::PATH) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        other => other?,
    };
    // If the file lies on another file system than /proc, it is covered already.
    let proc = rootfs.mounted.open_plain("/proc", OFlags::PATH | OFlags::DIRECTORY)?;
    if fstat(&found)?.st_dev != fstat(&proc)?.st_dev {
        return Ok(());
    }
    let Some(new) = masked(&read_params(&found)?) else {
        return Ok(());
    };
    let folder = PARAMS.trim_end_matches(PARAMS_NAME).trim_end_matches('/');
    let folder = rootfs.mounted.open_plain(folder, OFlags::PATH | OFlags::DIRECTORY)?;
    let file = file_mount(&folder, new.as_bytes())?;
    move_to(&file, &found)
}

/// Reads a file of /proc, whose size is unknown.
fn read_params(found: &OwnedFd) -> rustix::io::Result<String> {
    let to_errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let (file, _) = open_regular(found)?;
    let mut text = String::new();
    let mut file = File::from(file).take(MAX_SIZE);
    file.read_to_string(&mut text).map_err(to_errno)?;
    Ok(text)
}

fn file_mount(folder: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", "64k")?;
    fsconfig_set_string(context.as_fd(), "mode", "755")?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let permissions = Mode::from_raw_mode(0o444);
    let file = rustix::fs::openat(&memory, PARAMS_NAME, flags, permissions)?;
    let written = File::from(file).write_all(bytes);
    written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    move_to(&memory, folder)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let clone = open_tree(&memory, PARAMS_NAME, flags);
    // Named by its descriptor, as the path may lead elsewhere.
    let own = format!("/proc/self/fd/{}", memory.as_raw_fd());
    unmount(own, UnmountFlags::DETACH)?;
    let clone = clone?;
    restrict_mount(&clone, FILE_MOUNT)?;
    Ok(clone)
}

fn move_to(mount: &OwnedFd, place: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags)
}

/// The settings with `ModifyDeviceFiles` off. `None`: it is off already, or missing.
pub fn masked(text: &str) -> Option<String> {
    let is_on = |line: &str| {
        let value = line.strip_prefix(SETTING);
        value.is_some_and(|value| value.trim() != "0")
    };
    if !text.lines().any(is_on) {
        return None;
    }
    let mut new = String::with_capacity(text.len() + 2);
    for line in text.lines() {
        if is_on(line) {
            new.push_str(SETTING);
            new.push_str(" 0");
        } else {
            new.push_str(line);
        }
        new.push('\n');
    }
    Some(new)
}

/// From now on, this thread opens and creates files as this user and group.
#[allow(unsafe_code)]
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
#[allow(unsafe_code)]
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

pub(super) fn checked(result: libc::c_long) -> rustix::io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

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
