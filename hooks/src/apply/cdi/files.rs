//! CDI specifications as files in the folders that engines read.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{generate, Request, OWN_VENDOR};
use crate::config::vendor_dir;
use crate::error::{exit, Error, Result};
use crate::publish::publish;

const TEMPORARY: &str = ".oci-decorator.cdi.tmp";

/// Writes a file for each vendor into the folder, `oci-decorator-NAME.json`, and removes
/// those of vendors that have none now. What one vendor lacks keeps no other from its file.
/// Errors: every vendor that has none.
pub fn write_each(folder: &Path, request: &Request) -> Result<()> {
    let mut written = BTreeSet::new();
    let mut errors = Vec::new();
    for file in vendor_dir::read(&request.settings.config_dir)? {
        let name = format!("{OWN_VENDOR}-{}.json", file.name);
        let request = Request {
            settings: request.settings,
            vendor: Some(&file.name),
            hook_words: request.hook_words.clone(),
        };
        match generate(&request).and_then(|text| write(&folder.join(&name), &text)) {
            Ok(()) => _ = written.insert(name),
            Err(error) => errors.push(error),
        }
    }
    errors.extend(remove_others(folder, &written).err());
    together(errors).map_or(Ok(()), Err)
}

/// Removes the files that an earlier run wrote and this one did not.
fn remove_others(folder: &Path, written: &BTreeSet<String>) -> Result<()> {
    let fail = |path: &Path, e: std::io::Error| {
        let path = path.display();
        Error::failed(format!("can't remove old specifications from {path}: {e}"))
    };
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|e| fail(folder, e))?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| fail(folder, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name
            .strip_prefix(OWN_VENDOR)
            .and_then(|rest| rest.strip_suffix(".json"))
            .is_some_and(|rest| rest.starts_with('-'));
        if ours && !written.contains(&name) {
            std::fs::remove_file(entry.path()).map_err(|e| fail(&entry.path(), e))?;
        }
    }
    Ok(())
}

/// All errors as one. Its code is the first that says more than that a driver is missing.
fn together(mut errors: Vec<Error>) -> Option<Error> {
    if errors.len() < 2 {
        return errors.pop();
    }
    let worse = errors.iter().find(|e| e.code != exit::NOT_FOUND);
    let code = worse.map_or(exit::NOT_FOUND, |e| e.code);
    let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
    Some(Error {
        message: messages.join("; "),
        resolution: None,
        code,
    })
}

/// Makes a folder and those above it that are missing. Whatever the umask, everyone may read
/// them: an engine that runs as a user looks there.
fn make_folder(folder: &Path) -> Result<()> {
    let fail = |e: std::io::Error| Error::failed(format!("can't make {}: {e}", folder.display()));
    let above = folder
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty());
    let missing: Vec<&Path> = above.take_while(|path| !path.exists()).collect();
    std::fs::create_dir_all(folder).map_err(fail)?;
    for made in missing {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(made, mode).map_err(fail)?;
    }
    Ok(())
}

/// Writes the file, whole or not at all. Its folder is made where it is missing, as
/// `/etc/cdi` is on a new host.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let fail = |e: rustix::io::Errno| Error::failed(format!("can't write {}: {e}", path.display()));
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(rustix::io::Errno::ISDIR));
    };
    let folder = if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    };
    make_folder(folder)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(fail)?;
    let mut like = rustix::fs::fstat(&folder).map_err(fail)?;
    like.st_mode = 0o644;
    publish(&folder, TEMPORARY, name, text.as_bytes(), &like).map_err(fail)
}
