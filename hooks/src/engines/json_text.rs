//! Changes single members of a JSON text, and leaves every other byte as it is: order and
//! indentation are those of the people who wrote it.

use serde_json::ser::PrettyFormatter;
use serde_json::Value;

use super::Result;
use crate::apply::spec::splice::{apply, Splice};
use crate::spec::json::{quote, RawObject};

/// The byte-order mark, which dockerd skips at the start of the file.
const MARK: char = '\u{feff}';
/// The indentation for a text that has none.
const STEP: &str = "    ";

/// An object in a text.
struct Object<'a> {
    text: &'a str,
    members: RawObject<'a>,
}

impl<'a> Object<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let text = text.trim_start_matches(MARK);
        let members = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let text = text.trim();
        Ok(Self { text, members })
    }

    /// The position of the last member with the name, which is the one that engines use.
    fn position(&self, name: &str) -> Option<usize> {
        self.members.0.iter().rposition(|(key, _)| key == name)
    }

    fn value(&self, at: usize) -> &'a str {
        self.members.0[at].1.get()
    }

    /// The text between the member before, or the brace, and the value of this one.
    fn before(&self, at: usize) -> &'a str {
        let from = match at.checked_sub(1) {
            Some(last) => self.end(last),
            None => 1,
        };
        &self.text[from..offset(self.text, self.value(at))]
    }

    /// The end of a member.
    fn end(&self, at: usize) -> usize {
        offset(self.text, self.value(at)) + self.value(at).len()
    }

    /// The start of a member's name.
    fn start(&self, at: usize) -> usize {
        let before = self.before(at);
        let blank = |c: char| c.is_ascii_whitespace() || c == ',';
        offset(self.text, before.trim_start_matches(blank))
    }
}

fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

fn is_blank(text: &str) -> bool {
    text.trim_start_matches(MARK).trim().is_empty()
}

/// Reads the object of a text. An empty text is an empty object. Errors: it is no object of JSON,
/// such as one with comments, which dockerd refuses too.
pub fn parse(text: &str) -> Result<Value> {
    let text = if is_blank(text) { "{}" } else { text };
    Object::parse(text)?;
    serde_json::from_str(text.trim_start_matches(MARK)).map_err(|error| error.to_string())
}

/// The text with a value at the path. Missing objects are made.
/// Errors: the text, or a value in the path, is not an object.
pub fn set_member(text: &str, path: &[&str], value: &Value) -> Result<String> {
    let text = if is_blank(text) { "{}\n" } else { text };
    let mut object = Object::parse(text)?;
    for (depth, name) in path.iter().enumerate() {
        let Some(at) = object.position(name) else {
            let wrap = |inner, name: &&str| serde_json::json!({ *name: inner });
            let value = path[depth + 1..].iter().rev().fold(value.clone(), wrap);
            return Ok(inserted(text, &object, name, &value));
        };
        let found = object.value(at);
        if depth + 1 < path.len() {
            object = Object::parse(found)
                .map_err(|_| format!("{} is not an object", path[..=depth].join(".")))?;
        } else if serde_json::from_str::<Value>(found).is_ok_and(|found| found == *value) {
            return Ok(text.to_owned());
        } else {
            let indent = indent_at(text, offset(text, found));
            return Ok(spliced(text, found, dumped(value, Some(indent), STEP)));
        }
    }
    Ok(text.to_owned())
}

/// The text without the member at the path, which may be missing.
/// Errors: the text is not an object.
pub fn remove_member(text: &str, path: &[&str]) -> Result<String> {
    let mut object = Object::parse(text)?;
    for (depth, name) in path.iter().enumerate() {
        let Some(at) = object.position(name) else {
            break;
        };
        if depth + 1 < path.len() {
            match Object::parse(object.value(at)) {
                Ok(inner) => object = inner,
                Err(_) => break,
            }
            continue;
        }
        let last = object.members.0.len() - 1;
        let gone = match at {
            _ if last == 0 => 1..object.text.len() - 1,
            at if at == last => object.end(at - 1)..object.end(at),
            at => object.start(at)..object.start(at + 1),
        };
        return Ok(spliced(text, &object.text[gone], String::new()));
    }
    Ok(text.to_owned())
}

/// The text with a new last member in an object.
fn inserted(text: &str, object: &Object, name: &str, value: &Value) -> String {
    let outer = indent_at(text, offset(text, object.text));
    let Some(last) = object.members.0.len().checked_sub(1) else {
        let inner = format!("{outer}{STEP}");
        let value = dumped(value, Some(&inner), STEP);
        let inside = &object.text[1..object.text.len() - 1];
        return spliced(text, inside, format!("\n{inner}{}: {value}\n{outer}", quote(name)));
    };
    let first = object.start(0);
    let is_on_lines = object.text[..first].contains('\n');
    let inner = indent_at(text, offset(text, object.text) + first);
    let step = inner.strip_prefix(outer).filter(|step| !step.is_empty());
    let value = dumped(value, is_on_lines.then_some(inner), step.unwrap_or(STEP));
    let gap = if is_on_lines { format!("\n{inner}") } else { " ".to_owned() };
    let end = object.end(last);
    let new = format!(",{gap}{}: {value}", quote(name));
    spliced(text, &object.text[end..end], new)
}

fn spliced(text: &str, old: &str, new: String) -> String {
    apply(text, vec![Splice { old, new }])
}

/// A value as text. It has several lines if the indentation of its line is given.
fn dumped(value: &Value, indent: Option<&str>, step: &str) -> String {
    let Some(indent) = indent else {
        return value.to_string();
    };
    let mut lines = Vec::new();
    let formatter = PrettyFormatter::with_indent(step.as_bytes());
    let mut writer = serde_json::Serializer::with_formatter(&mut lines, formatter);
    let _ = serde::Serialize::serialize(value, &mut writer);
    String::from_utf8_lossy(&lines).replace('\n', &format!("\n{indent}"))
}

/// The indentation of the line that a byte is on.
fn indent_at(text: &str, at: usize) -> &str {
    let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn members_are_set_and_removed() {
        let lines = "{\n    \"a\": 1,\n    \"b\": 2,\n    \"c\": 3\n}\n";
        for (text, path, value, expected) in [
            (
                "",
                &["f", "cdi"][..],
                Some(true),
                "{\n    \"f\": {\n        \"cdi\": true\n    }\n}\n",
            ),
            ("{\"f\": {\"cdi\": false}}", &["f", "cdi"], Some(true), "{\"f\": {\"cdi\": true}}"),
            (
                "{\"f\": {\"a\": 1}}",
                &["f", "cdi"],
                Some(true),
                "{\"f\": {\"a\": 1, \"cdi\": true}}",
            ),
            ("{\"x\": 1}", &["f", "cdi"], Some(true), "{\"x\": 1, \"f\": {\"cdi\":true}}"),
            // Of two members with one name, engines use the last.
            (
                "{\"f\": 1, \"f\": {\"a\": 1}}",
                &["f", "a"],
                Some(true),
                "{\"f\": 1, \"f\": {\"a\": true}}",
            ),
            (lines, &["a"], None, "{\n    \"b\": 2,\n    \"c\": 3\n}\n"),
            (lines, &["b"], None, "{\n    \"a\": 1,\n    \"c\": 3\n}\n"),
            (lines, &["c"], None, "{\n    \"a\": 1,\n    \"b\": 2\n}\n"),
            (lines, &["d"], None, lines),
            (lines, &["a", "x"], None, lines),
            ("{ \"a\": 1 }", &["a"], None, "{}"),
        ] {
            let done = match value {
                Some(value) => set_member(text, path, &json!(value)),
                None => remove_member(text, path),
            };
            assert_eq!(done.unwrap(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn only_the_member_changes(
            members in prop::collection::btree_map("[a-c]{1,2}", "\\PC*", 0..5),
            name in "[a-d]{1,2}",
            text in ".*",
            pretty: bool,
        ) {
            let document = json!(members);
            let before = if pretty { format!("{document:#}") } else { document.to_string() };
            let changed = set_member(&before, &[&name], &json!(text)).unwrap();
            let mut expected = document.clone();
            expected[&name] = text.into();
            prop_assert_eq!(parse(&changed).unwrap(), expected);
            let taken = remove_member(&changed, &[&name]).unwrap();
            let mut left = document;
            left.as_object_mut().unwrap().remove(&name);
            prop_assert_eq!(parse(&taken).unwrap(), left);
        }
    }
}
