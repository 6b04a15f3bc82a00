//! Engines that read a folder of files beside their own: our file there is ours alone.

use std::path::{Path, PathBuf};

use serde_json::json;
use toml_edit::{DocumentMut, Item, Table, Value};

use crate::engines::containerd::copy;
use crate::engines::toml_text::{self, get, get_text, parse, table};
use crate::engines::{change, links, Done, Result, RuntimeEntry};
use crate::error::{self, Error};

/// CRI-O: <https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md>
pub const CRIO_RUNTIMES: &[&str] = &["crio", "runtime", "runtimes"];
pub const CRIO_DEFAULT: &[&str] = &["crio", "runtime", "default_runtime"];
/// CRI-O's default runtimes: crun since 1.31, runc before.
const BUILT_IN: [&str; 2] = ["crun", "runc"];

/// The text with the runtime. CDI needs no setting: CRI-O reads the specifications.
pub fn crio_with(text: &str, runtime: &RuntimeEntry, others: &[String]) -> Result<String> {
    let mut document = parse(text)?;
    let name = runtime.name.as_str();
    let path = [CRIO_RUNTIMES, &[name]].concat();
    if get(&document, &path).is_none() {
        let model = crio_model(&document, others, name)?;
        table(&mut document, CRIO_RUNTIMES)?.insert(name, Item::Table(model));
    }
    let ours = table(&mut document, &path)?;
    toml_text::set(ours, "runtime_path", &runtime.program);
    toml_text::set(ours, "runtime_type", "oci");
    toml_text::set_default(&mut document, CRIO_DEFAULT, runtime)?;
    Ok(toml_text::text_of(&document))
}

/// The program of a runtime, which its item has somewhere.
pub fn program(
    text: &str,
    runtimes: &[&str],
    name: &str,
    of: fn(&Item) -> Option<&str>,
) -> Result<Option<String>> {
    let document = parse(text)?;
    let runtime = get(&document, &[runtimes, &[name]].concat());
    Ok(runtime.map(|item| of(item).unwrap_or_default().to_owned()))
}

/// Errors: the text of another file is not TOML.
pub fn check(text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| parse(text).map(|_| ()))
}

/// A copy of the default runtime of all the files, because the path of its monitor and its allowed
/// annotations apply to our runtime too.
fn crio_model(document: &DocumentMut, others: &[String], name: &str) -> Result<Table> {
    let files = others.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let files: Vec<&DocumentMut> = files.iter().chain([document]).collect();
    let named = files.iter().rev().find_map(|file| get_text(file, CRIO_DEFAULT));
    let models = named.into_iter().filter(|n| *n != name).chain(BUILT_IN);
    for name in models {
        let path = [CRIO_RUNTIMES, &[name]].concat();
        let found = files.iter().rev().find_map(|file| get(file, &path));
        if let Some(found) = found.and_then(Item::as_table_like) {
            return Ok(copy(found));
        }
    }
    Ok(Table::new())
}

/// podman: <https://github.com/containers/common/blob/main/docs/containers.conf.5.md>
pub const PODMAN_RUNTIMES: &[&str] = &["engine", "runtimes"];
pub const PODMAN_DEFAULT: &[&str] = &["engine", "runtime"];

/// The text with the runtime. CDI needs no setting: podman reads the specifications.
pub fn podman_with(text: &str, runtime: &RuntimeEntry) -> Result<String> {
    let mut document = parse(text)?;
    let programs = Value::Array([runtime.program.as_str()].into_iter().collect());
    toml_text::set_default(&mut document, PODMAN_DEFAULT, runtime)?;
    toml_text::set(table(&mut document, PODMAN_RUNTIMES)?, &runtime.name, programs);
    Ok(toml_text::text_of(&document))
}

pub const HOOKS_FOLDER: &str = "/usr/share/containers/oci/hooks.d";

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
pub fn put_hook(hook: &Hook, is_removed: bool, is_dry: bool) -> error::Result<Done> {
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
