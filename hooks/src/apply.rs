//! Applies edits: to a container's spec, in its namespaces, or as a CDI specification.

pub mod cdi;
pub mod namespace;
pub mod spec;

use std::cmp::Ordering;
use std::fs::File;

use rustix::fs::{fstat, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::host::ldcache::{self, compare_names};
use crate::host::libraries::{self, elf_section};
use crate::host::rootfs::{is_same, names_in, open_regular, Root, Rootfs};
use crate::log::{Level, Log, Note};
use crate::model::edits::{clean, Compat, Library, Link, Settled};

/// Writes what a spec can't describe: empty folders, links, and the library caches. What the image
/// prevents is logged.
pub fn write_files(rootfs: &Rootfs, edits: &Settled, log: &Log) {
    log.write_all(&make_directories(rootfs, &edits.directories));
    // If the runtime has not mounted the file system yet, a hook makes these links later.
    let late = edits.late_links.iter().filter(|link| rootfs.is_in_new(&link.path));
    log.write_all(&make_links(rootfs, edits.links.iter().chain(late)));
    log.write_all(&update_library_caches(rootfs, edits));
}

/// Makes directories, with those above them. Notes: what the image prevents.
pub fn make_directories(rootfs: &Rootfs, directories: &[String]) -> Vec<Note> {
    let make = |directory: &String| {
        let path = clean(directory);
        let (root, within) = rootfs.writer(&path);
        let error = root.make_folder(within).err()?;
        let message = format!("can't make {path} in the container: {error}");
        Some(Note::new(Level::Warning, message))
    };
    directories.iter().filter_map(make).collect()
}

pub fn cannot_list(folder: &str, error: Errno) -> Note {
    let message = format!(
        "can't list the image's folder {folder}: {error}; its libraries are not in the library cache"
    );
    Note::new(Level::Warning, message)
}

/// Makes links, with the directories above them. Notes: what the image prevents.
pub fn make_links<'l>(rootfs: &Rootfs, links: impl IntoIterator<Item = &'l Link>) -> Vec<Note> {
    let make = |link: &Link| {
        let path = clean(&link.path);
        let (root, within) = rootfs.writer(&path);
        let why = match root.make_link(within, &link.target).err()? {
            Errno::EXIST => "the image has a file or folder of that name".to_owned(),
            other => other.to_string(),
        };
        let message = format!("can't make the link {path} in the container: {why}");
        Some(Note::new(Level::Warning, message))
    };
    links.into_iter().filter_map(make).collect()
}

// Updates the library caches of a container, so that the loader finds the driver's libraries, and
// before them newer ones of the image (CUDA's forward compatibility).
//
// Nothing of the image is mounted or run for this: its folder only comes first in the cache.
// <https://docs.nvidia.com/deploy/cuda-compatibility/>

/// The section in which NVIDIA names the hosts that a library of an image suits.
const NOTE: &str = ".note.cuda.fwd_compatibility";
const MAX_NOTE: u64 = 1 << 16;
const AUTHOR: &str = "NVIDIA Corporation";
const DRIVER_LIBRARY: &str = "libcuda.so.";
const CACHE: &str = "/etc/ld.so.cache";

/// Updates the caches of a container's root with the libraries of the edits.
pub fn update_library_caches(rootfs: &Rootfs, edits: &Settled) -> Vec<Note> {
    let compat = &edits.compat;
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    for compat in compat {
        match compatible(&rootfs.files, compat) {
            Ok(found) => all.extend(found),
            Err(error) => notes.push(cannot_list(&compat.folder, error)),
        }
    }
    let libraries = if all.is_empty() {
        &edits.libraries
    } else {
        all.extend_from_slice(&edits.libraries);
        &all
    };
    notes.extend(ldcache::update(&rootfs.files, libraries));
    if !(compat.is_empty() && edits.libraries.is_empty()) {
        notes.extend(hidden(rootfs));
    }
    notes
}

/// A warning if a mount of another hook, which the spec does not have, hides the cache.
fn hidden(rootfs: &Rootfs) -> Option<Note> {
    let file = |root: &Root| fstat(root.open_in(CACHE, OFlags::PATH)?);
    // An image without a cache gets none if its loader reads none.
    let ours = file(&rootfs.files).ok()?;
    if rootfs.is_in_new(CACHE) || file(&rootfs.mounted).is_ok_and(|seen| is_same(&ours, &seen)) {
        return None;
    }
    let message = format!("a mount in the container hides {CACHE}: the driver's libraries are found in the loader's default folders only");
    Some(Note::new(Level::Warning, message))
}

/// The libraries of the image's folder, if they are newer than the host's driver and work with it.
/// Errors: the folder can't be listed.
pub fn compatible(root: &Root, compat: &Compat) -> rustix::io::Result<Vec<Library>> {
    if !is_wanted(root, compat)? {
        return Ok(Vec::new());
    }
    libraries::in_folder(root, &compat.folder)
}

/// True if the image has one such library that is newer than the host's and suits the host.
fn is_wanted(root: &Root, compat: &Compat) -> rustix::io::Result<bool> {
    let Some((version, file)) = driver_library(root, &compat.folder)? else {
        return Ok(false);
    };
    let driver = compat.driver.as_deref();
    let is_newer = driver.map(|driver| major(&version) > major(driver));
    let fitness = elf_section(&file, NOTE, MAX_NOTE).and_then(|bytes| Fitness::parse(&bytes));
    Ok(match fitness {
        Some(fitness) => fitness.allows(&version, compat),
        None => is_newer == Some(true),
    })
}

/// The image's `libcuda.so.X.Y`, and its version. `None`: the image has none, or several.
fn driver_library(root: &Root, folder: &str) -> rustix::io::Result<Option<(String, File)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(opened) = root.open_in(folder, flags) else {
        return Ok(None);
    };
    let names = names_in(opened)?;
    let versions = names.iter().filter_map(|name| name.strip_prefix(DRIVER_LIBRARY));
    let mut found = versions.filter(|version| version.contains('.')).filter_map(|version| {
        let path = format!("{folder}/{DRIVER_LIBRARY}{version}");
        let itself = root.open_in(&path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        // Links are refused here, as everything but a regular file is.
        let (fd, _) = open_regular(itself).ok()?;
        Some((version.to_owned(), File::from(fd)))
    });
    Ok(found.next().filter(|_| found.next().is_none()))
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Fitness {
    /// Major versions of the drivers that the library works with. Empty: the note names none.
    #[serde(rename = "Driver", default)]
    drivers: Vec<u32>,
    #[serde(rename = "CUDA Version")]
    cuda: Option<String>,
}

impl Fitness {
    /// Reads the section (elf(5), "Notes"): the sizes of the name and of the content, a type, the
    /// name, and the content, which is a JSON object here.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            usize::try_from(u32::from_ne_bytes(bytes)).ok()
        };
        let (name_size, size) = (word(0)?, word(4)?);
        let name = bytes.get(12..12usize.checked_add(name_size)?)?;
        let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
        let start = 12 + name_size.checked_next_multiple_of(4)?;
        let content = bytes.get(start..start.checked_add(size)?)?;
        let content = std::str::from_utf8(content).ok()?.trim_matches('\0');
        serde_json::from_str(content).ok().filter(|_| name == AUTHOR)
    }

    fn allows(&self, version: &str, compat: &Compat) -> bool {
        match (&compat.driver, self.drivers.as_slice()) {
            (Some(driver), [_, ..]) => {
                let is_newer = compare_names(version.as_bytes(), driver.as_bytes());
                is_newer == Ordering::Greater
                    && major(driver).is_some_and(|major| self.drivers.contains(&major))
            }
            _ => match (&self.cuda, &compat.cuda) {
                (Some(own), Some(host)) => {
                    compare_names(own.as_bytes(), host.as_bytes()) == Ordering::Greater
                }
                _ => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &str, content: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() + 1, content.len(), 1] {
            bytes.extend(u32::try_from(word).unwrap().to_ne_bytes());
        }
        bytes.extend(name.as_bytes());
        bytes.push(0);
        while bytes.len() % 4 != 0 {
            bytes.push(0);
        }
        bytes.extend(content.as_bytes());
        bytes
    }

    const CONTENT: &str = r#"{"Format":1,"CUDA Version":"13.1","Driver":[535,580],"Device":[1]}"#;

    fn compat(driver: Option<&str>, cuda: Option<&str>) -> Compat {
        Compat {
            folder: "/usr/local/cuda/compat".to_owned(),
            driver: driver.map(str::to_owned),
            cuda: cuda.map(str::to_owned),
        }
    }

    #[test]
    fn the_note_says_for_which_hosts_it_is() {
        let fitness = Fitness::parse(&note(AUTHOR, CONTENT)).unwrap();
        assert_eq!(fitness.drivers, [535, 580]);
        for (driver, cuda, expected) in [
            (Some("535.261.03"), None, true),
            (Some("580.10"), None, true),
            (Some("565.10"), Some("12.0"), false),
            (Some("590.10"), None, false),
            (None, Some("12.9"), true),
            (None, Some("13.1"), false),
            (None, None, false),
        ] {
            let host = compat(driver, cuda);
            assert_eq!(fitness.allows("580.44.01", &host), expected, "{host:?}");
        }
        // This library is not newer than the host's own.
        assert!(!fitness.allows("580.1", &compat(Some("580.44.01"), None)));
    }
}
