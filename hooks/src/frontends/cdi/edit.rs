//! From the words of CDI to edits. Among specifications, the later of two nodes or mounts at a
//! path counts; what the container has of its own is for the rule of `edits` to keep.

use std::path::Path;

use rustix::fs::FileType;

use super::registry::Found;
use super::translate::translate;
use crate::config::cdi::folder::SpecFile;
use crate::config::cdi::{ContainerEdits, DeviceNode};
use crate::discover::host::Host;
use crate::edits::paths::clean;
use crate::edits::{Access, DescribedMount, Device, Edits, Link};
use crate::error::{Error, Result};
use crate::log::Note;

/// What a runtime gives a node where a specification doesn't say it.
const DEFAULT_MODE: u32 = 0o666;

/// Edits as they grow.
pub struct Composer<'a> {
    host: &'a Host,
    edits: Edits,
    /// Files whose common part is in.
    begun: Vec<&'a Path>,
    pub notes: Vec<Note>,
}

impl<'a> Composer<'a> {
    pub fn new(host: &'a Host) -> Self {
        Self {
            host,
            edits: Edits::default(),
            begun: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a device, and before the first of its specification what all of its devices bring.
    pub fn add(&mut self, found: &Found<'a>) -> Result<()> {
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
        let is_new = !self.begun.contains(&file.path.as_path());
        self.begun.push(&file.path);
        is_new
    }

    /// All of it, mounts in an order in which none hides another.
    pub fn finish(&mut self) -> Edits {
        let mut edits = std::mem::take(&mut self.edits);
        edits
            .described
            .sort_by_key(|mount| mount.target.matches('/').count());
        edits
    }

    fn add_edits(&mut self, given: &ContainerEdits) -> Result<()> {
        for node in &given.nodes {
            let device = self.device(node)?;
            self.edits.devices.retain(|d| d.path != device.path);
            self.edits.devices.push(device);
        }
        for mount in &given.mounts {
            let mount = self.mount(mount)?;
            self.edits.described.retain(|m| m.target != mount.target);
            self.edits.described.push(mount);
        }
        let mut more = Edits {
            environment: given.env.clone(),
            groups: given
                .groups
                .iter()
                .copied()
                .filter(|group| *group != 0)
                .collect(),
            net_devices: given.net_devices.clone(),
            intel_rdt: given.rdt.as_ref().map(|rdt| rdt.json.clone()),
            ..Edits::default()
        };
        for hook in &given.hooks {
            translate(hook, self.host, &mut more)?;
        }
        let hosts: Vec<&str> = more.net_devices.iter().map(|d| d.host.as_str()).collect();
        self.edits
            .net_devices
            .retain(|d| !hosts.contains(&d.host.as_str()));
        let is_new = |link: &Link| !more.links.iter().any(|new| new.path == link.path);
        self.edits.links.retain(is_new);
        self.edits.append(more);
        Ok(())
    }

    fn device(&self, node: &DeviceNode) -> Result<Device> {
        let source = node.host_path.as_deref().unwrap_or(&node.path);
        let stated = match node.kind {
            // An unbuffered device is a character device by another name.
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

    /// Where the node lies. One whose numbers are stated can be made without a node of the host.
    fn source(&self, path: &str) -> Result<String> {
        match self.host.real(path) {
            Err(rustix::io::Errno::NOENT) if !self.host.is_there(path) => {
                Ok(self.host.on_host(path))
            }
            found => found.map_err(|e| missing("device", path, e)),
        }
    }

    /// What the host has there now: numbers differ from one boot to the next.
    fn look_up(&self, path: &str) -> Result<(char, u32, u32)> {
        let stat = self
            .host
            .stat(path)
            .map_err(|e| missing("device", path, e))?;
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
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
        // A runtime's own words for it name neither the device nor the specification.
        let is_there = self.host.stat(&given.source);
        let real = is_there.and_then(|_| self.host.real(&given.source));
        mount.source = real.map_err(|e| missing("file", &given.source, e))?;
        if !mount
            .options
            .iter()
            .any(|option| matches!(option.as_str(), "bind" | "rbind"))
        {
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
