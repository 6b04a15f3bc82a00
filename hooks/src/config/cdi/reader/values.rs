//! Reads single fields.

use std::collections::BTreeSet;

use super::Reader;
use crate::config::cdi::Node;
use crate::model::edits::is_variable;

pub(super) type Members<'a> = &'a [(String, Node)];

impl Reader {
    pub(super) fn variables(&mut self, key: &str, node: Option<&Node>) -> Vec<String> {
        let found = self.texts(key, node);
        for entry in found.iter().filter(|entry| !is_variable(entry)) {
            self.wrong(key, format!("{entry:?} is not NAME=value"));
        }
        found
    }

    pub(super) fn path(&mut self, key: &str, members: Members, field: &str) -> String {
        let path = self.required(key, members, field);
        if !path.is_empty() && (!path.starts_with('/') || path.contains('\0')) {
            self.wrong(&format!("{key}.{field}"), format!("{path:?} is not an absolute path"));
        }
        path
    }

    pub(super) fn number(&mut self, key: &str, node: &Node) -> Option<u32> {
        let Some(number) = node.integer() else {
            self.expected(key, "a whole number", node);
            return None;
        };
        let number = u32::try_from(number).ok();
        if number.is_none() {
            self.wrong(key, "it is out of range");
        }
        number
    }

    /// For the kernel, the largest number means no group: setgroups(2).
    pub(super) fn group(&mut self, key: &str, node: &Node) -> Option<u32> {
        let group = self.number(key, node)?;
        if group == u32::MAX {
            self.wrong(key, format!("{group} is not a group"));
            return None;
        }
        Some(group)
    }

    pub(super) fn texts(&mut self, key: &str, node: Option<&Node>) -> Vec<String> {
        let mut found = Vec::new();
        for (key, item) in self.list(key, node) {
            match item.text() {
                Some(text) => found.push(text.to_owned()),
                None => self.expected(&key, "a string", item),
            }
        }
        found
    }

    pub(super) fn required(&mut self, key: &str, members: Members, field: &str) -> String {
        let found = self.optional(key, members, field);
        if found.is_none() && get(members, field).is_none_or(|node| node.text().is_some()) {
            self.wrong(&joined(key, field), "it is missing");
        }
        found.unwrap_or_default()
    }

    /// An empty string counts as a missing one, as for the engines' readers.
    pub(super) fn optional(&mut self, key: &str, members: Members, field: &str) -> Option<String> {
        let node = get(members, field)?;
        match node.text() {
            Some("") => None,
            Some(text) => Some(text.to_owned()),
            None => {
                self.expected(&joined(key, field), "a string", node);
                None
            }
        }
    }

    pub(super) fn list<'a>(
        &mut self,
        key: &str,
        node: Option<&'a Node>,
    ) -> Vec<(String, &'a Node)> {
        match node {
            None => Vec::new(),
            Some(Node::List(items)) => {
                let numbered = items.iter().enumerate();
                numbered.map(|(at, item)| (format!("{key}[{at}]"), item)).collect()
            }
            Some(other) => {
                self.expected(key, "a list", other);
                Vec::new()
            }
        }
    }

    pub(super) fn object<'a>(&mut self, key: &str, node: &'a Node, fields: &[&str]) -> Members<'a> {
        let Node::Map(members) = node else {
            self.expected(key, "an object", node);
            return &[];
        };
        for (name, _) in members.iter().filter(|(name, _)| !fields.contains(&name.as_str())) {
            let problem = format!("CDI has no such field; known are {}", fields.join(", "));
            self.wrong(&joined(key, name), problem);
        }
        self.unique(key, members);
        members
    }

    pub(super) fn unique(&mut self, key: &str, members: Members) {
        let mut known = BTreeSet::new();
        for (name, _) in members {
            if !known.insert(name) {
                self.wrong(&joined(key, name), "it is given twice");
            }
        }
    }

    pub(super) fn expected(&mut self, key: &str, what: &str, found: &Node) {
        self.wrong(key, format!("expected {what}, found {}", found.kind()));
    }
}

/// A member that exists and is not null.
pub(super) fn get<'a>(members: Members<'a>, field: &str) -> Option<&'a Node> {
    let found = members.iter().find(|(name, _)| name == field);
    found.map(|(_, node)| node).filter(|node| !node.is_null())
}

fn joined(key: &str, field: &str) -> String {
    if key.is_empty() {
        field.to_owned()
    } else {
        format!("{key}.{field}")
    }
}
