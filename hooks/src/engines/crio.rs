//! CRI-O: our own file in its drop-in folder.
//!
//! Source: <https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md>

use toml_edit::{DocumentMut, Item, Table};

use super::containerd::copy;
use super::toml_text::{self, get, get_text, parse, remove_default, table};
use super::{Result, RuntimeEntry};

const RUNTIME: &[&str] = &["crio", "runtime"];
pub const DEFAULT: &[&str] = &["crio", "runtime", "default_runtime"];
/// CRI-O's default runtimes: crun since 1.31, runc before.
const BUILT_IN: [&str; 2] = ["crun", "runc"];

/// The text with the runtime. CDI needs no setting: CRI-O reads the specifications.
pub fn with(text: &str, runtime: &RuntimeEntry, others: &[String]) -> Result<String> {
    let mut document = parse(text)?;
    let name = runtime.name.as_str();
    let path = [RUNTIME, &["runtimes"]].concat();
    if get(&document, &[&path[..], &[name]].concat()).is_none() {
        let model = model(&document, others, name)?;
        table(&mut document, &path)?.insert(name, Item::Table(model));
    }
    let ours = table(&mut document, &[&path[..], &[name]].concat())?;
    toml_text::set(ours, "runtime_path", &runtime.program);
    toml_text::set(ours, "runtime_type", "oci");
    match runtime.is_default {
        Some(true) => toml_text::set(table(&mut document, RUNTIME)?, DEFAULT[2], name),
        Some(false) => remove_default(&mut document, DEFAULT, name),
        None => {}
    }
    Ok(toml_text::text_of(&document))
}

/// The text without the runtime.
pub fn without(text: &str, name: &str) -> Result<String> {
    let mut document = parse(text)?;
    remove_default(&mut document, DEFAULT, name);
    toml_text::remove(&mut document, &[RUNTIME, &["runtimes", name]].concat());
    Ok(toml_text::text_of(&document))
}

/// The program of a runtime.
pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let document = parse(text)?;
    let runtime = get(&document, &[RUNTIME, &["runtimes", name]].concat());
    let path = |item: &Item| item.get("runtime_path").and_then(Item::as_str).map(str::to_owned);
    Ok(runtime.map(|item| path(item).unwrap_or_default()))
}

/// Errors: the text of another file is not TOML.
pub fn check(text: Option<&str>) -> Result<()> {
    text.map_or(Ok(()), |text| parse(text).map(|_| ()))
}

/// A copy of the default runtime of all the files, because the path of its monitor and its allowed
/// annotations apply to our runtime too.
fn model(document: &DocumentMut, others: &[String], name: &str) -> Result<Table> {
    let files = others.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let files: Vec<&DocumentMut> = files.iter().chain([document]).collect();
    let named = files.iter().rev().find_map(|file| get_text(file, DEFAULT));
    let models = named.into_iter().filter(|n| *n != name).chain(BUILT_IN);
    for name in models {
        let path = [RUNTIME, &["runtimes", name]].concat();
        let found = files.iter().rev().find_map(|file| get(file, &path));
        if let Some(found) = found.and_then(Item::as_table_like) {
            return Ok(copy(found));
        }
    }
    Ok(Table::new())
}
