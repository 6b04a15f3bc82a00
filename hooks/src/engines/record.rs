//! The record of changed files of engines, so that they can be restored.
//!
//! This distinguishes a file that we wrote from one that was changed since, and from one that was
//! removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::host::files;

/// The path of root's record.
pub const DEFAULT_PATH: &str = "/var/lib/oci-decorator/runtimes.json";

/// The entry of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Entry {
    /// The old text. `None`: the file did not exist.
    pub original: Option<String>,
    /// The text that was written last, and the one before it, which the file still has if a run is
    /// killed before it writes.
    pub written: Vec<String>,
    /// Our runtimes in the file.
    pub runtimes: Vec<String>,
    /// Folders that were made for the file, the outermost first.
    pub folders: Vec<PathBuf>,
}

impl Entry {
    /// True for a text that we wrote.
    pub fn has_written(&self, text: &str) -> bool {
        self.written.iter().any(|written| written == text)
    }
}

/// The record: entries by path.
#[derive(Debug, Default)]
pub struct Record {
    path: PathBuf,
    entries: BTreeMap<PathBuf, Entry>,
}

impl Record {
    /// Reads a record. Errors: it can't be read, or is not a record.
    pub fn load(path: &Path) -> Result<Self> {
        let text = files::read(path)?;
        let entries = serde_json::from_str(text.as_deref().unwrap_or("{}")).map_err(|problem| {
            let shown = path.display();
            Error::failed(format!("{shown} is not a record of files: {problem}")).resolve(format!(
                "move it away: mv {shown} {shown}.old; then remove our runtimes from the engines' files by hand"
            ))
        })?;
        Ok(Self { path: path.to_owned(), entries })
    }

    pub fn get(&self, file: &Path) -> Option<&Entry> {
        self.entries.get(file)
    }

    /// The folders above a file to remove with it once they are empty, the outermost first: those
    /// that are missing now, and those that were made for other files before.
    pub fn folders_for(&self, file: &Path) -> Vec<PathBuf> {
        let made = self.entries.values().flat_map(|entry| &entry.folders);
        let made = made.filter(|folder| file.starts_with(folder)).cloned();
        let mut folders: Vec<PathBuf> = made.chain(files::missing_folders(file)).collect();
        // The path of an outer folder is shorter.
        folders.sort();
        folders.dedup();
        folders
    }

    /// Adds or removes the entry of a file, and writes the record, which may have texts that only
    /// root may read.
    pub fn put(&mut self, file: &Path, entry: Option<Entry>) -> Result<()> {
        match entry {
            Some(entry) => _ = self.entries.insert(file.to_owned(), entry),
            None => _ = self.entries.remove(file),
        }
        if !self.entries.is_empty() {
            let text = serde_json::to_string_pretty(&self.entries).unwrap_or_default();
            return files::write(&self.path, &(text + "\n"), Some(0o600));
        }
        files::remove(&self.path)?;
        // The folder stays if it has other files.
        if let Some(folder) = self.path.parent() {
            let _ = std::fs::remove_dir(folder);
        }
        Ok(())
    }
}
