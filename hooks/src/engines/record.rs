//! The record of changed files of engines, so that they can be restored.
//!
//! One JSON file has, for each path, the old text (null: there was no file), the written texts, the
//! runtimes, and the folders that were made. This distinguishes a file that we wrote from one that
//! was changed since, and from one that was removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files;
use super::lock::Lock;
use crate::error::{Error, Result};
use crate::spec::json::{quote, Json};

/// The path of root's record.
pub const DEFAULT_PATH: &str = "/var/lib/oci-decorator/runtimes.json";

/// The entry of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// The old text. `None`: the file did not exist.
    pub original: Option<String>,
    /// The text that was written last, and the one before it, which the file still has if a run is
    /// killed before it writes.
    pub written: Vec<String>,
    /// Our runtimes in the file.
    pub runtimes: Vec<String>,
    /// Folders that were made for the file, the outermost first.
    pub folders: Vec<String>,
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
    entries: BTreeMap<String, Entry>,
}

impl Record {
    /// Reads a record. Errors: it can't be read, or is not a record.
    pub fn load(path: &Path) -> Result<Self> {
        let text = files::read(path)?;
        let entries = parse(text.as_deref().unwrap_or("{}")).map_err(|problem| {
            let shown = path.display();
            Error::failed(format!("{shown} is not a record of files: {problem}")).resolve(format!(
                "move it away: mv {shown} {shown}.old; then remove our runtimes from the engines' files by hand"
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            entries,
        })
    }

    pub fn get(&self, file: &Path) -> Option<&Entry> {
        self.entries.get(&*file.to_string_lossy())
    }

    /// The folders above a file to remove with it once they are empty, the outermost first: those
    /// that were made now, and those that were made for other files before.
    pub fn folders_for(&self, held: &Lock, file: &Path) -> Vec<String> {
        let made = self.entries.values().flat_map(|entry| &entry.folders);
        let made = made.filter(|folder| file.starts_with(folder)).cloned();
        let mut folders: Vec<String> = made.chain(held.made_for(file)).collect();
        // The path of an outer folder is shorter.
        folders.sort();
        folders.dedup();
        folders
    }

    /// Adds or removes the entry of a file, and writes the record. The record may have texts that
    /// only root may read. `held` locks its folder.
    pub fn put(&mut self, held: &Lock, file: &Path, entry: Option<Entry>) -> Result<()> {
        let key = file.to_string_lossy().into_owned();
        match entry {
            Some(entry) => _ = self.entries.insert(key, entry),
            None => _ = self.entries.remove(&key),
        }
        if !self.entries.is_empty() {
            return files::write(held, &self.path, &text_of(&self.entries), Some(0o600));
        }
        files::remove(held, &self.path)?;
        // The folder stays if it has other files.
        if let Some(folder) = self.path.parent() {
            let _ = std::fs::remove_dir(folder);
        }
        Ok(())
    }
}

fn text_of(entries: &BTreeMap<String, Entry>) -> String {
    let list = |items: &[String]| {
        let items: Vec<_> = items.iter().map(|item| quote(item)).collect();
        format!("[{}]", items.join(", "))
    };
    let entry = |(path, entry): (&String, &Entry)| {
        let original = entry.original.as_deref().map_or("null".to_owned(), quote);
        format!(
            "  {}: {{\n    \"original\": {original},\n    \"written\": {},\n    \"runtimes\": {},\n    \"folders\": {}\n  }}",
            quote(path),
            list(&entry.written),
            list(&entry.runtimes),
            list(&entry.folders)
        )
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    format!("{{\n{}\n}}\n", entries.join(",\n"))
}

fn parse(text: &str) -> std::result::Result<BTreeMap<String, Entry>, String> {
    let root: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Json::Object(members) = root else {
        return Err(format!("expected an object, found {}", root.kind()));
    };
    let files = members.into_iter().map(|(path, value)| {
        let entry = entry(&value).ok_or_else(|| format!("{path}: a field is missing or wrong"))?;
        Ok((path.into_owned(), entry))
    });
    files.collect()
}

fn entry(value: &Json) -> Option<Entry> {
    let Json::Object(members) = value else {
        return None;
    };
    let field = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, v)| v);
    let list = |name: &str| match field(name)? {
        Json::Array(items) => {
            let texts = items.iter().map(|item| item.text().map(str::to_owned));
            texts.collect::<Option<Vec<_>>>()
        }
        _ => None,
    };
    let original = match field("original")? {
        Json::Null => None,
        text => Some(text.text()?.to_owned()),
    };
    Some(Entry {
        original,
        written: list("written")?,
        // Older records have no list, because there was only one runtime.
        runtimes: list("runtimes").unwrap_or_else(|| vec!["oci-decorator".to_owned()]),
        folders: list("folders")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::lock;
    use std::os::unix::fs::PermissionsExt;

    fn put(record: &mut Record, file: &Path, entry: Option<Entry>) -> Result<()> {
        let held = lock::take(&[&record.path], true)?;
        record.put(&held, file, entry)
    }

    #[test]
    fn what_is_remembered_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lib/record.json");
        let mut record = Record::load(&path).unwrap();
        let entry = Entry {
            original: Some("a \"b\"\n\u{1}".to_owned()),
            written: vec!["c".to_owned(), "d".to_owned()],
            runtimes: vec!["nvidia".to_owned()],
            folders: vec![],
        };
        put(&mut record, Path::new("/x"), Some(entry.clone())).unwrap();
        put(&mut record, Path::new("/y"), Some(Entry::default())).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut record = Record::load(&path).unwrap();
        assert_eq!(record.get(Path::new("/x")), Some(&entry));
        assert_eq!(record.get(Path::new("/y")), Some(&Entry::default()));
        assert!(entry.has_written("d") && !entry.has_written("a"));
        put(&mut record, Path::new("/x"), None).unwrap();
        put(&mut record, Path::new("/y"), None).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_not_a_record_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        for text in ["", "[]", "{\"/x\": 1}", "{\"/x\": {\"original\": 1}}"] {
            std::fs::write(&path, text).unwrap();
            let error = Record::load(&path).unwrap_err();
            assert!(
                error.message.contains("is not a record of files"),
                "{error}"
            );
            assert!(error.resolution.unwrap().contains("mv "));
        }
    }
}
