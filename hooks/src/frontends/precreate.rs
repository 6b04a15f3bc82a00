//! The front end for programs that filter a spec on its way to a runtime: podman's hooks at the
//! stage `precreate`. Writes to its output and nowhere else.

use std::path::Path;

use crate::apply::spec::Spec;
use crate::config::settings::Loaded;
use crate::error::{exit, Result};
use crate::frontends::nvidia::Reader;
use crate::frontends::{self, text_of, FrontEnd};
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::rootfs::Rootfs;

/// The edited spec. `None`: nothing applies, and it stays as it is, to the byte.
/// Errors: the start is to be refused.
pub fn run(loaded: &Loaded, config: &[u8]) -> Result<Option<String>> {
    let settings = &loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), "");
    let edited = edit(loaded, config, &log);
    if let Err(error) = &edited {
        // Engines say that a filter failed, and not why.
        log.write(&Note::new(Level::Error, format!("start refused: {error}")));
    }
    edited
}

fn edit(loaded: &Loaded, config: &[u8], log: &Log) -> Result<Option<String>> {
    let front_end = FrontEnd::new(loaded, log, Reader::Runtime);
    let Some(mut edits) = front_end.edits(&front_end.request(config))? else {
        return Ok(None);
    };
    let spec = Spec::parse(text_of(config)?)?;
    // What this stage is shown of the image may still change: the files one by one are safe.
    edits.folders.clear();
    let rootfs = rootfs_to_look_at(&spec)?;
    let settled = frontends::settle(edits, &spec, rootfs.as_ref(), &loaded.settings.root, log)?;
    let links = !settled.links().is_empty();
    if links || !settled.libraries().is_empty() || !settled.directories().is_empty() {
        let message = "precreate edits the spec only: empty folders, links and the library cache are left to oci-decorator-runtime or to a prestart hook";
        log.write(&Note::new(Level::Info, message));
    }
    spec.edited(&settled).map(Some)
}

/// The container's root, where this process can see it: links of the image lead to what
/// is mounted there. Errors: it is the host's own.
fn rootfs_to_look_at(spec: &Spec) -> Result<Option<Rootfs>> {
    match spec.root_path()? {
        Some(path) if path.starts_with('/') => match Rootfs::open(Path::new(&*path)) {
            Err(error) if error.code == exit::NOT_FOUND => Ok(None),
            other => other.map(Some),
        },
        _ => Ok(None),
    }
}
