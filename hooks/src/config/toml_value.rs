//! Values of a TOML text that is only read.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, Item, TableLike, TomlError};

pub type Table = BTreeMap<String, Value>;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    String(String),
    Boolean(bool),
    Array(Vec<Value>),
    Table(Table),
    /// No key has a value of this type.
    Other(&'static str),
}

/// Errors: the text is not TOML.
pub fn parse(text: &str) -> Result<Table, TomlError> {
    text.parse::<DocumentMut>().map(|document| table(document.as_table()))
}

fn table(items: &dyn TableLike) -> Table {
    items.iter().map(|(key, item)| (key.to_owned(), Value::of(item))).collect()
}

impl Value {
    fn of(item: &Item) -> Self {
        if let Some(items) = item.as_table_like() {
            return Self::Table(table(items));
        }
        if let Some(tables) = item.as_array_of_tables() {
            return Self::Array(tables.iter().map(|it| Self::Table(table(it))).collect());
        }
        match item.as_value() {
            Some(value) => Self::of_value(value),
            None => Self::Other("none"),
        }
    }

    fn of_value(value: &toml_edit::Value) -> Self {
        match value {
            toml_edit::Value::String(text) => Self::String(text.value().clone()),
            toml_edit::Value::Boolean(flag) => Self::Boolean(*flag.value()),
            toml_edit::Value::Array(items) => {
                Self::Array(items.iter().map(Self::of_value).collect())
            }
            toml_edit::Value::InlineTable(items) => Self::Table(table(items)),
            other => Self::Other(other.type_name()),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Boolean(flag) => Some(*flag),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_table(&self) -> Option<&Table> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The name of its type, for messages.
    pub fn type_str(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Boolean(_) => "boolean",
            Self::Array(_) => "array",
            Self::Table(_) => "table",
            Self::Other(name) => name,
        }
    }
}
