//! Turns values into a document. Every mistake is collected, and reading continues.

mod edits;
mod values;

use std::collections::BTreeSet;

use super::document::check_version;
use super::{name, Document, NamedDevice, Syntax};
use crate::config::reader::{join, Reader};
use crate::model::vendor::Mistake;
use crate::spec::json::Json;
use values::get;

/// Reads a specification's text. Errors: every mistake that it has.
pub fn parse(text: &str, syntax: Syntax) -> Result<Document, Vec<Mistake>> {
    let root = syntax.parse(text).map_err(|problem| vec![Mistake::new("", problem)])?;
    let mut reader = Reader::default();
    let document = reader.document(&root);
    if reader.mistakes.is_empty() {
        reader.mistakes = check_version(&document);
    }
    if reader.mistakes.is_empty() {
        Ok(document)
    } else {
        Err(reader.mistakes)
    }
}

impl Reader {
    fn document(&mut self, root: &Json) -> Document {
        let fields = ["cdiVersion", "kind", "annotations", "devices", "containerEdits"];
        let members = &self.members("", root, &fields);
        let mut document = Document {
            version: self.required("", members, "cdiVersion"),
            kind: self.required("", members, "kind"),
            ..Document::default()
        };
        if !document.kind.is_empty() && !name::is_kind(&document.kind) {
            let problem =
                format!("{:?} is not a kind of CDI, like vendor.com/class", document.kind);
            self.note("kind", problem);
        }
        document.has_annotations = self.annotations("annotations", get(members, "annotations"));
        document.edits = self.edits("containerEdits", get(members, "containerEdits"));
        let mut known = BTreeSet::new();
        for (key, item) in self.list("devices", get(members, "devices")) {
            let (device, has_annotations) = self.device(&key, item);
            document.has_annotations |= has_annotations;
            if !known.insert(device.name.clone()) && !device.name.is_empty() {
                self.note(&key, format!("a second device {:?}", device.name));
            }
            document.devices.push(device);
        }
        if document.devices.is_empty() {
            self.note("devices", "there is no device, and a specification must have one");
        }
        document
    }

    /// A device, and whether it has annotations.
    fn device(&mut self, key: &str, node: &Json) -> (NamedDevice, bool) {
        let members = &self.members(key, node, &["name", "annotations", "containerEdits"]);
        let name = self.required(key, members, "name");
        if !name.is_empty() && !name::is_device(&name) {
            self.note(format!("{key}.name"), format!("{name:?} is not a name of a device"));
        }
        let has_annotations =
            self.annotations(&format!("{key}.annotations"), get(members, "annotations"));
        let place = format!("{key}.containerEdits");
        let before = self.mistakes.len();
        let edits = self.edits(&place, get(members, "containerEdits"));
        if edits.is_empty() && self.mistakes.len() == before {
            self.note(&place, "it gives a container nothing");
        }
        (NamedDevice { name, edits }, has_annotations)
    }

    fn annotations(&mut self, key: &str, node: Option<&Json>) -> bool {
        let members = node.map(|node| self.members(key, node, &[])).unwrap_or_default();
        for (name, value) in members {
            self.string(&join(key, name), value);
        }
        node.is_some()
    }
}

#[cfg(test)]
mod tests;
