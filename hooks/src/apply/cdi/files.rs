//! Writes CDI specifications into the folders that engines read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::apply::cdi::{answers, of_vendor, Generator, Options, KIND, OWN_VENDOR};
use crate::config::cdi::{read_folders, SpecFile, Syntax, DEFAULT_FOLDERS};
use crate::error::{exit, Error, Result};
use crate::host::files::{self, write_through};

/// The name that the service of NVIDIA's package uses. If that service still runs, both write the
/// same file, and no device exists twice.
const NVIDIA: &str = "nvidia.yaml";
/// The first line of our file. The format has no field for it before version 0.6.
const MARK: &str = "# Written by `oci-decorator cdi generate`, which replaces it.";

/// Writes a file `oci-decorator-NAME.json` for each vendor into the folder, and removes the files
/// of vendors that have none now. If a vendor answers NVIDIA's interface, `nvidia.yaml` gets its
/// devices under the names that NVIDIA's users know, unless another file has that kind. A vendor
/// without devices does not prevent the files of others. Notes: files that were left to others.
/// Errors: every vendor without a file.
pub fn write_each(folder: &Path, generator: &Generator) -> Result<Vec<String>> {
    let mut written = BTreeSet::new();
    let mut errors = Vec::new();
    for file in &generator.files {
        let name = format!("{OWN_VENDOR}-{}.json", file.name);
        let text = generator.specification(Some(&file.name));
        match text.and_then(|text| write(&folder.join(&name), &text)) {
            Ok(()) => _ = written.insert(name),
            Err(error) => errors.push(error),
        }
    }
    let mut notes = Vec::new();
    match write_nvidias(folder, generator) {
        Ok(None) => {}
        Ok(Some(file)) if file == folder.join(NVIDIA) && is_ours(&file) => {
            written.insert(NVIDIA.to_owned());
        }
        Ok(Some(other)) => {
            let (own, other) = (folder.join(NVIDIA), other.display());
            let (vendor, class) = KIND;
            notes.push(format!(
                "{other} has the kind {vendor}/{class} and is not ours, so that {} is not written",
                own.display()
            ));
        }
        Err(error) => errors.push(error),
    }
    errors.extend(remove_others(folder, &written).err());
    together(errors).map_or(Ok(notes), Err)
}

/// Removes the files that `write_each` has written into the folder. It reads no settings and no
/// vendor files, which may be gone. Returns: the removed files.
pub fn remove_each(folder: &Path) -> Result<Vec<PathBuf>> {
    remove_others(folder, &BTreeSet::new())
}

/// The file that has the devices under NVIDIA's names: ours, which is written, or another program's.
/// `None`: no vendor file answers NVIDIA's interface.
fn write_nvidias(folder: &Path, generator: &Generator) -> Result<Option<PathBuf>> {
    let Some(file) = answers(&generator.files) else {
        return Ok(None);
    };
    let own = folder.join(NVIDIA);
    if own.symlink_metadata().is_ok() && !is_ours(&own) {
        return Ok(Some(own));
    }
    let kind = format!("{}/{}", KIND.0, KIND.1);
    if let Some(other) = other_of(&kind, folder, generator)? {
        return Ok(Some(other));
    }
    let vendor = file.content.as_ref().ok();
    // The vendor's own specification then has a device `all`.
    let has_kind = vendor.is_some_and(|vendor| vendor.cdi_kind.as_ref() == Some(&kind));
    let options = Options { without_all: has_kind, ..Options::default() };
    let document = of_vendor(generator, &options)?;
    write(&own, &format!("{MARK}\n{}", document.text(Syntax::Yaml)))?;
    Ok(Some(own))
}

/// A specification of another program for a kind, in the folder or where engines look. Two files of
/// one folder with the same device are a conflict, and a file in `/run` hides one in `/etc`.
fn other_of(kind: &str, folder: &Path, generator: &Generator) -> Result<Option<PathBuf>> {
    let host = generator.host()?;
    let usual = DEFAULT_FOLDERS.map(PathBuf::from);
    let mut folders: Vec<_> = usual.iter().map(|folder| host.folder(folder)).collect();
    folders.push(Some(folder.to_owned()));
    let files = read_folders(&folders)?;
    let is_of_kind = |file: &&SpecFile| match &file.content {
        Ok(document) => document.kind == kind,
        Err(broken) => broken.kind.as_deref() == Some(kind),
    };
    let is_others = |file: &&SpecFile| {
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        !(name == NVIDIA && is_ours(&file.path) || is_own_name(&name))
    };
    let mut found = files.iter().filter(is_of_kind).filter(is_others);
    Ok(found.next().map(|file| file.path.clone()))
}

/// True for a file with NVIDIA's name that an earlier run wrote.
fn is_ours(path: &Path) -> bool {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|about| about.is_file());
    let mut start = vec![0; MARK.len()];
    let read = |file: std::fs::File| std::io::Read::read_exact(&mut { file }, &mut start);
    is_file && std::fs::File::open(path).and_then(read).is_ok() && start == MARK.as_bytes()
}

/// True for the name of a vendor's specification.
fn is_own_name(name: &str) -> bool {
    let rest = name.strip_prefix(OWN_VENDOR);
    let rest = rest.and_then(|rest| rest.strip_suffix(".json"));
    rest.is_some_and(|rest| rest.starts_with('-'))
}

/// Removes the files that an earlier run wrote and this run did not. Returns: the removed files.
fn remove_others(folder: &Path, written: &BTreeSet<String>) -> Result<Vec<PathBuf>> {
    let fail =
        |path: &Path, e: std::io::Error| Error::of_file("remove old specifications from", path, &e);
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| fail(folder, e))?,
    };
    let mut removed = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| fail(folder, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = is_own_name(&name) || name == NVIDIA && is_ours(&entry.path());
        if ours && !written.contains(&name) {
            std::fs::remove_file(entry.path()).map_err(|e| fail(&entry.path(), e))?;
            removed.push(entry.path());
        }
    }
    removed.sort();
    Ok(removed)
}

/// Joins all errors. The code is that of the first error that is not only a missing driver.
fn together(mut errors: Vec<Error>) -> Option<Error> {
    if errors.len() < 2 {
        return errors.pop();
    }
    let worse = errors.iter().find(|e| e.code != exit::NOT_FOUND);
    let code = worse.map_or(exit::NOT_FOUND, |e| e.code);
    let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
    Some(Error { message: messages.join("; "), resolution: None, code })
}

/// Writes the file by one rename, or to what is no file. A file with the right content stays
/// untouched, so that programs that watch it are not notified.
pub fn write(path: &Path, text: &str) -> Result<()> {
    if write_through(path, text.as_bytes()).map_err(|e| Error::of_file("write", path, &e))? {
        return Ok(());
    }
    if is_as_wanted(path, text) {
        return Ok(());
    }
    files::replace(path, text, Some(0o644))
}

fn is_as_wanted(path: &Path, text: &str) -> bool {
    let about = std::fs::symlink_metadata(path);
    let is_plain = about.is_ok_and(|about| {
        let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions());
        about.is_file() && mode & 0o777 == 0o644 && about.len() == text.len() as u64
    });
    is_plain && std::fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}
