//! What every door does before it applies anything: read the vendor files,
//! decide, look things up on the host, log.

use std::path::Path;

use crate::collect::collect;
use crate::decide::decide;
use crate::edits::Edits;
use crate::environment::Environment;
use crate::error::Result;
use crate::host::Host;
use crate::log::Log;
use crate::vendor_dir;

/// Where a door looks, and where it logs.
#[derive(Debug)]
pub struct Door<'a> {
    pub config_dir: &'a Path,
    pub root: &'a Path,
    pub log: &'a Log,
}

/// What a container with this environment is to get. `None`: nothing applies.
/// Errors: the start is to be refused.
pub fn edits(door: &Door, environment: &Environment) -> Result<Option<Edits>> {
    let files = vendor_dir::read(door.config_dir)?;
    let (choices, notes) = decide(&files, environment)?;
    door.log.write_all(&notes);
    if choices.is_empty() {
        return Ok(None);
    }
    let host = Host::open(door.root)?;
    let (edits, notes) = collect(&host, &choices)?;
    door.log.write_all(&notes);
    Ok(Some(edits))
}
