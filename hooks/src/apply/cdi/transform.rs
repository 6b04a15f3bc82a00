//! Changes the root of the paths in an existing specification.

use serde_json::Value;

use crate::config::cdi::{Node, Syntax};
use crate::edits::lies_in;
use crate::error::{Error, Result};

/// What to change.
#[derive(Debug, Clone)]
pub struct Transform {
    pub from: String,
    pub to: String,
    /// Changes the paths in the container instead of the host's.
    pub in_container: bool,
}

impl Transform {
    /// The document with the paths below the new root. Everything else stays, also unknown members.
    /// Errors: the text does not have this syntax.
    pub fn apply(&self, text: &str, syntax: Syntax) -> Result<Value> {
        let node = Node::parse(text, syntax).map_err(|problem| {
            Error::usage(format!("the specification is {problem}"))
                .resolve("give --input a specification in JSON or YAML")
        })?;
        let mut document = value(node);
        self.edits(&mut document["containerEdits"]);
        if let Some(devices) = document["devices"].as_array_mut() {
            for device in devices {
                self.edits(&mut device["containerEdits"]);
            }
        }
        // Indexing a missing member has added it as null.
        remove_null(&mut document);
        Ok(document)
    }

    fn edits(&self, edits: &mut Value) {
        let mount_key = if self.in_container {
            "containerPath"
        } else {
            "hostPath"
        };
        for node in list(edits, "deviceNodes") {
            // Without `hostPath`, the host has the node at the path of the container.
            let own = node.get("hostPath").or_else(|| node.get("path"));
            let own = own.and_then(Value::as_str).unwrap_or_default().to_owned();
            if self.in_container {
                self.member(node, "path");
            } else if self.moved(&own) != own {
                node["hostPath"] = self.moved(&own).into();
            }
        }
        for mount in list(edits, "mounts") {
            self.member(mount, mount_key);
        }
        for hook in list(edits, "hooks") {
            if self.in_container {
                for word in list(hook, "args") {
                    if let Some(text) = word.as_str() {
                        let parts: Vec<_> = text.split("::").map(|part| self.moved(part)).collect();
                        *word = parts.join("::").into();
                    }
                }
            } else {
                self.member(hook, "path");
            }
        }
    }

    fn member(&self, object: &mut Value, key: &str) {
        if let Some(path) = object.get(key).and_then(Value::as_str) {
            object[key] = self.moved(path).into();
        }
    }

    fn moved(&self, path: &str) -> String {
        let from = self.from.trim_end_matches('/');
        if !path.starts_with('/') || !lies_in(path, if from.is_empty() { "/" } else { from }) {
            return path.to_owned();
        }
        let moved = format!("{}{}", self.to.trim_end_matches('/'), &path[from.len()..]);
        if moved.is_empty() {
            "/".to_owned()
        } else {
            moved
        }
    }
}

fn list<'a>(object: &'a mut Value, key: &str) -> &'a mut [Value] {
    match object.get_mut(key) {
        Some(Value::Array(items)) => items,
        _ => &mut [],
    }
}

fn remove_null(document: &mut Value) {
    let Value::Object(members) = document else {
        return;
    };
    members.retain(|_, value| !value.is_null());
    for device in list(document, "devices") {
        if let Value::Object(members) = device {
            members.retain(|_, value| !value.is_null());
        }
    }
}

fn value(node: Node) -> Value {
    match node {
        Node::Null => Value::Null,
        Node::Bool(value) => value.into(),
        Node::Number(_) => node.integer().map_or(Value::Null, Value::from),
        Node::Text(text) => text.into(),
        Node::Plain(ref text) => {
            let known = node.integer().map(Value::from);
            let known = known.or_else(|| node.boolean().map(Value::from));
            match known {
                Some(value) => value,
                None if node.is_null() => Value::Null,
                None => text.clone().into(),
            }
        }
        Node::List(items) => items.into_iter().map(value).collect(),
        Node::Map(members) => Value::Object(
            members
                .into_iter()
                .map(|(key, node)| (key, value(node)))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = r#"{"cdiVersion":"0.5.0","kind":"v/c","x":[1],
      "devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/x","hostPath":"/r/dev/x"},{"path":"/dev/y"}],
        "mounts":[{"hostPath":"/r/lib","containerPath":"/lib"},{"hostPath":"/rest","containerPath":"/r/z"}],
        "hooks":[{"hookName":"createContainer","path":"/r/bin/h","args":["h","--link","../a::/r/b"]}]}}]}"#;

    fn transformed(from: &str, to: &str, in_container: bool) -> Value {
        let transform = Transform {
            from: from.to_owned(),
            to: to.to_owned(),
            in_container,
        };
        transform.apply(TEXT, Syntax::Json).unwrap()
    }

    #[test]
    fn paths_of_the_host_move() {
        let document = transformed("/r", "/", false);
        let edits = &document["devices"][0]["containerEdits"];
        assert_eq!(
            edits["deviceNodes"][0],
            json!({"path": "/dev/x", "hostPath": "/dev/x"})
        );
        assert_eq!(edits["deviceNodes"][1], json!({"path": "/dev/y"}));
        assert_eq!(
            edits["mounts"][0],
            json!({"hostPath": "/lib", "containerPath": "/lib"})
        );
        assert_eq!(edits["mounts"][1]["hostPath"], "/rest");
        assert_eq!(edits["hooks"][0]["path"], "/bin/h");
        assert_eq!(document["x"], json!([1]));
        assert!(document.get("containerEdits").is_none());
        let added = transformed("/", "/host", false);
        let edits = &added["devices"][0]["containerEdits"];
        assert_eq!(edits["deviceNodes"][1]["hostPath"], "/host/dev/y");
        assert_eq!(edits["mounts"][0]["hostPath"], "/host/r/lib");
    }

    #[test]
    fn paths_of_the_container_move() {
        let document = transformed("/r", "/s", true);
        let edits = &document["devices"][0]["containerEdits"];
        assert_eq!(
            edits["mounts"][1],
            json!({"hostPath": "/rest", "containerPath": "/s/z"})
        );
        assert_eq!(edits["deviceNodes"][0]["hostPath"], "/r/dev/x");
        assert_eq!(
            edits["hooks"][0]["args"],
            json!(["h", "--link", "../a::/s/b"])
        );
        assert_eq!(edits["hooks"][0]["path"], "/r/bin/h");
    }
}
