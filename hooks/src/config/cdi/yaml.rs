//! Turns YAML into values. The crate delivers events one by one. Their total is limited here, so
//! that a few lines of aliases can't fill the memory.

use rustc_hash::FxHashMap;
use yaml_rust2::parser::{Event, Parser, Tag};
use yaml_rust2::scanner::TScalarStyle;

use crate::spec::json::Json;

type Value = Json<'static>;

/// Values in one document. The values of an alias count each time.
const MAX_NODES: usize = 200_000;
const MAX_DEPTH: usize = 64;

/// Reads one document. Errors: it is not valid, has several documents, or grows too large.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder::default();
    loop {
        let (event, mark) = parser.next_token().map_err(|e| e.to_string())?;
        if event == Event::StreamEnd {
            return builder.root.ok_or_else(|| "it is empty".to_owned());
        }
        let at = |problem: String| format!("line {}: {problem}", mark.line());
        builder.take(event).map_err(at)?;
    }
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Value>,
    /// The values that anchors stand for, and their number.
    anchors: FxHashMap<usize, (Value, usize)>,
    nodes: usize,
}

/// A list or an object that has not ended.
struct Open {
    node: Value,
    key: Option<String>,
    anchor: usize,
    /// The number of values before it.
    before: usize,
}

impl Builder {
    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::DocumentStart if self.root.is_some() => {
                Err("a second document begins".to_owned())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let node = scalar(text, style, tag.as_ref())?;
                self.count(1)?;
                self.keep(anchor, &node, 1);
                self.put(node)
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(Json::Array(Vec::new()), anchor, tag.as_ref())
            }
            Event::MappingStart(anchor, tag) => {
                self.open(Json::Object(Vec::new()), anchor, tag.as_ref())
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let (node, size) = known.ok_or("an alias of a node that contains it")?;
                self.count(size)?;
                self.put(node)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.nodes += more;
        if self.nodes > MAX_NODES {
            return Err(format!("more than {MAX_NODES} values, aliases counted"));
        }
        Ok(())
    }

    /// Anchor 0 stands for no anchor.
    fn keep(&mut self, anchor: usize, node: &Value, size: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
    }

    fn open(&mut self, node: Value, anchor: usize, tag: Option<&Tag>) -> Result<(), String> {
        if tag.is_some() {
            return Err("a tag, which no specification has".to_owned());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH}"));
        }
        let before = self.nodes;
        self.count(1)?;
        self.open.push(Open { node, key: None, anchor, before });
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(done) = self.open.pop() else {
            return Ok(());
        };
        let size = self.nodes - done.before;
        // The copies that are kept for aliases count too.
        if done.anchor != 0 {
            self.count(size)?;
        }
        self.keep(done.anchor, &done.node, size);
        self.put(done.node)
    }

    fn put(&mut self, node: Value) -> Result<(), String> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node, open.key.take()) {
            (Json::Array(items), _) => items.push(node),
            (Json::Object(members), Some(key)) => members.push((key.into(), node)),
            (Json::Object(_), None) => match node {
                Json::Text(key) | Json::Plain(key) => open.key = Some(key.into_owned()),
                _ => return Err("a key that is not a string".to_owned()),
            },
            _ => {}
        }
        Ok(())
    }
}

fn scalar(text: String, style: TScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag {
        Some(tag) if tag.suffix == "str" => return Ok(Json::Text(text.into())),
        Some(_) => return Err("a tag, which no specification has".to_owned()),
        None => {}
    }
    Ok(if style == TScalarStyle::Plain {
        Json::Plain(text.into())
    } else {
        Json::Text(text.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &'static str) -> Value {
        Json::Plain(text.into())
    }

    #[test]
    fn aliases_are_what_they_stand_for() {
        let found = parse("a: &x [1, 2]\nb: *x\n").unwrap();
        let list = Json::Array(vec![plain("1"), plain("2")]);
        let expected = vec![("a".into(), list.clone()), ("b".into(), list)];
        assert_eq!(found, Json::Object(expected));
    }

    /// Ten lines that stand for ten thousand million values.
    #[test]
    fn aliases_of_aliases_come_to_an_end() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let before = format!("*a{}", level - 1);
            let items = vec![before; 10].join(", ");
            let line = format!("a{level}: &a{level} [{items}]\n");
            bomb.push_str(&line);
        }
        let error = parse(&bomb).unwrap_err();
        assert!(error.contains("more than 200000 values"), "{error}");
    }
}
