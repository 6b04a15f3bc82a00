//! Hook files in a `hooks.d` folder, which podman and CRI-O read.
//!
//! Source: oci-hooks(5),
//! <https://github.com/containers/common/blob/main/pkg/hooks/docs/oci-hooks.5.md>

use std::path::{Path, PathBuf};

use super::lock::{self, Lock};
use super::plan::Done;
use super::record::{Entry, Record};
use super::{files, json_text, links};
use crate::error::{Error, Result};
use crate::spec::json::quote;

/// The default folder of the engines.
pub const FOLDER: &str = "/usr/share/containers/oci/hooks.d";

/// A hook to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub file: PathBuf,
    /// The program that engines start.
    pub program: String,
    pub stage: &'static str,
}

impl Hook {
    /// The file's text. It has an environment, because engines otherwise pass on their own, and
    /// some engines the container's.
    fn text(&self) -> String {
        let name = Path::new(&self.program).file_name().unwrap_or_default();
        let (stage, name) = (quote(self.stage), quote(&name.to_string_lossy()));
        let program = quote(&self.program);
        format!(
            r#"{{
    "version": "1.0.0",
    "hook": {{
        "path": {program},
        "args": [{name}, {stage}],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    }},
    "when": {{ "always": true }},
    "stages": [{stage}]
}}
"#
        )
    }
}

/// Writes the hook's file, or removes it with the folders that were made for it according to the
/// record. Errors: the file belongs to another program.
pub fn put(hook: &Hook, record: &Path, is_removed: bool, is_dry: bool) -> Result<Done> {
    let lock = || lock::take(&[&hook.file, record], !is_removed);
    let held = (!is_dry).then(lock).transpose()?;
    let before = files::read(&hook.file)?;
    if before.as_deref().is_some_and(|text| !is_ours(text)) {
        let shown = hook.file.display();
        return Err(Error::failed(format!("{shown} is not ours"))
            .resolve(format!(
                "move it away: mv {shown} {shown}.old; or choose another place with --hook-folder DIR (nvidia-ctk: --hook-file-path FILE)"
            )));
    }
    let after = (!is_removed).then(|| hook.text());
    if let Some(held) = held.filter(|_| after != before) {
        make(&held, record, &hook.file, after.as_deref())?;
    }
    Ok(Done {
        file: hook.file.clone(),
        before,
        after,
    })
}

/// Writes the record first, so that the next run understands a run that was killed in between.
fn make(held: &Lock, record: &Path, file: &Path, text: Option<&str>) -> Result<()> {
    // The record's keys are absolute paths.
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut record = Record::load(record)?;
    let Some(text) = text else {
        files::remove(held, &file)?;
        let old = record.get(&file).cloned();
        return old.map_or(Ok(()), |old| {
            files::remove_folders(&old.folders);
            record.put(held, &file, None)
        });
    };
    let folders = record.folders_for(held, &file);
    if !folders.is_empty() {
        let entry = Entry {
            written: vec![text.to_owned()],
            folders,
            ..Entry::default()
        };
        record.put(held, &file, Some(entry))?;
    }
    files::write(held, &file, text, None)
}

fn is_ours(text: &str) -> bool {
    let path = |root: json_text::Node| {
        let path = root.member("hook")?.member("path")?.text()?.to_owned();
        Some(path)
    };
    let path = json_text::parse(text).ok().and_then(path);
    path.is_some_and(|path| links::is_name_of_ours(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_added_once_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let hook = Hook {
            file: dir.path().join("oci-nvidia-hook.json"),
            program: "/usr/bin/nvidia-container-runtime-hook".to_owned(),
            stage: "prestart",
        };
        let record = dir.path().join("record.json");
        let put = |hook: &Hook, is_removed, is_dry| super::put(hook, &record, is_removed, is_dry);
        assert!(put(&hook, false, true).unwrap().is_change());
        assert!(!hook.file.exists());
        let done = put(&hook, false, false).unwrap();
        let text = std::fs::read_to_string(&hook.file).unwrap();
        assert_eq!((done.before, done.after), (None, Some(text.clone())));
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found["hook"]["args"][0], "nvidia-container-runtime-hook");
        assert_eq!(found["stages"][0], "prestart");
        assert!(!put(&hook, false, false).unwrap().is_change());
        assert_eq!(put(&hook, true, false).unwrap().after, None);
        assert!(!hook.file.exists());
        assert!(!put(&hook, true, false).unwrap().is_change());
        std::fs::write(
            &hook.file,
            text.replace("nvidia-container-runtime-hook\",\n", "other\",\n"),
        )
        .unwrap();
        for is_removed in [false, true] {
            let error = put(&hook, is_removed, false).unwrap_err();
            assert!(error.message.ends_with("is not ours"), "{error}");
        }
    }

    /// The second file lies in a folder that was made for the first one.
    #[test]
    fn the_folders_are_removed_with_the_last_file() {
        for order in [[0, 1], [1, 0]] {
            let dir = tempfile::tempdir().unwrap();
            let record = dir.path().join("state/record.json");
            let hooks = ["10.json", "20.json"].map(|name| Hook {
                file: dir.path().join("oci/hooks.d").join(name),
                program: "/usr/bin/oci-decorator".to_owned(),
                stage: "prestart",
            });
            for hook in &hooks {
                put(hook, &record, false, false).unwrap();
            }
            for at in order {
                assert!(dir.path().join("oci/hooks.d").is_dir());
                put(&hooks[at], &record, true, false).unwrap();
            }
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    /// The shipped files have the same content.
    #[test]
    fn the_shipped_files_say_the_same() {
        for (stage, shipped) in [
            (
                "precreate",
                include_str!("../../hooks.d/10-oci-decorator-precreate.json"),
            ),
            (
                "prestart",
                include_str!("../../hooks.d/20-oci-decorator-prestart.json"),
            ),
        ] {
            let hook = Hook {
                file: PathBuf::new(),
                program: "/usr/bin/oci-decorator".to_owned(),
                stage,
            };
            let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(parsed(&hook.text()), parsed(shipped), "{stage}");
        }
    }
}
