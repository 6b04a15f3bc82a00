//! Hook files in a `hooks.d` folder, which podman and CRI-O read.
//!
//! Source: oci-hooks(5),
//! <https://github.com/containers/common/blob/main/pkg/hooks/docs/oci-hooks.5.md>

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::engines::{change, links, Done};
use crate::error::{Error, Result};

pub const FOLDER: &str = "/usr/share/containers/oci/hooks.d";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub file: PathBuf,
    pub program: String,
    pub stage: &'static str,
}

impl Hook {
    /// The file's text. It has an environment, because engines otherwise pass on their own, and
    /// some engines the container's.
    pub fn text(&self) -> String {
        let name = Path::new(&self.program).file_name().unwrap_or_default();
        let document = json!({
            "version": "1.0.0",
            "hook": {
                "path": self.program,
                "args": [name.to_string_lossy(), self.stage],
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "when": {"always": true},
            "stages": [self.stage],
        });
        format!("{document:#}\n")
    }
}

/// Writes the hook's file, or removes it. Errors: the file belongs to another program.
pub fn put(hook: &Hook, is_removed: bool, is_dry: bool) -> Result<Done> {
    change(&hook.file, is_dry, |before| {
        if before.is_some_and(|text| !is_ours(text)) {
            let shown = hook.file.display();
            return Err(Error::failed(format!("{shown} is not ours")).resolve(format!(
                "move it away: mv {shown} {shown}.old; or choose another place with --hook-folder DIR (nvidia-ctk: --hook-file-path FILE)"
            )));
        }
        Ok((!is_removed).then(|| hook.text()))
    })
}

fn is_ours(text: &str) -> bool {
    let root: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    root["hook"]["path"].as_str().is_some_and(links::is_name_of_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_files_say_the_same() {
        for (stage, shipped) in [
            ("precreate", include_str!("../../hooks.d/10-oci-decorator-precreate.json")),
            ("prestart", include_str!("../../hooks.d/20-oci-decorator-prestart.json")),
        ] {
            let hook =
                Hook { file: PathBuf::new(), program: "/usr/bin/oci-decorator".to_owned(), stage };
            let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(parsed(&hook.text()), parsed(shipped), "{stage}");
        }
    }
}
