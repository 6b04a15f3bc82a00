//! Applies edits: to a container's spec, in its namespaces, or as a CDI specification.

pub mod cdi;
pub mod library_cache;
pub mod namespace;
pub mod spec;

use rustix::io::Errno;

use crate::host::rootfs::Rootfs;
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::model::edits::paths::clean;
use crate::model::edits::Settled;

/// Writes what a spec can't describe: empty folders, links, and the library caches. What the image
/// prevents is logged.
pub fn write_files(rootfs: &Rootfs, edits: &Settled, log: &Log) {
    log.write_all(&make_directories(rootfs, &edits.directories));
    // If the runtime has not mounted the file system yet, a hook makes these links later.
    let late = edits.late_links.iter();
    let late = late.filter(|link| rootfs.is_in_new(&link.path));
    for link in edits.links.iter().chain(late) {
        let (root, path) = rootfs.writer(&link.path);
        if let Err(error) = root.make_link(path, &link.target) {
            log.write(&cannot_link(&link.path, error));
        }
    }
    log.write_all(&library_cache::update(rootfs, edits));
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

/// Why the libraries in a folder of the image are left out.
pub fn cannot_list(folder: &str, error: Errno) -> Note {
    let message = format!(
        "can't list the image's folder {folder}: {error}; its libraries are not in the library cache"
    );
    Note::new(Level::Warning, message)
}

/// Why a link is left out.
pub fn cannot_link(path: &str, error: Errno) -> Note {
    let why = match error {
        Errno::EXIST => "the image has a file or folder of that name".to_owned(),
        other => other.to_string(),
    };
    let message = format!("can't make the link {path} in the container: {why}");
    Note::new(Level::Warning, message)
}
