//! Reads single fields.

use crate::config::reader::{join, Members, Reader};
use crate::model::edits::is_variable;
use crate::spec::json::Json;

impl Reader {
    pub(super) fn variables(&mut self, key: &str, node: Option<&Json>) -> Vec<String> {
        let found = self.texts(key, node);
        for entry in found.iter().filter(|entry| !is_variable(entry)) {
            self.note(key, format!("{entry:?} is not NAME=value"));
        }
        found
    }

    pub(super) fn path(&mut self, key: &str, members: &Members, field: &str) -> String {
        let path = self.required(key, members, field);
        if !path.is_empty() && (!path.starts_with('/') || path.contains('\0')) {
            self.note(format!("{key}.{field}"), format!("{path:?} is not an absolute path"));
        }
        path
    }

    pub(super) fn number(&mut self, key: &str, node: &Json) -> Option<u32> {
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
    pub(super) fn group(&mut self, key: &str, node: &Json) -> Option<u32> {
        let group = self.number(key, node)?;
        if group == u32::MAX {
            self.note(key, format!("{group} is not a group"));
            return None;
        }
        Some(group)
    }

    pub(super) fn texts(&mut self, key: &str, node: Option<&Json>) -> Vec<String> {
        node.map(|node| self.strings(key, node, |_| None)).unwrap_or_default()
    }

    pub(super) fn required(&mut self, key: &str, members: &Members, field: &str) -> String {
        let found = self.optional(key, members, field);
        if found.is_none() && get(members, field).is_none_or(|node| node.text().is_some()) {
            self.note(join(key, field), "missing");
        }
        found.unwrap_or_default()
    }

    /// An empty string counts as a missing one, as for the engines' readers.
    pub(super) fn optional(&mut self, key: &str, members: &Members, field: &str) -> Option<String> {
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

    pub(super) fn list<'a>(
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

/// A member that exists and is not null.
pub(super) fn get<'a>(members: &Members<'a>, field: &str) -> Option<&'a Json<'a>> {
    let found = members.iter().find(|(name, _)| *name == field);
    found.map(|(_, node)| *node).filter(|node| !node.is_null())
}
