//! Docker's `daemon.json`. Its members keep their order, and values that do not change keep their
//! bytes.
//!
//! Source: <https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file>

use serde_json::{json, Value};

use crate::engines::{Result, RuntimeEntry};
use crate::spec::config::{quote, RawObject};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &[&str] = &["default-runtime"];
const CDI: &[&str] = &["features", "cdi"];
/// The byte-order mark, which dockerd skips at the start of the file.
const MARK: char = '\u{feff}';
/// The indentation for a text that has none.
const STEP: &str = "    ";

/// The text with the runtime. Arguments that an admin gave it stay.
pub fn with(text: &str, runtime: &RuntimeEntry) -> Result<String> {
    let mut text = put(text, &[RUNTIMES, &runtime.name, "path"], Some(&json!(runtime.program)))?;
    match runtime.is_default {
        Some(true) => text = put(&text, DEFAULT, Some(&json!(runtime.name)))?,
        Some(false) => text = without_default(&text, &runtime.name)?,
        None => {}
    }
    match runtime.cdi {
        Some(true) => put(&text, CDI, Some(&json!(true))),
        Some(false) if reads_cdi(Some(&text)) == Some(true) => put(&text, CDI, None),
        _ => Ok(text),
    }
}

/// The text without the runtime. The setting for CDI stays, as other programs may need it.
pub fn without(text: &str, name: &str) -> Result<String> {
    put(&without_default(text, name)?, &[RUNTIMES, name], None)
}

fn without_default(text: &str, name: &str) -> Result<String> {
    if parse(text)?[DEFAULT[0]] == name {
        return put(text, DEFAULT, None);
    }
    Ok(text.to_owned())
}

pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let root = parse(text)?;
    let entry = root[RUNTIMES].get(name);
    // A containerd runtime has a type and no path, and is not ours.
    Ok(entry.map(|entry| entry["path"].as_str().unwrap_or_default().to_owned()))
}

/// The setting for CDI in a file. `None`: it has none.
pub fn reads_cdi(text: Option<&str>) -> Option<bool> {
    parse(text?).ok()?[CDI[0]][CDI[1]].as_bool()
}

/// Errors: the text is no object of JSON, such as one with comments, which dockerd refuses too.
fn parse(text: &str) -> Result<Value> {
    serde_json::from_str::<RawObject>(object(text)).map_err(|error| error.to_string())?;
    serde_json::from_str(object(text)).map_err(|error| error.to_string())
}

/// The text of the object. An empty file is an empty object.
fn object(text: &str) -> &str {
    match text.trim_start_matches(MARK).trim() {
        "" => "{}",
        text => text,
    }
}

/// The text with a value at a path, or without one. Missing objects are made, and objects that are
/// empty then are removed. Errors: the text, or a value in the path, is not an object.
fn put(text: &str, path: &[&str], value: Option<&Value>) -> Result<String> {
    let line = text.lines().nth(1).unwrap_or_default();
    let step = match line.len() - line.trim_start_matches([' ', '\t']).len() {
        0 => STEP,
        length => &line[..length],
    };
    Ok(match changed(object(text), path, value, step, "\n")? {
        Some(new) => new + "\n",
        None => text.to_owned(),
    })
}

/// The new text of an object, whose members are on lines of their own. `None`: nothing changes.
fn changed(
    text: &str,
    path: &[&str],
    value: Option<&Value>,
    step: &str,
    line: &str,
) -> Result<Option<String>> {
    let members: RawObject = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let [name, below @ ..] = path else { return Ok(None) };
    // Of members with one name, dockerd uses the last.
    let old = members.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.get());
    let inner = format!("{line}{step}");
    let new = if below.is_empty() {
        if old.and_then(|old| serde_json::from_str(old).ok()).as_ref() == value {
            return Ok(None);
        }
        value.map(Value::to_string)
    } else {
        match changed(old.unwrap_or("{}"), below, value, step, &inner) {
            Ok(None) => return Ok(None),
            Ok(new) => new.filter(|new| new != "{}"),
            Err(_) => return Err(format!("{name} is not an object")),
        }
    };
    let mut found: Vec<_> = members.0.iter().map(|(key, value)| (&**key, value.get())).collect();
    match (found.iter().rposition(|(key, _)| key == name), &new) {
        (Some(at), Some(new)) => found[at].1 = new,
        (None, Some(new)) => found.push((name, new)),
        (_, None) => found.retain(|(key, _)| key != name),
    }
    let shown = found.iter().map(|(key, value)| format!("{inner}{}: {value}", quote(key)));
    let shown = shown.collect::<Vec<_>>().join(",");
    Ok(Some(if shown.is_empty() { "{}".to_owned() } else { format!("{{{shown}{line}}}") }))
}
