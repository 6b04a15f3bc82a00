//! Changes the root of the paths in an existing specification.

use serde_json::Value;

use crate::config::cdi::Syntax;
use crate::error::{Error, Result};
use crate::model::edits::lies_in;
use crate::spec::json::Json;

/// What to change.
#[derive(Debug, Clone)]
pub struct Transform {
    pub from: String,
    pub to: String,
    /// Changes the paths in the container instead of the host's.
    pub in_container: bool,
}

impl Transform {
    /// The document with the paths below the new root. Everything else stays, also unknown members.
    /// Errors: the text does not have this syntax, is not an object, or has a key twice.
    pub fn apply(&self, text: &str, syntax: Syntax) -> Result<Value> {
        let refuse = |problem: String| {
            Error::usage(format!("the specification is {problem}"))
                .resolve("give --input a specification in JSON or YAML")
        };
        let node = syntax.parse(text).map_err(refuse)?;
        if !matches!(node, Json::Object(_)) {
            return Err(refuse(format!("{}, and not an object", node.kind())));
        }
        let mut document = value("", node).map_err(refuse)?;
        if syntax == Syntax::Json {
            // `Json` rounds large numbers.
            document = serde_json::from_str(text).map_err(|e| refuse(e.to_string()))?;
        }
        self.edits_of(&mut document);
        for device in list(&mut document, "devices") {
            self.edits_of(device);
        }
        Ok(document)
    }

    fn edits_of(&self, object: &mut Value) {
        if let Some(edits) = object.get_mut("containerEdits") {
            self.edits(edits);
        }
    }

    fn edits(&self, edits: &mut Value) {
        let mount_key = if self.in_container { "containerPath" } else { "hostPath" };
        for node in list(edits, "deviceNodes") {
            // Without `hostPath`, the host has the node at the path of the container.
            let own = node.get("hostPath").or_else(|| node.get("path"));
            let own = own.and_then(Value::as_str).unwrap_or_default().to_owned();
            if self.in_container {
                self.member(node, "path");
            } else if self.moved(&own) != own {
                node["hostPath"] = self.moved(&own).into();
            }
        }
        for mount in list(edits, "mounts") {
            self.member(mount, mount_key);
        }
        for hook in list(edits, "hooks") {
            if self.in_container {
                for word in list(hook, "args") {
                    if let Some(text) = word.as_str() {
                        let parts: Vec<_> = text.split("::").map(|part| self.moved(part)).collect();
                        *word = parts.join("::").into();
                    }
                }
            } else {
                self.member(hook, "path");
            }
        }
    }

    fn member(&self, object: &mut Value, key: &str) {
        if let Some(path) = object.get(key).and_then(Value::as_str) {
            object[key] = self.moved(path).into();
        }
    }

    fn moved(&self, path: &str) -> String {
        let from = self.from.trim_end_matches('/');
        if !path.starts_with('/') || !lies_in(path, if from.is_empty() { "/" } else { from }) {
            return path.to_owned();
        }
        let moved = format!("{}{}", self.to.trim_end_matches('/'), &path[from.len()..]);
        if moved.is_empty() {
            "/".to_owned()
        } else {
            moved
        }
    }
}

fn list<'a>(object: &'a mut Value, key: &str) -> &'a mut [Value] {
    match object.get_mut(key) {
        Some(Value::Array(items)) => items,
        _ => &mut [],
    }
}

/// Members that are strings, whatever they look like without quotes.
const TEXTS: [&str; 12] = [
    "cdiVersion",
    "kind",
    "name",
    "path",
    "hostPath",
    "containerPath",
    "type",
    "permissions",
    "hookName",
    "args",
    "env",
    "options",
];

/// The value of a member. Errors: a key of it is given twice, so that one of them would be lost.
fn value(key: &str, node: Json) -> std::result::Result<Value, String> {
    Ok(match node {
        Json::Null => Value::Null,
        Json::Bool(value) => value.into(),
        Json::Number(number) => node.integer().map_or(number.into(), Value::from),
        Json::Text(text) => text.into_owned().into(),
        Json::Plain(_) if node.is_null() => Value::Null,
        Json::Plain(text) if TEXTS.contains(&key) => text.into_owned().into(),
        Json::Plain(ref text) => {
            let known = node.integer().map(Value::from);
            let known = known.or_else(|| node.boolean().map(Value::from));
            let known = known.or_else(|| float(text).map(Value::from));
            known.unwrap_or_else(|| text.clone().into_owned().into())
        }
        Json::Array(items) => {
            let items = items.into_iter().map(|item| value(key, item));
            items.collect::<std::result::Result<_, _>>()?
        }
        Json::Object(members) => {
            let mut object = serde_json::Map::new();
            for (key, node) in members {
                let value = value(&key, node)?;
                if object.contains_key(&*key) {
                    return Err(format!("ambiguous: {key:?} is given twice"));
                }
                object.insert(key.into_owned(), value);
            }
            object.into()
        }
    })
}

/// A number of YAML with a fraction or an exponent, or one that is too large for an integer.
fn float(text: &str) -> Option<f64> {
    let is_of_number = |b: u8| b.is_ascii_digit() || b"+-.eE".contains(&b);
    let number: f64 = text.parse().ok()?;
    (text.bytes().all(is_of_number) && number.is_finite()).then_some(number)
}
