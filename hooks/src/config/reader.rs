//! The reader of trees: takes values out of a file, and collects every mistake with its place. The
//! readers of each format are methods of it.

use rustc_hash::{FxBuildHasher, FxHashSet};

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
}

pub fn join(key: &str, name: &str) -> String {
    if key.is_empty() {
        name.to_owned()
    } else {
        format!("{key}.{name}")
    }
}
