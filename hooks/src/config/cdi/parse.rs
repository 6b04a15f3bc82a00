//! Turns values into a document. Every mistake is collected, and reading continues.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use yaml_rust2::parser::{Event, Parser, Tag};
use yaml_rust2::scanner::TScalarStyle;

use crate::config::cdi::{
    check_version, ContainerEdits, DeviceNode, Document, NamedDevice, Rdt, Syntax,
};
use crate::config::reader::{get, is_device, is_kind, join, Json, Members, Reader};
use crate::model::edits::{Access, DescribedMount, Hook, NetDevice};
use crate::model::vendor::Mistake;
use crate::spec::config::quote;

const STAGES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
/// Names of interfaces: linux/if.h, `IFNAMSIZ`.
const MAX_INTERFACE: usize = 15;

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
        if !document.kind.is_empty() && !is_kind(&document.kind) {
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

    fn device(&mut self, key: &str, node: &Json) -> (NamedDevice, bool) {
        let members = &self.members(key, node, &["name", "annotations", "containerEdits"]);
        let name = self.required(key, members, "name");
        if !name.is_empty() && !is_device(&name) {
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

    fn edits(&mut self, key: &str, node: Option<&Json>) -> ContainerEdits {
        let fields =
            ["env", "deviceNodes", "mounts", "hooks", "additionalGids", "intelRdt", "netDevices"];
        let Some(node) = node else {
            return ContainerEdits::default();
        };
        let members = &self.members(key, node, &fields);
        let list = |reader: &mut Self, field: &str| {
            let place = format!("{key}.{field}");
            reader.list(&place, get(members, field))
        };
        ContainerEdits {
            env: self.variables(&format!("{key}.env"), get(members, "env")),
            nodes: list(self, "deviceNodes").into_iter().map(|(k, n)| self.node(&k, n)).collect(),
            mounts: list(self, "mounts").into_iter().map(|(k, n)| self.mount(&k, n)).collect(),
            hooks: list(self, "hooks").into_iter().map(|(k, n)| self.hook(&k, n)).collect(),
            groups: list(self, "additionalGids")
                .into_iter()
                .filter_map(|(k, n)| self.group(&k, n))
                .collect(),
            rdt: get(members, "intelRdt").map(|n| self.rdt(&format!("{key}.intelRdt"), n)),
            net_devices: self.net_devices(&format!("{key}.netDevices"), get(members, "netDevices")),
        }
    }

    fn node(&mut self, key: &str, node: &Json) -> DeviceNode {
        let fields =
            ["path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"];
        let members = &self.members(key, node, &fields);
        let kind = self.node_type(key, members);
        let permissions = self.permissions(key, members);
        let mut number = |field: &str| {
            let value = get(members, field)?;
            self.number(&format!("{key}.{field}"), value)
        };
        let (major, minor) = (number("major"), number("minor"));
        let (mode, uid, gid) = (number("fileMode"), number("uid"), number("gid"));
        DeviceNode {
            path: self.path(key, members, "path"),
            host_path: get(members, "hostPath").map(|_| self.path(key, members, "hostPath")),
            kind,
            major,
            minor,
            mode: mode.map(|mode| mode & 0o7777),
            permissions,
            uid,
            gid,
        }
    }

    fn node_type(&mut self, key: &str, members: &Members) -> Option<char> {
        let kind = self.optional(key, members, "type")?;
        if matches!(kind.as_str(), "b" | "c" | "u" | "p") {
            return kind.chars().next();
        }
        let problem = format!("{kind:?} is not one of b, c, u and p");
        self.note(format!("{key}.type"), problem);
        None
    }

    fn permissions(&mut self, key: &str, members: &Members) -> Option<String> {
        let letters = self.optional(key, members, "permissions")?;
        if letters != "none" && Access::parse(&letters).is_none() {
            let problem = format!("{letters:?} is neither none nor letters of rwm");
            self.note(format!("{key}.permissions"), problem);
        }
        Some(letters)
    }

    fn mount(&mut self, key: &str, node: &Json) -> DescribedMount {
        let members = &self.members(key, node, &["hostPath", "containerPath", "options", "type"]);
        let options = self.texts(&format!("{key}.options"), get(members, "options"));
        let kind = self.optional(key, members, "type").unwrap_or_default();
        // A mount that is not a bind mount may have any source.
        let source = if matches!(kind.as_str(), "" | "bind") {
            self.path(key, members, "hostPath")
        } else {
            self.required(key, members, "hostPath")
        };
        DescribedMount { source, target: self.path(key, members, "containerPath"), kind, options }
    }

    fn hook(&mut self, key: &str, node: &Json) -> Hook {
        let members = &self.members(key, node, &["hookName", "path", "args", "env", "timeout"]);
        let stage = self.required(key, members, "hookName");
        if !stage.is_empty() && !STAGES.contains(&stage.as_str()) {
            let problem = format!("{stage:?} is not one of {}", STAGES.join(", "));
            self.note(format!("{key}.hookName"), problem);
        }
        let timeout = get(members, "timeout");
        Hook {
            stage,
            path: self.path(key, members, "path"),
            args: self.texts(&format!("{key}.args"), get(members, "args")),
            env: self.variables(&format!("{key}.env"), get(members, "env")),
            timeout: timeout.and_then(|n| self.number(&format!("{key}.timeout"), n)),
        }
    }

    fn rdt(&mut self, key: &str, node: &Json) -> Rdt {
        let texts = ["closID", "l3CacheSchema", "memBwSchema"];
        let old = ["enableCMT", "enableMBM"];
        let fields: Vec<&str> = texts.iter().chain(&old).copied().collect();
        let fields = [&fields[..], &["schemata", "enableMonitoring"]].concat();
        let members = &self.members(key, node, &fields);
        let mut json = Vec::new();
        for field in texts {
            if let Some(text) = self.optional(key, members, field) {
                json.push(format!("{}:{}", quote(field), quote(&text)));
            }
        }
        for field in old.into_iter().chain(["enableMonitoring"]) {
            if let Some(value) = get(members, field) {
                match value.boolean() {
                    Some(value) => json.push(format!("{}:{value}", quote(field))),
                    None => self.expected(&format!("{key}.{field}"), "true or false", value),
                }
            }
        }
        let schemata = self.texts(&format!("{key}.schemata"), get(members, "schemata"));
        if !schemata.is_empty() {
            let quoted: Vec<String> = schemata.iter().map(|text| quote(text)).collect();
            json.push(format!("\"schemata\":[{}]", quoted.join(",")));
        }
        let has = |field: &&str| get(members, field).is_some();
        Rdt {
            json: format!("{{{}}}", json.join(",")),
            is_new: ["schemata", "enableMonitoring"].iter().any(has),
            is_old: old.iter().any(has),
        }
    }

    fn net_devices(&mut self, key: &str, node: Option<&Json>) -> Vec<NetDevice> {
        let mut found: Vec<NetDevice> = Vec::new();
        let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (key, item) in self.list(key, node) {
            let members = &self.members(&key, item, &["hostInterfaceName", "name"]);
            let device = NetDevice {
                host: self.required(&key, members, "hostInterfaceName"),
                name: self.required(&key, members, "name"),
            };
            for (field, name) in [("hostInterfaceName", &device.host), ("name", &device.name)] {
                if name.len() > MAX_INTERFACE || name.contains(['/', ':']) || name.contains(' ') {
                    let problem = format!("{name:?} is not a name of an interface");
                    self.note(format!("{key}.{field}"), problem);
                }
            }
            let is_new = hosts.insert(device.host.clone());
            if !names.insert(device.name.clone()) || !is_new {
                self.note(&key, "an interface or a name is given twice");
            }
            found.push(device);
        }
        found
    }
}

type Value = Json<'static>;

/// Values in one document. The values of an alias count each time.
const MAX_NODES: usize = 200_000;
const MAX_DEPTH: usize = 64;

/// Reads one document. Errors: it is not valid, has several documents, or grows too large.
pub fn parse_yaml(text: &str) -> Result<Value, String> {
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
        let found = parse_yaml("a: &x [1, 2]\nb: *x\n").unwrap();
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
        let error = parse_yaml(&bomb).unwrap_err();
        assert!(error.contains("more than 200000 values"), "{error}");
    }
}
