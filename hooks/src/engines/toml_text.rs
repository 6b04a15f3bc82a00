//! Changes single values of a TOML text. Comments, order and everything else stay.

use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use super::{FileHistory, Result};

/// Reads a text. Errors: it is not TOML, with the line of the mistake.
pub fn parse(text: &str) -> Result<DocumentMut> {
    text.parse::<DocumentMut>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
        let problem = error.message().replace('\n', "; ");
        format!("line {line}: {problem}")
    })
}

/// The document as text.
pub fn text_of(document: &DocumentMut) -> String {
    let text = document.to_string();
    // The text does not begin with the blank lines of a removed table.
    text.trim_start_matches('\n').to_owned()
}

/// The item at a path.
pub fn get<'a>(document: &'a DocumentMut, path: &[&str]) -> Option<&'a Item> {
    path.iter().try_fold(document.as_item(), |item, name| item.as_table_like()?.get(name))
}

/// The text at a path.
pub fn get_text<'a>(document: &'a DocumentMut, path: &[&str]) -> Option<&'a str> {
    get(document, path)?.as_str()
}

/// The table at a path.
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

/// Restores the default runtime at a path, if ours is the default, and the line of its table.
pub fn put_default_back(
    document: &mut DocumentMut,
    history: &FileHistory,
    path: &[&str],
    ours: &str,
) -> Result<()> {
    let before = parse(history.original.unwrap_or_default())?;
    let (Some((key, above)), Some(_)) =
        (path.split_last(), get_text(document, path).filter(|name| *name == ours))
    else {
        return Ok(());
    };
    match get_text(&before, path).filter(|other| *other != ours) {
        Some(other) => set(table(document, above)?, key, other),
        None => remove(document, path),
    }
    as_before(document, &before, above);
    Ok(())
}

/// Removes the item at a path, and the tables above that were made for it.
pub fn remove(document: &mut DocumentMut, path: &[&str]) {
    remove_below(document.as_table_mut(), path);
}

/// Removes an item below a table. True if the table is empty now.
fn remove_below(table: &mut dyn TableLike, path: &[&str]) -> bool {
    let Some((name, rest)) = path.split_first() else {
        return false;
    };
    if rest.is_empty() {
        table.remove(name);
        return table.is_empty();
    }
    let Some(inner) = table.get_mut(name) else {
        return false;
    };
    // A table with its own line, which an admin wrote, stays.
    let is_implicit = inner.as_table().is_some_and(Table::is_implicit);
    let Some(inner) = inner.as_table_like_mut() else {
        return false;
    };
    if remove_below(inner, rest) && is_implicit {
        table.remove(name);
    }
    table.is_empty()
}

/// Removes the line of a table that has only tables left, if it had no line before.
pub fn as_before(document: &mut DocumentMut, before: &DocumentMut, path: &[&str]) {
    let is_written = |table: &Table| !table.is_implicit();
    if get(before, path).and_then(Item::as_table).is_some_and(is_written) {
        return;
    }
    let found = path
        .iter()
        .try_fold(document.as_item_mut(), |item, name| item.as_table_like_mut()?.get_mut(name));
    let Some(table) = found.and_then(Item::as_table_mut) else {
        return;
    };
    if table.iter().any(|(_, item)| item.is_value()) {
        return;
    }
    table.set_implicit(true);
    if table.is_empty() {
        remove(document, path);
    }
}

/// True for a text without a value, a table or a comment.
pub fn is_empty(text: &str) -> bool {
    text.trim().is_empty()
}
