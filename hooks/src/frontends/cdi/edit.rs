//! Turns CDI's container edits into edits. Of two nodes or mounts at a path, the later one counts.
//! The rule of `edits` keeps what the container has of its own.

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::FileType;

use crate::apply::namespace::params::{changed, PATH as PARAMS};
use crate::apply::spec::members::own_hook;
use crate::config::cdi::{ContainerEdits, DeviceNode, SpecFile};
use crate::error::{Error, Result};
use crate::frontends::cdi::CdiMatch;
use crate::frontends::cdi_hook::{parse, Verb};
use crate::host::files::PATH;
use crate::host::Host;
use crate::log::Note;
use crate::model::edits::paths::{clean, is_plain};
use crate::model::edits::{Access, Compat, DescribedMount, Device, Edits, Hook, Link, NetDevice};

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

// Turns hooks of specifications into edits, so that no process is started for them.
//
// Specifications that NVIDIA's tools write have such hooks, under the names `nvidia-cdi-hook` and
// `nvidia-ctk hook`. A hook that is not fully understood stays as it is.
//
// One of them sets `ModifyDeviceFiles: 0` in `/proc/driver/nvidia/params`, so that the driver's
// own programs make no device nodes in a container. A spec can't have that: runc refuses a mount
// below /proc. Our own hook puts the file there when /proc is mounted. It costs a process at each
// start, so a spec gets it only if the host's driver would let its programs make nodes. The front
// end `hook` does it itself.

/// The stage of these hooks.
const STAGE: &str = "createContainer";

/// Adds what the hook would do, or else the hook.
pub fn translate(hook: &Hook, host: &Host, edits: &mut Edits) -> Result<()> {
    if let Some(verb) = known(hook) {
        if add(&verb, host, edits)? {
            return Ok(());
        }
    }
    let mut hook = hook.clone();
    if hook.env.is_empty() {
        // Otherwise a runtime may pass the engine's or the container's environment on.
        hook.env.push(format!("PATH={PATH}"));
    }
    edits.hooks.push(hook);
    Ok(())
}

/// The command of a hook of NVIDIA's. `None`: it is another program's, or is not understood.
fn known(hook: &Hook) -> Option<Verb> {
    if hook.stage != STAGE {
        return None;
    }
    let program = hook.path.rsplit('/').next()?;
    let words = hook.args.get(1..)?;
    let words = match program {
        "nvidia-cdi-hook" => words,
        "nvidia-ctk" if words.first().is_some_and(|word| word == "hook") => &words[1..],
        _ => return None,
    };
    let words: Vec<_> = words.iter().map(Into::into).collect();
    parse(&words).ok().map(|(verb, _)| verb)
}

/// Adds the edits of a command. False: the hook has to stay.
fn add(verb: &Verb, host: &Host, edits: &mut Edits) -> Result<bool> {
    match verb {
        Verb::CreateSymlinks(links) => Ok(add_links(links, edits)),
        Verb::UpdateLdcache(folders) => Ok(add_folders(folders, edits)),
        Verb::EnableCudaCompat(compat) => {
            let folder = clean(&compat.folder).into_owned();
            let fit = is_plain(&folder);
            if fit {
                edits.compat.push(Compat { folder, ..compat.clone() });
            }
            Ok(fit)
        }
        Verb::DisableDeviceNodeModification => {
            edits.hooks.extend(params_edit(host)?);
            Ok(true)
        }
        // The specification may name NVIDIA's own program, which does more.
        Verb::CreateDirectories(_)
        | Verb::Chmod { .. }
        | Verb::UpdateApplicationProfile
        | Verb::Unsupported(_) => Ok(false),
    }
}

/// False: a path has no plain form.
fn add_links(links: &[Link], edits: &mut Edits) -> bool {
    let plain = |link: &Link| Link { path: clean(&link.path).into_owned(), ..link.clone() };
    let links: Vec<_> = links.iter().map(plain).collect();
    let fit = links.iter().all(|link| is_plain(&link.path));
    for link in links.into_iter().filter(|_| fit) {
        edits.links.retain(|other| other.path != link.path);
        edits.links.push(link);
    }
    fit
}

/// False: a path has no plain form.
fn add_folders(folders: &[String], edits: &mut Edits) -> bool {
    let folders: Vec<String> = folders.iter().map(|f| clean(f).into_owned()).collect();
    let fit = folders.iter().all(|folder| is_plain(folder));
    if fit {
        edits.library_folders.extend(folders);
        edits.library_folders.sort();
        edits.library_folders.dedup();
    }
    fit
}

/// The hook for the driver's settings, if a container of this host needs it. `None`: there is no
/// such driver, or its programs make no nodes anyway. Errors: the path of this program can't be
/// found.
pub fn params_edit(host: &Host) -> Result<Option<Hook>> {
    let text = host.text_of_kernel(PARAMS).unwrap_or_default();
    if changed(&text).is_none() {
        return Ok(None);
    }
    let words = ["nvidia-cdi-hook", "disable-device-node-modification"];
    let words = words.iter().map(|&word| word.to_owned()).collect();
    own_hook("createContainer", words).map(Some)
}
