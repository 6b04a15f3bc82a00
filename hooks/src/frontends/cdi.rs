//! The front end for devices of CDI that a container names: reads the specifications of the
//! host, and turns what they say of those devices into edits.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! No file is opened for a container that names none.

mod edit;
mod registry;
mod translate;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::config::cdi::folder::{self, SpecFile};
use crate::config::cdi::name::qualified;
use crate::discover::host::Host;
use crate::edits::Edits;
use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::Note;

pub use crate::config::cdi::folder::DEFAULT as DEFAULT_FOLDERS;
pub use registry::{Listed, Registry};
pub use translate::params_edit;

/// So many unknown names are said.
const SAID: usize = 5;

/// True for `vendor.com/class=device`.
pub fn is_name(text: &str) -> bool {
    qualified(text).is_some()
}

/// What the named devices give a container, by the specifications in these folders (as the
/// host calls them; a later one counts more). Notes: files that nothing of this is in, and
/// that can't be used. Errors: a device is not known, and then nothing is given.
pub fn edits(names: &[String], folders: &[PathBuf], host: &Host) -> Result<(Edits, Vec<Note>)> {
    if names.is_empty() {
        return Ok((Edits::default(), Vec::new()));
    }
    let files = read(folders, host)?;
    let searched = folders.iter().map(|f| host.on_host(&f.to_string_lossy()));
    let searched: Vec<PathBuf> = searched.map(PathBuf::from).collect();
    let registry = Registry::new(&files, &searched);
    let mut found = Vec::new();
    let (mut unknown, mut more) = (Vec::new(), 0);
    let mut known: BTreeSet<&String> = BTreeSet::new();
    for name in names.iter().filter(|name| known.insert(name)) {
        if unknown.len() >= SAID && !registry.has(name) {
            // To look for what is like it takes longest.
            more += 1;
            continue;
        }
        match registry.find(name) {
            Ok(device) => found.push(device),
            Err(error) => unknown.push(error),
        }
    }
    if let Some(error) = together(unknown, more) {
        return Err(error);
    }
    let mut composer = edit::Composer::new(host);
    for device in &found {
        composer.add(device)?;
    }
    let edits = composer.finish();
    edits.validate()?;
    let notes = files
        .iter()
        .filter_map(ignored)
        .chain(composer.notes)
        .collect();
    Ok((edits, notes))
}

/// Reads the specifications below a host's root.
pub fn read(folders: &[PathBuf], host: &Host) -> Result<Vec<SpecFile>> {
    let folders: Vec<Option<PathBuf>> = folders.iter().map(|f| host.folder(f)).collect();
    folder::read(&folders)
}

/// A file that no name was looked up in vain for.
fn ignored(file: &SpecFile) -> Option<Note> {
    let broken = file.content.as_ref().err()?;
    let message = format!(
        "{} can't be used and is ignored: {}",
        file.path.display(),
        broken.summary()
    );
    Some(Note::new(Level::Warning, message))
}

/// One error for all that are not known, `unsaid` ones among them.
fn together(mut errors: Vec<Error>, unsaid: usize) -> Option<Error> {
    if errors.len() < 2 {
        return errors.pop();
    }
    let messages = errors.iter().take(SAID);
    let messages: Vec<_> = messages.map(|error| error.message.as_str()).collect();
    let more = match errors.len() - messages.len() + unsaid {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(Error {
        message: format!("{}{more}", messages.join("; ")),
        ..errors[0].clone()
    })
}

#[cfg(test)]
mod tests;
