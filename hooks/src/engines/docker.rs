//! Docker's `daemon.json`.
//!
//! Source: <https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file>

use serde_json::{json, Value};

use super::json_text::{parse, remove_member, set_member};
use super::{FileHistory, Result, RuntimeEntry};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &[&str] = &["default-runtime"];
const CDI: &[&str] = &["features", "cdi"];

/// The text with the runtime.
pub fn with(text: &str, runtime: &RuntimeEntry, history: &FileHistory) -> Result<String> {
    let root = parse(text)?;
    let name = runtime.name.as_str();
    let entry = &root[RUNTIMES][name];
    let mut text = if entry["path"] == runtime.program {
        text.to_owned()
    } else if entry.is_null() {
        set_member(text, &[RUNTIMES, name], &json!({"path": runtime.program}))?
    } else {
        // Arguments that an admin added stay.
        set_member(text, &[RUNTIMES, name, "path"], &json!(runtime.program))?
    };
    match runtime.is_default {
        Some(true) => text = set_member(&text, DEFAULT, &json!(name))?,
        Some(false) => text = without_default(&text, name, history)?,
        None => {}
    }
    match runtime.cdi {
        Some(true) => set_member(&text, CDI, &json!(true)),
        Some(false) => without_cdi(&text, history),
        None => Ok(text),
    }
}

/// The text without the runtime. The earlier default runtime and the earlier setting for CDI come
/// back.
pub fn without(text: &str, name: &str, history: &FileHistory) -> Result<String> {
    let text = without_default(text, name, history)?;
    let text = without_cdi(&text, history)?;
    let text = remove_member(&text, &[RUNTIMES, name])?;
    without_empty(text, RUNTIMES, history)
}

/// The text with the default runtime from before ours became the default.
fn without_default(text: &str, name: &str, history: &FileHistory) -> Result<String> {
    if at(&parse(text)?, DEFAULT) != name {
        return Ok(text.to_owned());
    }
    let original = parse(history.original.unwrap_or_default())?;
    match at(&original, DEFAULT) {
        before if before.is_string() && before != name => set_member(text, DEFAULT, before),
        _ => remove_member(text, DEFAULT),
    }
}

/// The text with the earlier setting for CDI, if we changed it.
fn without_cdi(text: &str, history: &FileHistory) -> Result<String> {
    let written = parse(history.written.unwrap_or_default())?;
    let original = parse(history.original.unwrap_or_default())?;
    let before = at(&original, CDI);
    if at(&parse(text)?, CDI) != true || at(&written, CDI) != true || before == true {
        return Ok(text.to_owned());
    }
    if before.is_boolean() {
        return set_member(text, CDI, before);
    }
    without_empty(remove_member(text, CDI)?, CDI[0], history)
}

/// The text without an object that is empty now and did not exist before.
fn without_empty(text: String, name: &str, history: &FileHistory) -> Result<String> {
    let original = parse(history.original.unwrap_or_default())?;
    if parse(&text)?[name] == json!({}) && original.get(name).is_none() {
        return remove_member(&text, &[name]);
    }
    Ok(text)
}

/// The program of a runtime.
pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let root = parse(text)?;
    let entry = root[RUNTIMES].get(name);
    // A containerd runtime has a type and no path, and is not ours.
    Ok(entry.map(|entry| entry["path"].as_str().unwrap_or_default().to_owned()))
}

/// The setting for CDI in a file. `None`: it has none.
pub fn reads_cdi(text: Option<&str>) -> Option<bool> {
    at(&parse(text?).ok()?, CDI).as_bool()
}

/// The value at a path; null if there is none.
fn at<'a>(root: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(root, |value, name| &value[*name])
}
