//! Turns values into a document. Every mistake is collected, and reading continues.

mod edits;
mod values;

use std::collections::BTreeSet;

use super::document::{check_version, Uses};
use super::{name, Document, NamedDevice, Node, Syntax};
use crate::model::vendor::Mistake;
use values::get;

/// Reads a specification's text. Errors: every mistake that it has.
pub fn parse(text: &str, syntax: Syntax) -> Result<Document, Vec<Mistake>> {
    let root = Node::parse(text, syntax).map_err(|problem| vec![Mistake::new("", problem)])?;
    let mut reader = Reader::default();
    let document = reader.document(&root);
    if reader.mistakes.is_empty() {
        reader.mistakes = check_version(&document, reader.uses);
    }
    if reader.mistakes.is_empty() {
        Ok(document)
    } else {
        Err(reader.mistakes)
    }
}

#[derive(Default)]
struct Reader {
    mistakes: Vec<Mistake>,
    uses: Uses,
}

impl Reader {
    fn wrong(&mut self, key: &str, problem: impl Into<String>) {
        self.mistakes.push(Mistake::new(key, problem));
    }

    fn document(&mut self, root: &Node) -> Document {
        let fields = ["cdiVersion", "kind", "annotations", "devices", "containerEdits"];
        let members = self.object("", root, &fields);
        let mut document = Document {
            version: self.required("", members, "cdiVersion"),
            kind: self.required("", members, "kind"),
            ..Document::default()
        };
        if !document.kind.is_empty() && !name::is_kind(&document.kind) {
            let problem =
                format!("{:?} is not a kind of CDI, like vendor.com/class", document.kind);
            self.wrong("kind", problem);
        }
        self.annotations("annotations", get(members, "annotations"));
        document.edits = self.edits("containerEdits", get(members, "containerEdits"));
        let mut known = BTreeSet::new();
        for (key, item) in self.list("devices", get(members, "devices")) {
            let device = self.device(&key, item);
            if !known.insert(device.name.clone()) && !device.name.is_empty() {
                self.wrong(&key, format!("a second device {:?}", device.name));
            }
            document.devices.push(device);
        }
        if document.devices.is_empty() {
            self.wrong("devices", "there is no device, and a specification must have one");
        }
        document
    }

    fn device(&mut self, key: &str, node: &Node) -> NamedDevice {
        let members = self.object(key, node, &["name", "annotations", "containerEdits"]);
        let name = self.required(key, members, "name");
        if !name.is_empty() && !name::is_device(&name) {
            self.wrong(&format!("{key}.name"), format!("{name:?} is not a name of a device"));
        }
        self.annotations(&format!("{key}.annotations"), get(members, "annotations"));
        let place = format!("{key}.containerEdits");
        let before = self.mistakes.len();
        let edits = self.edits(&place, get(members, "containerEdits"));
        if edits.is_empty() && self.mistakes.len() == before {
            self.wrong(&place, "it gives a container nothing");
        }
        NamedDevice { name, edits }
    }

    fn annotations(&mut self, key: &str, node: Option<&Node>) {
        let Some(node) = node else { return };
        self.uses.annotations = true;
        let Node::Map(members) = node else {
            return self.wrong(key, format!("expected an object, found {}", node.kind()));
        };
        self.unique(key, members);
        for (name, value) in members {
            if value.text().is_none() {
                let problem = format!("expected a string, found {}", value.kind());
                self.wrong(&format!("{key}.{name}"), problem);
            }
        }
    }
}

#[cfg(test)]
mod tests;
