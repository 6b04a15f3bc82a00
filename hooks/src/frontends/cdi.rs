//! The front end for CDI devices that a container names: reads the specifications of the host and
//! turns their edits for these devices into ours.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! For a container that names no device, no file is opened.

mod edit;
mod registry;
mod translate;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::config::cdi::folder::{self, SpecFile};
use crate::config::cdi::qualified;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::log::level::Level;
use crate::log::Note;
use crate::model::edits::Edits;

pub use crate::config::cdi::folder::DEFAULT as DEFAULT_FOLDERS;
pub use registry::{Listed, Registry};
pub use translate::params_edit;

/// At most this many unknown names are reported.
const SAID: usize = 5;

/// True for `vendor.com/class=device`.
pub fn is_name(text: &str) -> bool {
    qualified(text).is_some()
}

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
    let mut composer = edit::CdiEditBuilder::new(host);
    for device in &found {
        composer.add(device)?;
    }
    let edits = composer.finish();
    edits.validate()?;
    let notes = files.iter().filter_map(ignored).chain(composer.notes).collect();
    Ok((edits, notes))
}

/// Reads the specifications below a host's root.
pub fn read(folders: &[PathBuf], host: &Host) -> Result<Vec<SpecFile>> {
    let folders: Vec<Option<PathBuf>> = folders.iter().map(|f| host.folder(f)).collect();
    folder::read(&folders)
}

/// A warning about a broken file that no name needs.
fn ignored(file: &SpecFile) -> Option<Note> {
    let broken = file.content.as_ref().err()?;
    let message =
        format!("{} can't be used and is ignored: {}", file.path.display(), broken.summary());
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
