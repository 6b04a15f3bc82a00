//! Turns CDI's container edits into edits. Of two nodes or mounts at a path, the later one counts.
//! The rule of `edits` keeps what the container has of its own.

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::FileType;

use super::registry::CdiMatch;
use super::translate::translate;
use crate::config::cdi::folder::SpecFile;
use crate::config::cdi::{ContainerEdits, DeviceNode};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::log::Note;
use crate::model::edits::paths::clean;
use crate::model::edits::{Access, DescribedMount, Device, Edits, Link, NetDevice};

/// The mode of a node whose specification does not have one, as runtimes set it.
const DEFAULT_MODE: u32 = 0o666;

/// Edits that are being composed.
pub struct CdiEditBuilder<'a> {
    host: &'a Host,
    /// The other edits, as often as specifications have them.
    more: Edits,
    devices: LastWins<Device>,
    mounts: LastWins<DescribedMount>,
    links: LastWins<Link>,
    net_devices: LastWins<NetDevice>,
    /// Files whose common edits are included.
    begun: FxHashSet<&'a Path>,
    pub notes: Vec<Note>,
}

/// Keeps the last item of each key, in its position. A specification may have thousands.
struct LastWins<T> {
    items: Vec<Option<T>>,
    places: FxHashMap<String, usize>,
}

impl<T> LastWins<T> {
    fn new() -> Self {
        let (items, places) = (Vec::new(), FxHashMap::default());
        Self { items, places }
    }

    fn put(&mut self, key: String, item: T) {
        if let Some(before) = self.places.insert(key, self.items.len()) {
            self.items[before] = None;
        }
        self.items.push(Some(item));
    }

    fn take(&mut self) -> Vec<T> {
        self.places.clear();
        self.items.drain(..).flatten().collect()
    }
}

impl<'a> CdiEditBuilder<'a> {
    pub fn new(host: &'a Host) -> Self {
        Self {
            host,
            more: Edits::default(),
            devices: LastWins::new(),
            mounts: LastWins::new(),
            links: LastWins::new(),
            net_devices: LastWins::new(),
            begun: FxHashSet::default(),
            notes: Vec::new(),
        }
    }

    /// Adds a device. The common edits of a specification come before its first device.
    pub fn add(&mut self, found: &CdiMatch<'a>) -> Result<()> {
        let name = format!("{}={}", found.document.kind, found.device.name);
        let fail = |error: Error| Error {
            message: format!("{name} ({}): {}", found.file.path.display(), error.message),
            ..error
        };
        if self.begin(found.file) {
            self.add_edits(&found.document.edits).map_err(fail)?;
        }
        self.add_edits(&found.device.edits).map_err(fail)
    }

    fn begin(&mut self, file: &'a SpecFile) -> bool {
        self.begun.insert(&file.path)
    }

    /// The result, with mounts in an order in which none hides another.
    pub fn finish(&mut self) -> Edits {
        let mut edits = Edits::default();
        edits.append(std::mem::take(&mut self.more));
        edits.devices = self.devices.take();
        edits.described = self.mounts.take();
        edits.links = self.links.take();
        edits.net_devices = self.net_devices.take();
        let depth = |mount: &DescribedMount| mount.target.matches('/').count();
        edits.described.sort_by_cached_key(depth);
        edits
    }

    fn add_edits(&mut self, given: &ContainerEdits) -> Result<()> {
        for node in &given.nodes {
            let device = self.device(node)?;
            self.devices.put(device.path.clone(), device);
        }
        for mount in &given.mounts {
            let mount = self.mount(mount)?;
            self.mounts.put(mount.target.clone(), mount);
        }
        let groups = given.groups.iter().copied().filter(|group| *group != 0);
        self.more.groups.extend(groups);
        self.more.environment.extend(given.env.iter().cloned());
        if let Some(rdt) = &given.rdt {
            self.more.intel_rdt = Some(rdt.json.clone());
        }
        for hook in &given.hooks {
            translate(hook, self.host, &mut self.more)?;
        }
        for device in &given.net_devices {
            self.net_devices.put(device.host.clone(), device.clone());
        }
        for link in std::mem::take(&mut self.more.links) {
            self.links.put(link.path.clone(), link);
        }
        Ok(())
    }

    fn device(&self, node: &DeviceNode) -> Result<Device> {
        let source = node.host_path.as_deref().unwrap_or(&node.path);
        let stated = match node.kind {
            // An unbuffered device is another name for a character device.
            Some('u') => Some('c'),
            other => other,
        };
        let (kind, major, minor) = match (stated, node.major) {
            (Some('p'), _) => ('p', 0, 0),
            (Some(kind), Some(major)) if major != 0 => (kind, major, node.minor.unwrap_or(0)),
            _ => {
                let (kind, major, minor) = self.look_up(source)?;
                if stated.is_some_and(|stated| stated != kind) {
                    return Err(Error::failed(format!(
                        "the specification says that {source} is of the type {}, and it is of the type {kind}",
                        stated.unwrap_or(kind)
                    ))
                    .resolve("write the specification again with the tool that made it"));
                }
                (kind, major, minor)
            }
        };
        let access = match node.permissions.as_deref() {
            None => Access::ALL,
            Some(letters) => Access::parse(letters).unwrap_or(Access::NONE),
        };
        Ok(Device {
            source: self.source(source)?,
            path: clean(&node.path).into_owned(),
            kind,
            major,
            minor,
            mode: node.mode.unwrap_or(DEFAULT_MODE),
            uid: node.uid,
            gid: node.gid,
            access,
        })
    }

    /// The path of the node on the host. If the numbers are stated, the host does not need the
    /// node.
    fn source(&self, path: &str) -> Result<String> {
        match self.host.real(path) {
            Err(rustix::io::Errno::NOENT) if !self.host.is_there(path) => {
                Ok(self.host.on_host(path))
            }
            found => found.map_err(|e| missing("device", path, e)),
        }
    }

    /// The node on the host, because its numbers change from one boot to the next.
    fn look_up(&self, path: &str) -> Result<(char, u32, u32)> {
        let stat = self.host.stat(path).map_err(|e| missing("device", path, e))?;
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => Ok(('c', major, minor)),
            FileType::BlockDevice => Ok(('b', major, minor)),
            FileType::Fifo => Ok(('p', 0, 0)),
            _ => Err(Error::failed(format!("{path} is not a device node"))),
        }
    }

    fn mount(&self, given: &DescribedMount) -> Result<DescribedMount> {
        let mut mount = given.clone();
        mount.target = clean(&given.target).into_owned();
        if !matches!(given.kind.as_str(), "" | "bind") {
            return Ok(mount);
        }
        // A runtime's own message would name neither the device nor the specification.
        let is_there = self.host.stat(&given.source);
        let real = is_there.and_then(|_| self.host.real(&given.source));
        mount.source = real.map_err(|e| missing("file", &given.source, e))?;
        if !mount.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind")) {
            mount.options.insert(0, "bind".to_owned());
        }
        Ok(mount)
    }
}

fn missing(what: &str, path: &str, error: rustix::io::Errno) -> Error {
    let why = match error {
        rustix::io::Errno::NOENT => format!("the host has no such {what}"),
        other => other.to_string(),
    };
    Error::not_found(format!("{path}: {why}")).resolve(
        "the specification may be older than the driver: write it again, as `oci-decorator cdi generate` or the vendor's own tool does",
    )
}
