//! The front end for CDI devices that a container names: reads the specifications of the host and
//! turns their edits for these devices into ours.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! For a container that names no device, no file is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::FileType;

use crate::apply::namespace::{masked, PARAMS};
use crate::config::cdi::{
    read_folders, ContainerEdits, DeviceNode, Document, NamedDevice, SpecFile,
};
use crate::config::reader::qualified;
use crate::error::{Error, Result};
use crate::frontends::cdi_hook::{parse, Verb};
use crate::host::files::PATH;
use crate::host::{numbers, own_hook, Host};
use crate::log::{brief, Level, Note};
use crate::model::edits::{
    clean, is_plain, Access, Compat, DescribedMount, Device, Edits, Hook, Link,
};
use crate::model::vendor::summary;

pub use crate::config::cdi::DEFAULT_FOLDERS;

/// At most this many unknown names are reported.
const SAID: usize = 5;

/// The edits of the named devices, from the specifications in these folders of the host; a later
/// folder overrides an earlier one. Notes: broken files that no name needs. Errors: a device is
/// unknown; then the container gets nothing.
pub fn edits(names: &[String], folders: &[PathBuf], host: &Host) -> Result<(Edits, Vec<Note>)> {
    if names.is_empty() {
        return Ok((Edits::default(), Vec::new()));
    }
    let files = read(folders, host)?;
    let searched = folders.iter().map(|f| host.on_host(&f.to_string_lossy()));
    let searched: Vec<PathBuf> = searched.map(PathBuf::from).collect();
    let registry = Registry::new(&files, &searched);
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    let mut known: BTreeSet<&String> = BTreeSet::new();
    for name in names.iter().filter(|name| known.insert(name)) {
        match registry.find(name) {
            Ok(device) => found.push(device),
            Err(error) => unknown.push(error),
        }
    }
    if let Some(error) = together(unknown) {
        return Err(error);
    }
    let edits = compose(&found, host)?;
    edits.validate()?;
    Ok((edits, files.iter().filter_map(ignored).collect()))
}

/// Reads the specifications below a host's root.
pub fn read(folders: &[PathBuf], host: &Host) -> Result<Vec<SpecFile>> {
    let folders: Vec<Option<PathBuf>> = folders.iter().map(|f| host.folder(f)).collect();
    read_folders(&folders)
}

/// A warning about a broken file that no name needs.
fn ignored(file: &SpecFile) -> Option<Note> {
    let broken = file.content.as_ref().err()?;
    let message = format!(
        "{} can't be used and is ignored: {}",
        file.path.display(),
        summary(&broken.mistakes)
    );
    Some(Note::new(Level::Warning, message))
}

/// One error for all unknown names.
fn together(mut errors: Vec<Error>) -> Option<Error> {
    if errors.len() < 2 {
        return errors.pop();
    }
    let messages = errors.iter().take(SAID);
    let messages: Vec<_> = messages.map(|error| error.message.as_str()).collect();
    let more = match errors.len() - messages.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(Error { message: format!("{}{more}", messages.join("; ")), ..errors[0].clone() })
}

/// The devices in the specifications of a host.
#[derive(Debug)]
pub struct Registry<'a> {
    files: &'a [SpecFile],
    folders: &'a [PathBuf],
    /// Every device by its kind and name, in a map because a container may name thousands, in the files
    /// of the folder that overrides the others.
    places: FxHashMap<(&'a str, &'a str), Vec<CdiMatch<'a>>>,
}

#[derive(Debug, Clone, Copy)]
pub struct CdiMatch<'a> {
    pub file: &'a SpecFile,
    pub document: &'a Document,
    pub device: &'a NamedDevice,
}

impl<'a> Registry<'a> {
    pub fn new(files: &'a [SpecFile], folders: &'a [PathBuf]) -> Self {
        let mut places: FxHashMap<_, Vec<CdiMatch>> = FxHashMap::default();
        for file in files {
            let Ok(document) = &file.content else {
                continue;
            };
            for device in &document.devices {
                let key = (document.kind.as_str(), device.name.as_str());
                let found = places.entry(key).or_default();
                found.retain(|other| other.file.priority >= file.priority);
                found.push(CdiMatch { file, document, device });
            }
        }
        Self { files, folders, places }
    }

    /// Finds a device. Errors: no specification has it, several of one folder have it, or a
    /// specification that may have it can't be used.
    pub fn find(&self, name: &str) -> Result<CdiMatch<'a>> {
        let Some(wanted) = qualified(name) else {
            return Err(Error::usage(format!("{:?} is not the name of a CDI device", brief(name)))
                .resolve("write it like vendor.com/class=device"));
        };
        // A broken file of this kind may have the device, or override another file.
        self.refuse_broken(name, |kind| kind == Some(wanted.0))?;
        match self.places.get(&wanted).map(Vec::as_slice).unwrap_or_default() {
            [found] => Ok(*found),
            [one, other, ..] => Err(conflict(name, one.file, other.file)),
            [] => {
                self.refuse_broken(name, |kind| kind.is_none())?;
                Err(self.unknown(name))
            }
        }
    }

    /// Every device that a container can name, sorted by name, with the files of one folder that have
    /// it: with several, no container gets it.
    pub fn list(&self) -> BTreeMap<String, Vec<String>> {
        let listed = self.places.iter().map(|((kind, device), found)| {
            let files = found.iter().map(|it| it.file.path.display().to_string());
            (format!("{kind}={device}"), files.collect())
        });
        listed.collect()
    }

    fn refuse_broken(&self, name: &str, is_its: impl Fn(Option<&str>) -> bool) -> Result<()> {
        for file in self.files {
            if let Err(broken) = &file.content {
                if is_its(broken.kind.as_deref()) {
                    let path = file.path.display();
                    let name = brief(name);
                    return Err(Error::usage(format!(
                        "{name} is asked for, but {path} can't be used: {}",
                        summary(&broken.mistakes)
                    ))
                    .resolve("correct the file, or remove it; `oci-decorator cdi list` names every mistake"));
                }
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Error {
        let folders = self.folders.iter().map(|it| it.display().to_string());
        let folders = folders.collect::<Vec<_>>().join(", ");
        Error::not_found(format!(
            "no CDI specification in {folders} has the device {}",
            brief(name)
        ))
        .resolve("`oci-decorator cdi list` shows every device; `oci-decorator cdi generate --output /etc/cdi/NAME.json` or the vendor's own tool writes a specification")
    }
}

fn conflict(name: &str, one: &SpecFile, other: &SpecFile) -> Error {
    let (one, other) = (one.path.display(), other.path.display());
    Error::usage(format!("{name} is in {one} and in {other}: neither counts"))
        .resolve("remove one of the files, or its device")
}

/// The mode of a node whose specification does not have one, as runtimes set it.
const DEFAULT_MODE: u32 = 0o666;

/// Leaves the last item of each key, in its position. A specification may have thousands.
fn last_of_each<T>(mut items: Vec<T>, key: impl Fn(&T) -> &String) -> Vec<T> {
    let mut seen: FxHashSet<String> = FxHashSet::default();
    items.reverse();
    items.retain(|item| seen.insert(key(item).clone()));
    items.reverse();
    items
}

/// The edits of devices, with mounts in an order in which none hides another. The common edits of a
/// specification come once, before its first device.
pub fn compose(found: &[CdiMatch], host: &Host) -> Result<Edits> {
    let mut given = Edits::default();
    let mut begun: FxHashSet<&Path> = FxHashSet::default();
    for one in found {
        let common = begun.insert(&one.file.path).then_some(&one.document.edits);
        for edits in common.into_iter().chain([&one.device.edits]) {
            add_edits(edits, host, &mut given).map_err(|error| {
                let name = format!("{}={}", one.document.kind, one.device.name);
                let message = format!("{name} ({}): {}", one.file.path.display(), error.message);
                Error { message, ..error }
            })?;
        }
    }
    given.devices = last_of_each(given.devices, |device| &device.path);
    given.described = last_of_each(given.described, |mount| &mount.target);
    given.links = last_of_each(given.links, |link| &link.path);
    given.net_devices = last_of_each(given.net_devices, |device| &device.host);
    let depth = |mount: &DescribedMount| mount.target.matches('/').count();
    given.described.sort_by_cached_key(depth);
    let mut edits = Edits::default();
    edits.append(given);
    Ok(edits)
}

fn add_edits(given: &ContainerEdits, host: &Host, edits: &mut Edits) -> Result<()> {
    for node in &given.nodes {
        edits.devices.push(device(node, host)?);
    }
    for one in &given.mounts {
        edits.described.push(mount(one, host)?);
    }
    edits.groups.extend(given.groups.iter().copied().filter(|group| *group != 0));
    edits.environment.extend(given.env.iter().cloned());
    if let Some(rdt) = &given.rdt {
        edits.intel_rdt = Some(rdt.json.clone());
    }
    for hook in &given.hooks {
        translate(hook, host, edits)?;
    }
    edits.net_devices.extend(given.net_devices.iter().cloned());
    Ok(())
}

fn device(node: &DeviceNode, host: &Host) -> Result<Device> {
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
            let (kind, major, minor) = look_up(source, host)?;
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
        source: source_of(source, host)?,
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
fn source_of(path: &str, host: &Host) -> Result<String> {
    match host.real(path) {
        Err(rustix::io::Errno::NOENT) if !host.is_there(path) => Ok(host.on_host(path)),
        found => found.map_err(|e| missing("device", path, e)),
    }
}

/// The node on the host, because its numbers change from one boot to the next.
fn look_up(path: &str, host: &Host) -> Result<(char, u32, u32)> {
    let stat = host.stat(path).map_err(|e| missing("device", path, e))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo {
        return Ok(('p', 0, 0));
    }
    numbers(&stat).ok_or_else(|| Error::failed(format!("{path} is not a device node")))
}

fn mount(given: &DescribedMount, host: &Host) -> Result<DescribedMount> {
    let mut mount = given.clone();
    mount.target = clean(&given.target).into_owned();
    if !matches!(given.kind.as_str(), "" | "bind") {
        return Ok(mount);
    }
    // A runtime's own message would name neither the device nor the specification.
    let is_there = host.stat(&given.source);
    let real = is_there.and_then(|_| host.real(&given.source));
    mount.source = real.map_err(|e| missing("file", &given.source, e))?;
    if !mount.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind")) {
        mount.options.insert(0, "bind".to_owned());
    }
    Ok(mount)
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

const STAGE: &str = "createContainer";

/// Adds what the hook would do, or else the hook.
pub fn translate(hook: &Hook, host: &Host, edits: &mut Edits) -> Result<()> {
    match known(hook) {
        Some(Verb::DisableDeviceNodeModification) => {
            edits.hooks.extend(params_edit(host)?);
            return Ok(());
        }
        Some(verb) if add(&verb, edits).is_some() => return Ok(()),
        _ => {}
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

/// Adds the edits of a command. `None`: the hook has to stay, as another path than a plain one is in
/// it, or because NVIDIA's own program, which the specification may name, does more.
fn add(verb: &Verb, edits: &mut Edits) -> Option<()> {
    let plain = |path: &str| Some(clean(path).into_owned()).filter(|path| is_plain(path));
    match verb {
        Verb::CreateSymlinks(links) => {
            let link = |link: &Link| Some(Link { path: plain(&link.path)?, ..link.clone() });
            edits.links.extend(links.iter().map(link).collect::<Option<Vec<_>>>()?);
        }
        Verb::UpdateLdcache(folders) => {
            let folders = folders.iter().map(|folder| plain(folder));
            edits.library_folders.extend(folders.collect::<Option<Vec<_>>>()?);
            edits.library_folders.sort();
            edits.library_folders.dedup();
        }
        Verb::EnableCudaCompat(compat) => {
            edits.compat.push(Compat { folder: plain(&compat.folder)?, ..compat.clone() });
        }
        _ => return None,
    }
    Some(())
}

/// The hook for the driver's settings, if a container of this host needs it. `None`: there is no
/// such driver, or its programs make no nodes anyway. Errors: the path of this program can't be
/// found.
pub fn params_edit(host: &Host) -> Result<Option<Hook>> {
    let text = host.text_of_kernel(PARAMS).unwrap_or_default();
    if masked(&text).is_none() {
        return Ok(None);
    }
    let words = ["nvidia-cdi-hook", "disable-device-node-modification"];
    let words = words.iter().map(|&word| word.to_owned()).collect();
    own_hook("createContainer", words).map(Some)
}
