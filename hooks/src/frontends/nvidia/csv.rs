//! The lists of host files with which NVIDIA's Jetson boards define what a container gets: a folder
//! of files, whose lines have a kind, a comma and a path.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::config::nvidia::NvidiaConfig;
use crate::error::{Error, Result};
use crate::frontends::nvidia::DEVICES;
use crate::host::resolve::{check_requirements, groups, resolve_all};
use crate::host::rootfs::Distrust;
use crate::host::Host;
use crate::log::{brief, Level, Note};
use crate::model::edits::{clean, split, Edits, Link, Mount};
use crate::model::request::{DeviceRequest, Interface};
use crate::model::vendor::{Choice, Inventory, Vendor, VendorFile};

/// The base lists. The others only count for images that ask for all lists.
const BASE: [&str; 3] = ["devices.csv", "drivers.csv", "l4t.csv"];
const MAX_SIZE: u64 = 1 << 20;
/// After this many links a path leads nowhere.
const MAX_LINKS: usize = 40;
/// Folders that the runtime makes for each container, and the root (`""`).
const MADE: [&str; 4] = ["/dev", "/proc", "/sys", ""];
/// The name of the feature that stands for the files.
const FEATURE: &str = "csv";

#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    devices: Vec<String>,
    libraries: Vec<String>,
    folders: Vec<String>,
    links: Vec<String>,
    /// The file and line of each library and folder.
    places: FxHashMap<String, String>,
}

/// The edits of the files. Every board has one GPU, so the requested devices make no difference.
/// Notes: what the host lacks, and invalid lines. Errors: the folder can't be read, or a user other
/// than root may change one of its files.
pub fn edits(
    host: &Host,
    config: &NvidiaConfig,
    request: &DeviceRequest,
) -> Result<(Edits, Vec<Note>)> {
    let folder = config.csv_folder.to_string_lossy();
    let (lines, mut notes) = read(host, &folder, request.every_list)?;
    if !request.requirements.is_empty() {
        let facts = host.facts(Interface::Nvidia.word()).ok().flatten();
        // A board has one GPU.
        let found = check_requirements(&request.requirements, facts.as_ref(), None, |at| at == 0);
        notes.extend(found?);
    }
    let file = VendorFile {
        name: Interface::Nvidia.word().to_owned(),
        path: host.shown(&folder),
        content: Ok(vendor(&lines)),
    };
    let Ok(vendor) = &file.content else {
        return Ok((Edits::default(), notes));
    };
    let choice = Choice { file: &file, vendor, features: vec![FEATURE] };
    let (mut edits, found) = resolve_all(host, &choice)?;
    lines.check_sources(host, &edits.mounts)?;
    notes.extend(found);
    edits.links = lines.links.iter().flat_map(|path| chain(host, path)).collect();
    if request.groups {
        edits.groups = groups(&edits.devices);
    }
    // A hook that comes later has nothing left to do.
    edits.environment.push(format!("{DEVICES}=void"));
    Ok((edits, notes))
}

fn whole(place: &str, target: &str, source: &str) -> Error {
    let leads =
        if target == source { String::new() } else { format!(", which leads to {source},") };
    Error::usage(format!(
        "{place}: {target}{leads} can't be given as a whole: it is the host's own, and the runtime makes one for each container"
    ))
    .resolve("remove the line from the file, and name each file that you need, device nodes like `dev, /dev/NAME`")
}

fn vendor(lines: &Lines) -> Vendor {
    let inventory = Inventory {
        devices: lines.devices.clone(),
        libraries: lines.libraries.clone(),
        miscellaneous: lines.folders.clone(),
        ..Inventory::default()
    };
    Vendor {
        activation_flag: DEVICES.to_owned(),
        inventory: vec![(FEATURE.to_owned(), inventory)],
        interfaces: vec![Interface::Nvidia],
        ..Vendor::default()
    }
}

fn read(host: &Host, folder: &str, every: bool) -> Result<(Lines, Vec<Note>)> {
    let shown = host.shown(folder);
    let names = host.names_in(folder).map_err(|error| {
        Error::not_found(format!("NVIDIA_VISIBLE_DEVICES asks for devices by the files of {shown}, which can't be listed: {error}"))
            .resolve("install the board's files, or set another `mode` in NVIDIA's config.toml")
    })?;
    let refuse = |found: Distrust| Err(Error::usage(found.to_string()).resolve(found.resolution()));
    if let Ok(Some(problem)) = host.distrust(folder) {
        return refuse(problem);
    }
    let mut lines = Lines::default();
    let mut notes = Vec::new();
    for name in names.iter().filter(|name| counts(name, every)) {
        let path = format!("{folder}/{name}");
        let shown = host.shown(&path);
        if let Ok(Some(problem)) = host.distrust(&path) {
            return refuse(problem);
        }
        match host.read_file(&path, MAX_SIZE) {
            Ok((bytes, _)) => lines.add(&shown, &String::from_utf8_lossy(&bytes), &mut notes)?,
            Err(error) => {
                let message = format!("{shown} is left out: {error}");
                notes.push(Note::new(Level::Warning, message));
            }
        }
    }
    lines.each_once();
    Ok((lines, notes))
}

fn counts(name: &str, every: bool) -> bool {
    let stem = name.len().checked_sub(".csv".len());
    let is_csv = stem.is_some_and(|at| {
        at > 0 && name.is_char_boundary(at) && name[at..].eq_ignore_ascii_case(".csv")
    });
    is_csv && (every || BASE.contains(&name))
}

impl Lines {
    /// Adds the lines of a file. Invalid lines are left out, with a line in the log.
    /// Errors: a line names a whole folder that the runtime makes for each container.
    fn add(&mut self, file: &str, text: &str, notes: &mut Vec<Note>) -> Result<()> {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some(path) =
                line.split_once(',').and_then(|(kind, path)| self.add_line(kind, path))
            else {
                let line = brief(line);
                let message = format!("{file}:{number}: {line:?} is left out: it is not a kind (dev, lib, dir, sym), a comma and an absolute path");
                notes.push(Note::new(Level::Debug, message));
                continue;
            };
            let place = format!("{file}:{number}");
            if MADE.contains(&path.trim_end_matches('/')) {
                return Err(whole(&place, &path, &path));
            }
            self.places.entry(path).or_insert(place);
        }
        Ok(())
    }

    /// Adds a line and returns its path, which may have commas, in its plain form. `None`: the line
    /// is invalid.
    fn add_line(&mut self, kind: &str, path: &str) -> Option<String> {
        let path = path.trim();
        if !path.starts_with('/') || path.contains('\0') || path.split('/').any(|it| it == "..") {
            return None;
        }
        let path = clean(path);
        let list = match kind.trim() {
            "dev" if path.starts_with("/dev/") => &mut self.devices,
            "lib" => &mut self.libraries,
            "dir" => &mut self.folders,
            "sym" => &mut self.links,
            _ => return None,
        };
        list.push(path.clone().into_owned());
        Some(path.into_owned())
    }

    fn each_once(&mut self) {
        for list in [&mut self.devices, &mut self.libraries, &mut self.folders, &mut self.links] {
            let mut known = FxHashSet::default();
            list.retain(|path| known.insert(path.clone()));
        }
    }

    /// Checks the mounts. Errors: a source is the host's root or a folder that the runtime makes
    /// for each container, directly or through links.
    fn check_sources(&self, host: &Host, mounts: &[Mount]) -> Result<()> {
        let refused = MADE.map(|path| host.shown(path));
        let is_refused = |mount: &&Mount| refused.contains(&mount.source);
        let Some(mount) = mounts.iter().find(is_refused) else {
            return Ok(());
        };
        let place = self.places.get(&mount.target).map_or("", String::as_str);
        let (target, source) = (&mount.target, &mount.source);
        Err(whole(place, target, source))
    }
}

fn chain(host: &Host, path: &str) -> Vec<Link> {
    let mut links = Vec::new();
    let mut path = path.to_owned();
    while let Some(target) = host.link(&path).filter(|_| links.len() < MAX_LINKS) {
        let next = match split(&path) {
            Some((folder, _)) if !target.starts_with('/') => format!("{folder}{target}"),
            _ => target.clone(),
        };
        let next = clean(&next).into_owned();
        links.push(Link { path, target });
        path = next;
    }
    links
}
