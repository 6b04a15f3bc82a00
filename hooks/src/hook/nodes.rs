//! Device nodes in a container.

use rustix::fs::{makedev, mknodat, AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;

use super::process::Process;
use super::targets::{exists, Tree};
use crate::edits::Device;
use crate::error::{Error, Result};
use crate::inroot::{split, Root};

/// Nodes that are to be made, or mounted where a node that we made would not work:
/// in a user namespace the kernel opens no device by it.
#[derive(Debug, Default)]
pub struct Nodes {
    made: Vec<Device>,
    mounted: Vec<Tree>,
}

impl Nodes {
    /// Errors: a node of the host can't be opened for a mount.
    pub fn open(devices: &[Device], process: &Process) -> Result<Self> {
        if process.root.is_none() && !process.is_rootless() {
            return Ok(Self {
                made: devices.to_vec(),
                mounted: Vec::new(),
            });
        }
        let mounted = devices
            .iter()
            .map(|device| Tree::open_device(&device.source, &device.path));
        Ok(Self {
            made: Vec::new(),
            mounted: mounted.collect::<Result<_>>()?,
        })
    }

    /// Errors: a node can't be made.
    pub fn make(&self, root: &Root) -> Result<()> {
        for device in &self.made {
            make(root, device).map_err(|error| {
                let path = &device.path;
                Error::failed(format!("can't make {path} in the container: {error}"))
            })?;
        }
        self.mounted.iter().try_for_each(|tree| tree.attach(root))
    }
}

/// What is there already, node or not, stays: the engine put it there.
fn make(root: &Root, device: &Device) -> rustix::io::Result<()> {
    let (folder, name) = split(&device.path).ok_or(Errno::INVAL)?;
    let folder = root.make_folder(folder)?;
    if exists(&folder, name).is_some() {
        return Ok(());
    }
    let kind = match device.kind {
        'b' => FileType::BlockDevice,
        _ => FileType::CharacterDevice,
    };
    let mode = Mode::from_raw_mode(device.mode);
    // The mode is the host's to the bit: `run` has set the umask to nothing.
    match mknodat(
        &folder,
        name,
        kind,
        mode,
        makedev(device.major, device.minor),
    ) {
        Err(Errno::EXIST) => return Ok(()),
        other => other?,
    }
    let (owner, group) = (Uid::from_raw(device.uid), Gid::from_raw(device.gid));
    rustix::fs::chownat(
        &folder,
        name,
        Some(owner),
        Some(group),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}
