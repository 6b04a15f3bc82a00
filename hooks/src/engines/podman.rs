//! podman: our own file beside `containers.conf`.
//!
//! Source: <https://github.com/containers/common/blob/main/docs/containers.conf.5.md>

use toml_edit::Value;

use super::toml_text::{self, get, parse, put_default_back, table};
use super::{FileHistory, Result, RuntimeEntry};

const RUNTIMES: &[&str] = &["engine", "runtimes"];
const DEFAULT: &[&str] = &["engine", "runtime"];

/// The text with the runtime. CDI needs no setting: podman reads the specifications.
pub fn with(text: &str, runtime: &RuntimeEntry, history: &FileHistory) -> Result<String> {
    let mut document = parse(text)?;
    let programs = Value::Array([runtime.program.as_str()].into_iter().collect());
    if runtime.is_default == Some(true) {
        toml_text::set(table(&mut document, &DEFAULT[..1])?, DEFAULT[1], &runtime.name);
    }
    toml_text::set(table(&mut document, RUNTIMES)?, &runtime.name, programs);
    if runtime.is_default == Some(false) {
        put_default_back(&mut document, history, DEFAULT, &runtime.name)?;
    }
    Ok(toml_text::text_of(&document))
}

/// The text without the runtime.
pub fn without(text: &str, name: &str, history: &FileHistory) -> Result<String> {
    let mut document = parse(text)?;
    put_default_back(&mut document, history, DEFAULT, name)?;
    toml_text::remove(&mut document, &[RUNTIMES, &[name]].concat());
    let before = parse(history.original.unwrap_or_default())?;
    for table in [RUNTIMES, &RUNTIMES[..1]] {
        toml_text::as_before(&mut document, &before, table);
    }
    Ok(toml_text::text_of(&document))
}

/// The first program of a runtime.
pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let document = parse(text)?;
    let runtime = get(&document, &[RUNTIMES, &[name]].concat());
    let first = |item: &toml_edit::Item| item.as_array()?.get(0)?.as_str().map(str::to_owned);
    Ok(runtime.map(|item| first(item).unwrap_or_default()))
}
