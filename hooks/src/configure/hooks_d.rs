//! Files in a `hooks.d` folder, from which podman and CRI-O take OCI hooks.
//!
//! Source: oci-hooks(5),
//! <https://github.com/containers/common/blob/main/pkg/hooks/docs/oci-hooks.5.md>

use std::path::{Path, PathBuf};

use super::plan::Done;
use super::{files, json_text, links, lock};
use crate::error::{Error, Result};
use crate::oci::json::quote;

/// Where engines look by themselves.
pub const FOLDER: &str = "/usr/share/containers/oci/hooks.d";

/// A hook to be entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub file: PathBuf,
    /// The program that engines start.
    pub program: String,
    pub stage: &'static str,
}

impl Hook {
    /// The file's text. The environment is given, as engines pass on their own otherwise, and
    /// some of them the container's.
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

/// Writes the hook's file, or removes it. Errors: there is another program's by that name.
pub fn put(hook: &Hook, is_removed: bool, is_dry: bool) -> Result<Done> {
    let lock = || lock::take(&[&hook.file], !is_removed);
    let held = (!is_dry).then(lock).transpose()?;
    let before = files::read(&hook.file)?;
    if before.as_deref().is_some_and(|text| !is_ours(text)) {
        let shown = hook.file.display();
        return Err(Error::failed(format!("{shown} is not ours"))
            .resolve("take another file with --hook-file-path"));
    }
    let after = (!is_removed).then(|| hook.text());
    if let Some(held) = held.filter(|_| after != before) {
        match &after {
            Some(text) => files::write(&held, &hook.file, text, None)?,
            None => files::remove(&held, &hook.file)?,
        }
    }
    Ok(Done {
        file: hook.file.clone(),
        before,
        after,
    })
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
    fn a_hook_comes_once_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let hook = Hook {
            file: dir.path().join("oci-nvidia-hook.json"),
            program: "/usr/bin/nvidia-container-runtime-hook".to_owned(),
            stage: "prestart",
        };
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

    /// The files that are shipped are the same.
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
