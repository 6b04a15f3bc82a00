//! Applies edits to a container whose namespaces and mounts exist already, by descriptors.

pub mod cgroup;
mod device_filter;
pub mod params;
pub mod process;

use std::os::fd::OwnedFd;

use rustc_hash::FxHashMap;
use rustix::fs::{fstat, makedev, mknodat, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, CWD};
use rustix::io::Errno;
use rustix::mount::{move_mount, open_tree, MoveMountFlags, OpenTreeFlags};

use crate::error::{Error, Result};
use crate::host::rootfs::{is_same, Root, Rootfs};
use crate::host::syscalls::restrict_mount;
use crate::log::{Level, Note};
use crate::model::edits::paths::split;
use crate::model::edits::{
    variable_name, Attribute, Device, Edits, Settled, DEVICE_MOUNT, FILE_MOUNT,
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
    one.map_or(Ok(None), |one| one.attach(rootfs, target))
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
    pub fn attach(self, rootfs: &Rootfs, path: &str) -> Result<Option<Note>> {
        self.try_attach(rootfs, path).map_err(|error| fail(path, error))
    }

    fn try_attach(&self, rootfs: &Rootfs, path: &str) -> rustix::io::Result<Option<Note>> {
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
