//! What is done to a container's root, by every door that may write there.

use std::path::Path;

use crate::edits::Edits;
use crate::error::{Error, Result};
use crate::inroot::Root;
use crate::level::Level;
use crate::libcache;
use crate::log::{Log, Note};

/// Errors: there is no such folder.
pub fn open_root(path: &Path) -> Result<Root> {
    Root::open(path).map_err(|e| {
        let path = path.display();
        Error::failed(format!("can't open the container's root {path}: {e}"))
    })
}

/// What no line of the spec can do: bare folders, and the library caches.
/// What the image makes impossible is logged.
pub fn prepare(root: &Root, edits: &Edits, log: &Log) {
    for directory in edits.bare_directories() {
        if let Err(error) = root.make_folder(directory) {
            let message = format!("can't make {directory} in the container: {error}");
            log.write(&Note::new(Level::Warning, message));
        }
    }
    log.write_all(&libcache::update(root, &edits.libraries));
}
