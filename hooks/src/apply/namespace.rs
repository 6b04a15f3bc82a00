//! Applies edits to a container whose namespaces and mounts exist already, by descriptors.

pub mod cgroup;
mod device_filter;
mod mounts;
pub mod params;
pub mod process;

use rustc_hash::FxHashMap;
use rustix::fs::{makedev, mknodat, AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::rootfs::Rootfs;
use crate::log::level::Level;
use crate::log::Note;
use crate::model::edits::paths::split;
use crate::model::edits::{variable_name, Device, Edits, Settled};

use mounts::Opened;

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
        let mut mounts = BySource::default();
        for mount in &edits.mounts {
            let opened = Opened::file(mount)?;
            mounts.entry(mount.source.clone()).or_default().push(opened);
        }
        let nodes = mounts_nodes.then(|| open_nodes(&edits.devices));
        let nodes = nodes.transpose()?;
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
    let rest = &edits.rest;
    let mut what = Vec::new();
    let names = rest.environment.iter().map(|entry| variable_name(entry));
    let names: Vec<&str> = names.chain(rest.unset.iter().map(String::as_str)).collect();
    if !names.is_empty() {
        what.push(format!("the variables {}", names.join(", ")));
    }
    if !rest.groups.is_empty() {
        let groups: Vec<_> = rest.groups.iter().map(ToString::to_string).collect();
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

fn open_nodes(devices: &[Device]) -> Result<BySource> {
    let mut nodes = BySource::default();
    for device in devices {
        let opened = Opened::device(device)?;
        nodes.entry(device.source.clone()).or_default().push(opened);
    }
    Ok(nodes)
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
