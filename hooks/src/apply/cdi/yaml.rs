//! Writes a document as YAML. Strings are in double quotes as in JSON, so every reader takes them
//! for strings.

use serde_json::Value;

/// The text of a document.
pub fn text(value: &Value) -> String {
    let mut out = "---\n".to_owned();
    write(value, 0, &mut out);
    out
}

fn write(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, value) in members {
                indent(depth, out);
                write_member(key, value, depth, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                indent(depth, out);
                out.push_str("- ");
                write_item(item, depth, out);
            }
        }
        other => {
            indent(depth, out);
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

fn write_member(key: &str, value: &Value, depth: usize, out: &mut String) {
    let plain = key.chars().all(|c| c.is_ascii_alphanumeric()) && !key.is_empty();
    if plain {
        out.push_str(key);
    } else {
        out.push_str(&crate::spec::json::quote(key));
    }
    out.push(':');
    if is_nested(value) {
        out.push('\n');
        write(value, depth + 1, out);
    } else {
        out.push(' ');
        out.push_str(&value.to_string());
        out.push('\n');
    }
}

/// Writes an item. The first member of an object stands behind the dash.
fn write_item(item: &Value, depth: usize, out: &mut String) {
    if !is_nested(item) {
        out.push_str(&item.to_string());
        out.push('\n');
        return;
    }
    let mut inner = String::new();
    write(item, depth + 1, &mut inner);
    out.push_str(inner.trim_start_matches(' '));
}

fn is_nested(value: &Value) -> bool {
    match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn indent(depth: usize, out: &mut String) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cdi::Syntax;
    use crate::spec::json::Json;
    use proptest::prelude::*;

    /// The value as the reader of specifications sees it in both syntaxes.
    fn seen(node: Json) -> Json {
        match node {
            Json::Plain(text) => match serde_json::from_str::<Value>(&text) {
                Ok(Value::Number(number)) => Json::Number(number.as_f64().unwrap_or_default()),
                Ok(Value::Bool(value)) => Json::Bool(value),
                _ => Json::Null,
            },
            Json::Array(items) => Json::Array(items.into_iter().map(seen).collect()),
            Json::Object(members) => {
                Json::Object(members.into_iter().map(|(key, value)| (key, seen(value))).collect())
            }
            other => other,
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0u32..1000).prop_map(Value::from),
            "[ -~é\n\t]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z :-]{0,4}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(value in values()) {
            let (yaml, json) = (text(&value), value.to_string());
            let yaml = Syntax::Yaml.parse(&yaml).map_err(TestCaseError::fail)?;
            let json = Syntax::Json.parse(&json).map_err(TestCaseError::fail)?;
            prop_assert_eq!(seen(yaml), json);
        }
    }
}
