//! The reader of trees: takes values out of a file, and collects every mistake with its place. The
//! readers of each format are methods of it.

use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::model::edits::is_variable;
use crate::model::vendor::Mistake;
use crate::spec::json::Json;

/// The members of an object.
pub type Members<'a> = Vec<(&'a str, &'a Json<'a>)>;

/// What was read only counts if there are no mistakes.
#[derive(Debug, Default)]
pub struct Reader {
    pub mistakes: Vec<Mistake>,
}

impl Reader {
    pub fn note(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.mistakes.push(Mistake::new(key, problem));
    }

    pub fn expected(&mut self, key: &str, what: &str, found: &Json) {
        self.note(key, format!("expected {what}, found {}", found.kind()));
    }

    /// The members of an object, without unknown and repeated ones. Without known ones, all are.
    pub fn members<'a>(&mut self, key: &str, value: &'a Json<'_>, known: &[&str]) -> Members<'a> {
        let Json::Object(members) = value else {
            self.expected(key, "an object", value);
            return Vec::new();
        };
        let mut seen = FxHashSet::with_capacity_and_hasher(members.len(), FxBuildHasher);
        let mut kept = Vec::with_capacity(members.len());
        for (name, value) in members {
            let name = &**name;
            if !seen.insert(name) {
                self.note(join(key, name), "given twice");
            } else if !known.is_empty() && !known.contains(&name) {
                let problem = format!("unknown field; known are {}", known.join(", "));
                self.note(join(key, name), problem);
            } else {
                kept.push((name, value));
            }
        }
        kept
    }

    pub fn string(&mut self, key: &str, value: &Json) -> Option<String> {
        if value.text().is_none() {
            self.expected(key, "a string", value);
        }
        value.text().map(str::to_owned)
    }

    /// The strings of a list, with what a check finds wrong about each.
    pub fn strings(
        &mut self,
        key: &str,
        value: &Json,
        check: fn(&str) -> Option<String>,
    ) -> Vec<String> {
        let Json::Array(items) = value else {
            self.expected(key, "a list of strings", value);
            return Vec::new();
        };
        let mut strings = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            // A start reads hundreds of paths: their places are only written down for mistakes.
            let place = || format!("{key}[{i}]");
            let Some(text) = item.text() else {
                self.expected(&place(), "a string", item);
                continue;
            };
            if let Some(problem) = check(text) {
                self.note(place(), problem);
            }
            strings.push(text.to_owned());
        }
        strings
    }

    pub fn variables(&mut self, key: &str, node: Option<&Json>) -> Vec<String> {
        let found = self.texts(key, node);
        for entry in found.iter().filter(|entry| !is_variable(entry)) {
            self.note(key, format!("{entry:?} is not NAME=value"));
        }
        found
    }

    pub fn path(&mut self, key: &str, members: &Members, field: &str) -> String {
        let path = self.required(key, members, field);
        if !path.is_empty() && (!path.starts_with('/') || path.contains('\0')) {
            self.note(format!("{key}.{field}"), format!("{path:?} is not an absolute path"));
        }
        path
    }

    pub fn number(&mut self, key: &str, node: &Json) -> Option<u32> {
        let Some(number) = node.integer() else {
            self.expected(key, "a whole number", node);
            return None;
        };
        let number = u32::try_from(number).ok();
        if number.is_none() {
            self.note(key, "it is out of range");
        }
        number
    }

    /// For the kernel, the largest number means no group: setgroups(2).
    pub fn group(&mut self, key: &str, node: &Json) -> Option<u32> {
        let group = self.number(key, node)?;
        if group == u32::MAX {
            self.note(key, format!("{group} is not a group"));
            return None;
        }
        Some(group)
    }

    pub fn texts(&mut self, key: &str, node: Option<&Json>) -> Vec<String> {
        node.map(|node| self.strings(key, node, |_| None)).unwrap_or_default()
    }

    pub fn required(&mut self, key: &str, members: &Members, field: &str) -> String {
        let found = self.optional(key, members, field);
        if found.is_none() && get(members, field).is_none_or(|node| node.text().is_some()) {
            self.note(join(key, field), "missing");
        }
        found.unwrap_or_default()
    }

    /// An empty string counts as a missing one, as for the engines' readers.
    pub fn optional(&mut self, key: &str, members: &Members, field: &str) -> Option<String> {
        let node = get(members, field)?;
        match node.text() {
            Some("") => None,
            Some(text) => Some(text.to_owned()),
            None => {
                self.expected(&join(key, field), "a string", node);
                None
            }
        }
    }

    pub fn list<'a>(
        &mut self,
        key: &str,
        node: Option<&'a Json<'a>>,
    ) -> Vec<(String, &'a Json<'a>)> {
        match node {
            None => Vec::new(),
            Some(Json::Array(items)) => {
                let numbered = items.iter().enumerate();
                numbered.map(|(at, item)| (format!("{key}[{at}]"), item)).collect()
            }
            Some(other) => {
                self.expected(key, "a list", other);
                Vec::new()
            }
        }
    }
}

pub fn join(key: &str, name: &str) -> String {
    if key.is_empty() {
        name.to_owned()
    } else {
        format!("{key}.{name}")
    }
}

/// A member that exists and is not null.
pub fn get<'a>(members: &Members<'a>, field: &str) -> Option<&'a Json<'a>> {
    let found = members.iter().find(|(name, _)| *name == field);
    found.map(|(_, node)| *node).filter(|node| !node.is_null())
}
