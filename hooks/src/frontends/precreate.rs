//! The front end for filters of a spec on its way to a runtime: podman's hooks at the stage
//! `precreate`. It only writes to its output.

use std::path::Path;

use crate::apply::spec::Spec;
use crate::config::settings::Loaded;
use crate::error::{exit, Result};
use crate::frontends::{self, Context, FrontEndKind};
use crate::host::rootfs::Rootfs;
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::spec::config::Config;

/// The edited spec. `None`: nothing applies, and every byte of the spec stays.
/// Errors: the start is refused.
pub fn run(loaded: &Loaded, config: &[u8]) -> Result<Option<String>> {
    let settings = &loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), "");
    let edited = edit(loaded, config, &log);
    if let Err(error) = &edited {
        // Engines report that a filter failed, but not why.
        log.write(&Note::new(Level::Error, format!("start refused: {error}")));
    }
    edited
}

fn edit(loaded: &Loaded, config: &[u8], log: &Log) -> Result<Option<String>> {
    let context = Context::new(loaded, log, FrontEndKind::Runtime);
    let config = Config::parse(config);
    let Some(mut edits) = context.edits(&context.request(&config))? else {
        return Ok(None);
    };
    let spec = Spec::of(&config)?;
    // The image may still change after this stage, so only single files are safe to mount.
    edits.folders.clear();
    let rootfs = rootfs_to_look_at(&spec)?;
    let settled =
        frontends::settle(edits, spec.present()?, rootfs.as_ref(), &loaded.settings.root, log)?;
    let links = !settled.links.is_empty();
    if links || !settled.libraries.is_empty() || !settled.directories.is_empty() {
        let message = "precreate edits the spec only: empty folders, links and the library cache are left to oci-decorator-runtime or to a prestart hook";
        log.write(&Note::new(Level::Info, message));
    }
    spec.edited(&settled).map(Some)
}

/// The container's root, if this process can see it; its links matter for the mounts.
/// Errors: it is the host's own.
fn rootfs_to_look_at(spec: &Spec) -> Result<Option<Rootfs>> {
    match spec.root_path()? {
        Some(path) if path.starts_with('/') => match Rootfs::open(Path::new(&*path)) {
            Err(error) if error.code == exit::NOT_FOUND => Ok(None),
            other => other.map(Some),
        },
        _ => Ok(None),
    }
}
