//! Changes single values of a TOML text. Comments, order and everything else stay.

use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use crate::engines::{Result, RuntimeEntry};

/// Reads a text. Errors: it is not TOML, with the line of the mistake.
pub fn parse(text: &str) -> Result<DocumentMut> {
    text.parse::<DocumentMut>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
        let problem = error.message().replace('\n', "; ");
        format!("line {line}: {problem}")
    })
}

pub fn text_of(document: &DocumentMut) -> String {
    let text = document.to_string();
    // The text does not begin with the blank lines of a removed table.
    text.trim_start_matches('\n').to_owned()
}

pub fn get<'a>(document: &'a DocumentMut, path: &[&str]) -> Option<&'a Item> {
    path.iter().try_fold(document.as_item(), |item, name| item.as_table_like()?.get(name))
}

pub fn get_text<'a>(document: &'a DocumentMut, path: &[&str]) -> Option<&'a str> {
    get(document, path)?.as_str()
}

pub fn get_table<'a>(document: &'a DocumentMut, path: &[&str]) -> Option<&'a dyn TableLike> {
    get(document, path)?.as_table_like()
}

/// The table at a path, which is made if it is missing.
/// Errors: a value in the path is not a table.
pub fn table<'a>(document: &'a mut DocumentMut, path: &[&str]) -> Result<&'a mut dyn TableLike> {
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for (depth, name) in path.iter().enumerate() {
        let item = table.entry(name).or_insert_with(|| {
            let mut made = Table::new();
            // A table without values gets no line.
            made.set_implicit(true);
            Item::Table(made)
        });
        let found = item.as_table_like_mut();
        let shown = || path[..=depth].join(".");
        table = found.ok_or_else(|| format!("{} is not a table", shown()))?;
    }
    Ok(table)
}

/// Sets a key of a table. Comments on its line stay.
pub fn set(table: &mut dyn TableLike, key: &str, value: impl Into<Value>) {
    let mut value: Value = value.into();
    let old = table.get_mut(key).and_then(Item::as_value_mut);
    match old {
        Some(old) if is_same(old, &value) => {}
        Some(old) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => _ = table.insert(key, Item::Value(value)),
    }
}

fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            let same = |(one, other): (&Value, &Value)| is_same(one, other);
            one.len() == other.len() && one.iter().zip(other.iter()).all(same)
        }
        (Value::String(one), Value::String(other)) => one.value() == other.value(),
        (Value::Boolean(one), Value::Boolean(other)) => one.value() == other.value(),
        (Value::Integer(one), Value::Integer(other)) => one.value() == other.value(),
        _ => false,
    }
}

/// Makes the runtime the default one, which a path names, or takes that back, or leaves it as it is.
pub fn set_default(
    document: &mut DocumentMut,
    path: &[&str],
    runtime: &RuntimeEntry,
) -> Result<()> {
    match (runtime.is_default, path) {
        (Some(true), [above @ .., key]) => set(table(document, above)?, key, &runtime.name),
        (Some(false), _) => remove_default(document, path, &runtime.name),
        _ => {}
    }
    Ok(())
}

/// Removes the item at a path if it names our runtime.
pub fn remove_default(document: &mut DocumentMut, path: &[&str], ours: &str) {
    if get_text(document, path) == Some(ours) {
        remove(document, path);
    }
}

/// Removes the item at a path, and the tables above that are empty then.
pub fn remove(document: &mut DocumentMut, path: &[&str]) {
    remove_below(document.as_table_mut(), path);
}

fn remove_below(table: &mut dyn TableLike, path: &[&str]) {
    let [name, rest @ ..] = path else { return };
    if rest.is_empty() {
        table.remove(name);
    } else if let Some(item) = table.get_mut(name) {
        let Some(inner) = item.as_table_like_mut() else { return };
        remove_below(inner, rest);
        let (is_empty, has_values) = (inner.is_empty(), inner.iter().any(|(_, i)| i.is_value()));
        let Some(inner) = item.as_table_mut() else { return };
        let decor = inner.decor();
        let comments = [decor.prefix(), decor.suffix()].into_iter().flatten();
        if comments.filter_map(|text| text.as_str()).any(|text| text.contains('#')) {
            return;
        }
        if is_empty {
            table.remove(name);
        } else if !has_values {
            // Its line says nothing.
            inner.set_implicit(true);
        }
    }
}
