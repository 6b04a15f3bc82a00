//! The front end for CDI devices that a container names: reads the specifications of the host and
//! turns their edits for these devices into ours.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>
//!
//! For a container that names no device, no file is opened.

mod edit;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::config::cdi::{qualified, read_folders, Document, NamedDevice, SpecFile};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::log::{brief, Level, Note};
use crate::model::edits::Edits;

pub use crate::config::cdi::DEFAULT_FOLDERS;
pub use crate::frontends::cdi::edit::params_edit;

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
    let edits = edit::compose(&found, host)?;
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

/// The devices in the specifications of a host.
#[derive(Debug)]
pub struct Registry<'a> {
    files: &'a [SpecFile],
    folders: &'a [PathBuf],
    /// Every device by its kind and name, in a map because a container may name thousands, in the files
    /// of the folder that overrides the others.
    places: FxHashMap<(&'a str, &'a str), Vec<CdiMatch<'a>>>,
}

/// A device and its specification.
#[derive(Debug, Clone, Copy)]
pub struct CdiMatch<'a> {
    pub file: &'a SpecFile,
    pub document: &'a Document,
    pub device: &'a NamedDevice,
}

impl<'a> Registry<'a> {
    /// Errors name the folders.
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
                        broken.summary()
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
