//! podman: our own file beside `containers.conf`.
//!
//! Source: <https://github.com/containers/common/blob/main/docs/containers.conf.5.md>

use toml_edit::Value;

use super::toml_text::{self, get, parse, remove_default, table};
use super::{Result, RuntimeEntry};

const RUNTIMES: &[&str] = &["engine", "runtimes"];
const DEFAULT: &[&str] = &["engine", "runtime"];

/// The text with the runtime. CDI needs no setting: podman reads the specifications.
pub fn with(text: &str, runtime: &RuntimeEntry) -> Result<String> {
    let mut document = parse(text)?;
    let programs = Value::Array([runtime.program.as_str()].into_iter().collect());
    if runtime.is_default == Some(true) {
        toml_text::set(table(&mut document, &DEFAULT[..1])?, DEFAULT[1], &runtime.name);
    }
    toml_text::set(table(&mut document, RUNTIMES)?, &runtime.name, programs);
    if runtime.is_default == Some(false) {
        remove_default(&mut document, DEFAULT, &runtime.name);
    }
    Ok(toml_text::text_of(&document))
}

/// The text without the runtime.
pub fn without(text: &str, name: &str) -> Result<String> {
    let mut document = parse(text)?;
    remove_default(&mut document, DEFAULT, name);
    toml_text::remove(&mut document, &[RUNTIMES, &[name]].concat());
    Ok(toml_text::text_of(&document))
}

/// The first program of a runtime.
pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let document = parse(text)?;
    let runtime = get(&document, &[RUNTIMES, &[name]].concat());
    let first = |item: &toml_edit::Item| item.as_array()?.get(0)?.as_str().map(str::to_owned);
    Ok(runtime.map(|item| first(item).unwrap_or_default()))
}
