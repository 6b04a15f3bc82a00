//! Edits an OCI runtime spec as text: what we add is spliced in, and every
//! other byte stays as it was, known to us or not.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::value::RawValue;

use crate::edits::{Device, Edits, Mount};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::json::{quote, RawObject};

/// Largest spec that is read, in bytes.
pub const MAX_SIZE: u64 = 64 << 20;

/// A spec, with the parts of it that matter to us.
#[derive(Debug)]
pub struct Spec<'a> {
    text: &'a str,
    top: &'a RawValue,
    members: RawObject<'a>,
}

impl<'a> Spec<'a> {
    /// Errors: not a JSON object, or one that names something twice.
    pub fn parse(text: &'a str) -> Result<Self> {
        let top: &RawValue = serde_json::from_str(text).map_err(|e| invalid("", &e))?;
        let members = object("", top)?;
        Ok(Self { text, top, members })
    }

    /// What `process.env` lists.
    pub fn environment(&self) -> Result<Environment<'a>> {
        let Some(env) = self.within("process", "env")? else {
            return Ok(Environment::default());
        };
        let entries = list("process.env", env)?;
        let entries = entries.into_iter().map(|entry| text("process.env", entry));
        Ok(Environment::new(entries.collect::<Result<_>>()?))
    }

    /// `root.path`, relative to the bundle or absolute.
    pub fn root_path(&self) -> Result<Option<Cow<'a, str>>> {
        self.within("root", "path")?
            .map(|path| text("root.path", path))
            .transpose()
    }

    fn within(&self, outer: &str, inner: &str) -> Result<Option<&'a RawValue>> {
        match present(self.members.get(outer)) {
            Some(value) => Ok(present(object(outer, value)?.get(inner))),
            None => Ok(None),
        }
    }

    /// The spec with the edits. What it already has at the path of a device or
    /// mount stays: the engine's word, and the user's, comes before ours.
    pub fn edited(&self, edits: &Edits) -> Result<String> {
        let mut splices = Vec::new();
        let mut top = Additions::new(self.top, &self.members);
        self.add_mounts(&edits.mounts, &mut top, &mut splices)?;
        self.add_devices(&edits.devices, &mut top, &mut splices)?;
        splices.extend(top.splice());
        Ok(apply(self.text, splices))
    }

    fn add_mounts(
        &self,
        mounts: &[Mount],
        top: &mut Additions<'a>,
        splices: &mut Vec<Splice<'a>>,
    ) -> Result<()> {
        let present = self.members.get("mounts");
        let taken = values("mounts", present, "destination")?;
        let taken: HashSet<&str> = taken.iter().map(|path| tidy(path)).collect();
        let items: Vec<String> = mounts
            .iter()
            .filter(|m| !taken.contains(m.target.as_str()))
            .map(mount_json)
            .collect();
        extend("mounts", present, &items, top, splices)
    }

    fn add_devices(
        &self,
        devices: &[Device],
        top: &mut Additions<'a>,
        splices: &mut Vec<Splice<'a>>,
    ) -> Result<()> {
        let linux = present(self.members.get("linux"));
        let linux_members = linux.map_or(Ok(RawObject(Vec::new())), |v| object("linux", v))?;
        let taken = values("linux.devices", linux_members.get("devices"), "path")?;
        let taken: HashSet<&str> = taken.iter().map(|path| tidy(path)).collect();
        let new: Vec<&Device> = devices
            .iter()
            .filter(|d| !taken.contains(d.path.as_str()))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let nodes: Vec<String> = new.iter().map(|d| device_json(d)).collect();
        let mut rules: Vec<String> = new.iter().map(|d| rule_json(d)).collect();
        rules.dedup();
        let Some(linux) = linux else {
            let value = format!(
                "{{\"devices\":[{}],\"resources\":{{\"devices\":[{}]}}}}",
                nodes.join(","),
                rules.join(",")
            );
            top.set("linux", &value);
            return Ok(());
        };
        let mut inner = Additions::new(linux, &linux_members);
        extend(
            "devices",
            linux_members.get("devices"),
            &nodes,
            &mut inner,
            splices,
        )?;
        add_rules(&linux_members, &rules, &mut inner, splices)?;
        splices.extend(inner.splice());
        Ok(())
    }
}

fn add_rules<'a>(
    linux: &RawObject<'a>,
    rules: &[String],
    inner: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let Some(resources) = present(linux.get("resources")) else {
        inner.set(
            "resources",
            &format!("{{\"devices\":[{}]}}", rules.join(",")),
        );
        return Ok(());
    };
    let members = object("linux.resources", resources)?;
    let mut added = Additions::new(resources, &members);
    extend(
        "devices",
        members.get("devices"),
        rules,
        &mut added,
        splices,
    )?;
    splices.extend(added.splice());
    Ok(())
}

/// A new text for a part of the old one.
struct Splice<'a> {
    old: &'a str,
    new: String,
}

/// Members that an object gets, or gets anew.
struct Additions<'a> {
    object: &'a str,
    empty: bool,
    nulls: Vec<(String, &'a str)>,
    new: Vec<String>,
    replaced: Vec<Splice<'a>>,
}

impl<'a> Additions<'a> {
    fn new(object: &'a RawValue, members: &RawObject<'a>) -> Self {
        let nulls = members.0.iter().filter(|(_, v)| v.get() == "null");
        Self {
            object: object.get(),
            empty: members.0.is_empty(),
            nulls: nulls.map(|(k, v)| (k.clone(), v.get())).collect(),
            new: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Adds a member, or replaces its `null` (Go writes one for an empty list).
    fn set(&mut self, key: &str, value: &str) {
        match self.nulls.iter().find(|(name, _)| name == key) {
            Some((_, old)) => self.replaced.push(Splice {
                old,
                new: value.to_owned(),
            }),
            None => self.new.push(format!("{}:{value}", quote(key))),
        }
    }

    fn splice(self) -> impl Iterator<Item = Splice<'a>> {
        let end = &self.object[self.object.len() - 1..];
        let own = (!self.new.is_empty()).then(|| Splice {
            old: end,
            new: format!(
                "{}{}}}",
                if self.empty { "" } else { "," },
                self.new.join(",")
            ),
        });
        self.replaced.into_iter().chain(own)
    }
}

/// Adds items to a list of an object, which may lack it.
fn extend<'a>(
    key: &str,
    present: Option<&'a RawValue>,
    items: &[String],
    object: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let items = items.join(",");
    match present.filter(|value| value.get() != "null") {
        None => object.set(key, &format!("[{items}]")),
        Some(value) => {
            let comma = if list(key, value)?.is_empty() {
                ""
            } else {
                ","
            };
            let old = &value.get()[value.get().len() - 1..];
            splices.push(Splice {
                old,
                new: format!("{comma}{items}]"),
            });
        }
    }
    Ok(())
}

fn apply(text: &str, mut splices: Vec<Splice>) -> String {
    let start = |splice: &Splice| splice.old.as_ptr() as usize - text.as_ptr() as usize;
    splices.sort_by_key(start);
    let added: usize = splices.iter().map(|s| s.new.len()).sum();
    let mut out = String::with_capacity(text.len() + added);
    let mut done = 0;
    for splice in &splices {
        let at = start(splice);
        out.push_str(&text[done..at]);
        out.push_str(&splice.new);
        done = at + splice.old.len();
    }
    out.push_str(&text[done..]);
    out
}

fn mount_json(mount: &Mount) -> String {
    format!(
        "{{\"destination\":{},\"type\":\"bind\",\"source\":{},\"options\":[\"bind\",\"ro\",\"nosuid\",\"nodev\",\"rprivate\"]}}",
        quote(&mount.target),
        quote(&mount.source)
    )
}

fn device_json(device: &Device) -> String {
    format!(
        "{{\"path\":{},\"type\":\"{}\",\"major\":{},\"minor\":{},\"fileMode\":{},\"uid\":{},\"gid\":{}}}",
        quote(&device.path),
        device.kind,
        device.major,
        device.minor,
        device.mode,
        device.uid,
        device.gid
    )
}

fn rule_json(device: &Device) -> String {
    format!(
        "{{\"allow\":true,\"type\":\"{}\",\"major\":{},\"minor\":{},\"access\":\"rwm\"}}",
        device.kind, device.major, device.minor
    )
}

/// The path without slashes at its end.
fn tidy(path: &str) -> &str {
    let tidied = path.trim_end_matches('/');
    if tidied.is_empty() {
        path
    } else {
        tidied
    }
}

/// One member of every object of a list: `[{"path": …}]`.
fn values<'a>(
    key: &str,
    list_value: Option<&'a RawValue>,
    member: &str,
) -> Result<Vec<Cow<'a, str>>> {
    let Some(value) = present(list_value) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for item in list(key, value)? {
        if let Some(value) = object(key, item)?.get(member) {
            found.push(text(key, value)?);
        }
    }
    Ok(found)
}

fn present(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|v| v.get() != "null")
}

fn object<'a>(key: &str, value: &'a RawValue) -> Result<RawObject<'a>> {
    let members: RawObject = serde_json::from_str(value.get()).map_err(|e| invalid(key, &e))?;
    match members.duplicate() {
        Some(name) => Err(invalid(key, &format!("{name:?} is given twice"))),
        None => Ok(members),
    }
}

fn list<'a>(key: &str, value: &'a RawValue) -> Result<Vec<&'a RawValue>> {
    serde_json::from_str(value.get()).map_err(|e| invalid(key, &e))
}

/// A string, borrowed where it has no escapes.
fn text<'a>(key: &str, value: &'a RawValue) -> Result<Cow<'a, str>> {
    let raw = value.get();
    match raw.strip_prefix('"').and_then(|r| r.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
        _ => serde_json::from_str(raw)
            .map(Cow::Owned)
            .map_err(|e| invalid(key, &e)),
    }
}

fn invalid(key: &str, problem: &dyn std::fmt::Display) -> Error {
    let place = if key.is_empty() { "" } else { ": " };
    Error::failed(format!(
        "the container's config.json is not a valid spec: {key}{place}{problem}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edits() -> Edits {
        let device = |path: &str, minor| Device {
            path: path.to_owned(),
            kind: 'c',
            major: 195,
            minor,
            mode: 0o666,
            uid: 0,
            gid: 44,
        };
        Edits {
            devices: vec![device("/dev/n0", 0), device("/dev/n1", 1)],
            mounts: vec![Mount {
                source: "/h/a\"b".to_owned(),
                target: "/usr/lib/a\"b".to_owned(),
            }],
            ..Edits::default()
        }
    }

    fn edited(text: &str) -> String {
        Spec::parse(text).unwrap().edited(&edits()).unwrap()
    }

    fn tree(text: &str) -> crate::json::Json {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    #[test]
    fn every_shape_of_spec_gets_the_edits_once() {
        let shapes = [
            "{}",
            r#" { "x" : 1.0e5 } "#,
            r#"{"mounts":null,"linux":null}"#,
            r#"{"mounts":[],"linux":{}}"#,
            r#"{"linux":{"devices":null,"resources":null}}"#,
            r#"{"linux":{"resources":{}}}"#,
            r#"{"mounts":[{"destination":"/proc"}],"linux":{"devices":[{"path":"/dev/x"}],"resources":{"devices":[{"allow":false}]}}}"#,
        ];
        for shape in shapes {
            let once = edited(shape);
            for part in [
                "/usr/lib/a\\\"b",
                "/dev/n0",
                "\"minor\":1,\"access\":\"rwm\"",
            ] {
                assert_eq!(once.matches(part).count(), 1, "{part} {once}");
            }
            tree(&once);
            assert_eq!(edited(&once), once);
        }
    }

    #[test]
    fn numbers_spaces_and_unknown_fields_stay() {
        let text = "{ \"n\": 1.50e+3,\t\"mounts\" : [ {\"destination\":\"/a\",\"x\":[ ]} ] , \"z\":\"\\u00e9\"}\n";
        let edited = edited(text);
        assert!(edited.starts_with(
            "{ \"n\": 1.50e+3,\t\"mounts\" : [ {\"destination\":\"/a\",\"x\":[ ]} ,{"
        ));
        assert!(edited.contains("] , \"z\":\"\\u00e9\",\"linux\":{"));
        assert!(edited.ends_with("}\n"));
    }

    #[test]
    fn what_is_at_a_path_stays() {
        let text = r#"{"mounts":[{"destination":"/usr/lib/a\"b/","source":"/mine"}],
            "linux":{"devices":[{"path":"/dev/n0","major":1},{"path":"/dev/n1"}]}}"#;
        assert_eq!(edited(text), text);
    }

    #[test]
    fn reads_environment_and_root() {
        let text = r#"{"process":{"env":["A=1","B=\n"]},"root":{"path":"rootfs"}}"#;
        let spec = Spec::parse(text).unwrap();
        let env = spec.environment().unwrap();
        assert_eq!((env.get("A"), env.get("B")), (Some("1"), Some("\n")));
        assert_eq!(spec.root_path().unwrap().as_deref(), Some("rootfs"));
        assert!(Spec::parse("{}").unwrap().root_path().unwrap().is_none());
    }

    #[test]
    fn what_is_no_spec_is_refused() {
        for text in ["", "[]", "3", "{\"a\":1,\"a\":2}", "{\"a\":", "\u{feff}{}"] {
            assert!(Spec::parse(text).is_err(), "{text:?}");
        }
        let bad = |text: &str| Spec::parse(text).unwrap().edited(&edits()).is_err();
        assert!(bad(r#"{"mounts":{}}"#));
        assert!(bad(r#"{"mounts":[3]}"#));
        assert!(bad(r#"{"linux":[]}"#));
        let spec = Spec::parse(r#"{"process":{"env":[1]}}"#).unwrap();
        assert!(spec.environment().is_err());
    }

    fn json_leaf() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("null".to_owned()),
            Just("-1.50E+03".to_owned()),
            Just("123456789012345678901234567890".to_owned()),
            "[a-zé\\\\\"\n]{0,5}".prop_map(|s| quote(&s)),
            Just(" [ ] ".to_owned()),
            Just("{ \"k\" : [ 1 , {} ] }".to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn unknown_fields_stay_byte_for_byte(
            unknown in prop::collection::btree_map("[a-e]{1,3}", json_leaf(), 0..6),
            mounts in prop::collection::vec(json_leaf(), 0..3),
            place in 0usize..7,
        ) {
            let mounts: Vec<String> =
                mounts.iter().map(|v| format!("{{\"destination\":\"/x\", \"u\" : {v}}}")).collect();
            let mut members: Vec<String> =
                unknown.iter().map(|(k, v)| format!("{} : {v}", quote(k))).collect();
            let at = place.min(members.len());
            members.insert(at, format!("\"mounts\":[{}]", mounts.join(" , ")));
            let text = format!("{{{}}}", members.join(" ,\n"));
            let once = edited(&text);
            for (key, value) in &unknown {
                let part = format!("{} : {}", quote(key), value);
                prop_assert!(once.contains(&part));
            }
            // Taking our additions out again gives the old text.
            let old: Vec<char> = text.chars().collect();
            let mut rest = once.chars();
            prop_assert!(old.iter().all(|c| rest.any(|d| d == *c)));
            prop_assert_eq!(edited(&once), once);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{}\":,a-z0-9 ]{0,80}") {
            if let Ok(spec) = Spec::parse(&text) {
                let _ = spec.environment();
                let _ = spec.edited(&edits());
            }
        }
    }
}
