//! Changes single members of a JSON text, and leaves every other byte as it is.
//!
//! People write files such as Docker's daemon.json by hand. Their order, indentation and comments
//! (`//`, `#` and `/* */`, which some tools accept) stay.
//!
//! Grammar: <https://www.rfc-editor.org/rfc/rfc8259>, with those comments and trailing commas.

mod parser;

use std::ops::Range;

use self::parser::{skip_blanks, Parser};
use crate::spec::json::quote;

/// The byte-order mark, which dockerd skips at the start of the file.
const MARK: char = '\u{feff}';
/// The indentation for a text that has none.
const STEP: &str = "    ";
/// Errors have the line and column of a mistake.
pub type Result<T> = std::result::Result<T, String>;

/// A value to put into a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Flag(bool),
    Text(String),
    Object(Vec<(String, Value)>),
}

/// A value in a text: its position, and its kind as far as that matters.
#[derive(Debug, Clone)]
pub struct Node {
    at: Range<usize>,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub enum Kind {
    Flag(bool),
    Text(String),
    Object(Vec<Member>),
    /// Null, a number or a list.
    Other,
}

#[derive(Debug, Clone)]
pub struct Member {
    pub name: String,
    /// The position of its name.
    start: usize,
    pub value: Node,
}

impl Node {
    /// The last member with the name, which is the one that engines use.
    pub fn member(&self, name: &str) -> Option<&Node> {
        self.position(name)
            .map(|found| &self.members()[found].value)
    }

    pub fn members(&self) -> &[Member] {
        match &self.kind {
            Kind::Object(members) => members,
            _ => &[],
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.members()
            .iter()
            .rposition(|member| member.name == name)
    }

    fn is(&self, value: &Value) -> bool {
        match (&self.kind, value) {
            (Kind::Flag(one), Value::Flag(other)) => one == other,
            (Kind::Text(one), Value::Text(other)) => one == other,
            (Kind::Object(members), Value::Object(wanted)) => {
                let same = |(member, (name, value)): (&Member, &(String, Value))| {
                    member.name == *name && member.value.is(value)
                };
                members.len() == wanted.len() && members.iter().zip(wanted).all(same)
            }
            _ => false,
        }
    }
}

fn is_blank(text: &str) -> bool {
    text.trim_start_matches(MARK).trim().is_empty()
}

/// Parses the object of a text. An empty text is an empty object. Errors: it is not an object.
pub fn parse(text: &str) -> Result<Node> {
    if is_blank(text) {
        return Ok(Node {
            at: 0..text.len(),
            kind: Kind::Object(Vec::new()),
        });
    }
    let parser = Parser { text };
    let start = text.len() - text.trim_start_matches(MARK).len();
    let node = parser.value(parser.skip(start)?, 0)?;
    if !matches!(node.kind, Kind::Object(_)) {
        return Err(parser.mistake(node.at.start, "an object"));
    }
    let end = parser.skip(node.at.end)?;
    if end != text.len() {
        return Err(parser.mistake(end, "the end of the file"));
    }
    Ok(node)
}

/// The text with a value at the path. Missing objects are made.
/// Errors: the text, or a value in the path, is not an object.
pub fn set_member(text: &str, path: &[&str], value: &Value) -> Result<String> {
    let text = if is_blank(text) { "{}\n" } else { text };
    let mut node = parse(text)?;
    for (depth, name) in path.iter().enumerate() {
        if !matches!(node.kind, Kind::Object(_)) {
            return Err(format!("{} is not an object", path[..depth].join(".")));
        }
        let Some(found) = node.member(name) else {
            let value = nested(&path[depth + 1..], value);
            return inserted(text, &node, name, &value);
        };
        node = found.clone();
    }
    if node.is(value) {
        return Ok(text.to_owned());
    }
    let written = dumped(value, Some(indent_at(text, node.at.start)), STEP);
    Ok(replaced(text, node.at, &written))
}

/// The text without the member at the path, which may be missing.
/// Errors: the text is not an object.
pub fn remove_member(text: &str, path: &[&str]) -> Result<String> {
    let root = parse(text)?;
    let Some((name, above)) = path.split_last() else {
        return Ok(text.to_owned());
    };
    let found = above.iter().try_fold(&root, |node, name| node.member(name));
    let Some((node, number)) = found.and_then(|node| Some((node, node.position(name)?))) else {
        return Ok(text.to_owned());
    };
    let members = node.members();
    let gone = members[number].start..members[number].value.at.end;
    if let Some(next) = members.get(number + 1) {
        // Removes the text up to the next name, which gets our indentation. Comments between the
        // two stay.
        let parser = Parser { text };
        let comma = parser.skip(gone.end)?;
        let kept = text[gone.end..comma].trim();
        let after = skip_blanks(text, comma + 1, next.start);
        return Ok(replaced(text, gone.start..after, kept));
    }
    if number == 0 {
        return Ok(without_only(text, node, gone));
    }
    let before = members[number - 1].value.at.end;
    // The comma goes too; a comment between the two stays.
    let between = without_comma(&text[before..gone.start]);
    Ok(replaced(text, before..gone.end, between.trim_end()))
}

/// The text without the only member of an object.
fn without_only(text: &str, node: &Node, gone: Range<usize>) -> String {
    let inner = node.at.start + 1..node.at.end - 1;
    let before = text[inner.start..gone.start].trim_end();
    let inside = format!("{before}{}", &text[gone.end..inner.end]);
    let blank = |c: char| c.is_ascii_whitespace() || c == ',';
    let kept = if inside.chars().all(blank) {
        ""
    } else {
        &inside
    };
    replaced(text, inner, kept)
}

/// The text without the first comma outside of comments.
fn without_comma(between: &str) -> String {
    let parser = Parser { text: between };
    let at = parser.skip(0).unwrap_or_default();
    match between.get(at..).and_then(|rest| rest.strip_prefix(',')) {
        Some(rest) => format!("{}{rest}", &between[..at]),
        None => between.to_owned(),
    }
}

fn nested(path: &[&str], value: &Value) -> Value {
    let wrap = |inner: Value, name: &&str| Value::Object(vec![((*name).to_owned(), inner)]);
    path.iter().rev().fold(value.clone(), wrap)
}

/// The text with a new last member in an object.
fn inserted(text: &str, node: &Node, name: &str, value: &Value) -> Result<String> {
    let outer = indent_at(text, node.at.start);
    let members = node.members();
    let (Some(first), Some(last)) = (members.first(), members.last()) else {
        let inner = format!("{outer}{STEP}");
        let member = format!("{}: {}", quote(name), dumped(value, Some(&inner), STEP));
        let inside = node.at.start + 1..node.at.end - 1;
        let kept = text[inside.clone()].trim_end();
        return Ok(replaced(
            text,
            inside,
            &format!("{kept}\n{inner}{member}\n{outer}"),
        ));
    };
    let is_on_lines = text[node.at.start..first.start].contains('\n');
    let inner = indent_at(text, first.start);
    let step = inner.strip_prefix(outer).filter(|step| !step.is_empty());
    let written = dumped(value, is_on_lines.then_some(inner), step.unwrap_or(STEP));
    let lead = if is_on_lines {
        format!("\n{inner}")
    } else {
        " ".to_owned()
    };
    let member = format!("{lead}{}: {written}", quote(name));
    let parser = Parser { text };
    let end = last.value.at.end;
    let comma = parser.skip(end)?;
    if text[comma..].starts_with(',') {
        return Ok(replaced(text, comma + 1..comma + 1, &member));
    }
    // A comment after the last value stays on the line of that value.
    let line_end = text[end..node.at.end - 1].find('\n').unwrap_or_default();
    let at = if is_on_lines { end + line_end } else { end };
    let beside = &text[end..at];
    Ok(replaced(text, end..at, &format!(",{beside}{member}")))
}

fn replaced(text: &str, at: Range<usize>, by: &str) -> String {
    [&text[..at.start], by, &text[at.end..]].concat()
}

/// A value as text. It has several lines if the indentation of its line is given.
fn dumped(value: &Value, indent: Option<&str>, step: &str) -> String {
    let members = match value {
        Value::Flag(flag) => return flag.to_string(),
        Value::Text(text) => return quote(text),
        Value::Object(members) => members,
    };
    let inner = indent.map(|indent| format!("{indent}{step}"));
    let member = |(name, value): &(String, Value)| {
        format!("{}: {}", quote(name), dumped(value, inner.as_deref(), step))
    };
    let written: Vec<_> = members.iter().map(member).collect();
    match (&inner, indent) {
        (Some(inner), Some(indent)) if !written.is_empty() => {
            let lines = written.join(&format!(",\n{inner}"));
            format!("{{\n{inner}{lines}\n{indent}}}")
        }
        _ => format!("{{{}}}", written.join(", ")),
    }
}

/// The indentation of the line that a byte is on.
fn indent_at(text: &str, at: usize) -> &str {
    let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

#[cfg(test)]
mod tests;
