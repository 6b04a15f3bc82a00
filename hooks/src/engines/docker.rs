//! Docker's `daemon.json`.
//!
//! Source: <https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file>

use super::json_text::{parse, remove_member, set_member, Kind, Node, Value};
use super::{Beside, Result, Wanted};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";
const FEATURES: &str = "features";
const CDI: &str = "cdi";

/// The text with the runtime.
pub fn with(text: &str, wanted: &Wanted, beside: &Beside) -> Result<String> {
    let root = parse(text)?;
    let name = wanted.name.as_str();
    let mut text = text.to_owned();
    if runtime(&root, name).and_then(path) != Some(&wanted.program) {
        let program = Value::Text(wanted.program.clone());
        // Arguments that an admin added stay.
        text = if runtime(&root, name).is_some() {
            set_member(&text, &[RUNTIMES, name, "path"], &program)?
        } else {
            let entry = Value::Object(vec![("path".to_owned(), program)]);
            set_member(&text, &[RUNTIMES, name], &entry)?
        };
    }
    match wanted.is_default {
        Some(true) => text = set_member(&text, &[DEFAULT], &Value::Text(name.to_owned()))?,
        Some(false) => text = own_default(&text, name, beside)?,
        None => {}
    }
    match wanted.cdi {
        Some(true) => set_member(&text, &[FEATURES, CDI], &Value::Flag(true)),
        Some(false) => own_cdi(&text, beside),
        None => Ok(text),
    }
}

/// The text without the runtime. The earlier default runtime and the earlier setting for CDI come
/// back.
pub fn without(text: &str, name: &str, beside: &Beside) -> Result<String> {
    let mut text = own_default(text, name, beside)?;
    text = own_cdi(&text, beside)?;
    text = remove_member(&text, &[RUNTIMES, name])?;
    without_empty(text, RUNTIMES, beside)
}

/// The text with the default runtime from before ours became the default.
fn own_default(text: &str, name: &str, beside: &Beside) -> Result<String> {
    if default(text)?.as_deref() != Some(name) {
        return Ok(text.to_owned());
    }
    let other = default(beside.original.unwrap_or_default())?;
    match other.filter(|other| other != name) {
        Some(other) => set_member(text, &[DEFAULT], &Value::Text(other)),
        None => remove_member(text, &[DEFAULT]),
    }
}

/// The text with the earlier setting for CDI, if we changed it.
fn own_cdi(text: &str, beside: &Beside) -> Result<String> {
    let ours = cdi(beside.written.unwrap_or_default())?;
    let before = cdi(beside.original.unwrap_or_default())?;
    if cdi(text)? != Some(true) || ours != Some(true) || before == Some(true) {
        return Ok(text.to_owned());
    }
    if let Some(before) = before {
        return set_member(text, &[FEATURES, CDI], &Value::Flag(before));
    }
    let text = remove_member(text, &[FEATURES, CDI])?;
    without_empty(text, FEATURES, beside)
}

/// The text without an object that is empty now and did not exist before.
fn without_empty(text: String, name: &str, beside: &Beside) -> Result<String> {
    let before = parse(beside.original.unwrap_or_default())?;
    let root = parse(&text)?;
    let left = root.member(name).map(Node::members);
    if left.is_some_and(<[_]>::is_empty) && before.member(name).is_none() {
        return remove_member(&text, &[name]);
    }
    Ok(text)
}

/// The program of a runtime.
pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let root = parse(text)?;
    let runtime = runtime(&root, name);
    // A containerd runtime has a type and no path, and is not ours.
    Ok(runtime.map(|runtime| path(runtime).unwrap_or_default().to_owned()))
}

/// The setting for CDI in a file. `None`: it has none.
pub fn reads_cdi(text: Option<&str>) -> Option<bool> {
    cdi(text?).ok()?
}

fn default(text: &str) -> Result<Option<String>> {
    let root = parse(text)?;
    let name = root.member(DEFAULT).and_then(Node::text);
    Ok(name.map(str::to_owned))
}

fn cdi(text: &str) -> Result<Option<bool>> {
    let root = parse(text)?;
    let cdi = root.member(FEATURES).and_then(|all| all.member(CDI));
    Ok(cdi.and_then(|node| match node.kind {
        Kind::Flag(flag) => Some(flag),
        _ => None,
    }))
}

fn runtime<'a>(root: &'a Node, name: &str) -> Option<&'a Node> {
    root.member(RUNTIMES)?.member(name)
}

fn path(runtime: &Node) -> Option<&str> {
    runtime.member("path")?.text()
}
