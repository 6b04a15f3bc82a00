//! The `config.json` of a bundle.

use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::publish::publish;
use crate::host::rootfs::read_whole;
use crate::spec::MAX_CONFIG;

const TEMPORARY: &str = ".config.json.oci-decorator";

/// The text of a bundle's config, and the file's status. `None`: the bundle has no such file.
pub fn read_config(path: &Path) -> Result<Option<(Vec<u8>, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fail = |problem: &dyn std::fmt::Display| {
        Error::failed(format!("can't read {}: {problem}", path.display()))
    };
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        other => other.map_err(|e| fail(&e))?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| fail(&e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(fail(&"it is not a regular file"));
    }
    let bytes = read_whole(&fd, &stat, MAX_CONFIG).map_err(|e| fail(&e))?;
    Ok(Some((bytes, stat)))
}

/// Replaces the file atomically and keeps its owner and mode.
pub fn write_config(path: &Path, text: &str, like: &Stat) -> rustix::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    publish(&folder, TEMPORARY, name, text.as_bytes(), like)
}
