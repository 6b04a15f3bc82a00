//! Engines that read a folder of files beside their own: our file there is ours alone.

use toml_edit::{DocumentMut, Item, Table, Value};

use crate::engines::containerd::copy;
use crate::engines::toml_text::{self, get, get_text, parse, remove_default, table};
use crate::engines::{Result, RuntimeEntry};

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
    match runtime.is_default {
        Some(true) => {
            toml_text::set(table(&mut document, &CRIO_DEFAULT[..2])?, CRIO_DEFAULT[2], name);
        }
        Some(false) => remove_default(&mut document, CRIO_DEFAULT, name),
        None => {}
    }
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
    if runtime.is_default == Some(true) {
        toml_text::set(
            table(&mut document, &PODMAN_DEFAULT[..1])?,
            PODMAN_DEFAULT[1],
            &runtime.name,
        );
    }
    toml_text::set(table(&mut document, PODMAN_RUNTIMES)?, &runtime.name, programs);
    if runtime.is_default == Some(false) {
        remove_default(&mut document, PODMAN_DEFAULT, &runtime.name);
    }
    Ok(toml_text::text_of(&document))
}
