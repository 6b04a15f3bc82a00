//! Edits an OCI runtime spec as text: what we add is spliced in, and every
//! other byte stays as it was, known to us or not.

mod splice;

use std::borrow::Cow;

use rustc_hash::FxHashSet;
use serde_json::value::RawValue;

use crate::edits::{Device, Edits, Mount};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::json::{quote, RawObject};
use splice::{apply, extend, Additions, Splice};

/// Largest spec that is read, in bytes.
pub const MAX_SIZE: u64 = 64 << 20;

/// A spec, with the parts of it that matter to us.
#[derive(Debug)]
pub struct Spec<'a> {
    text: &'a str,
    members: RawObject<'a>,
}

impl<'a> Spec<'a> {
    /// Errors: not a JSON object, or one that names something twice.
    pub fn parse(text: &'a str) -> Result<Self> {
        let members = object("", text)?;
        Ok(Self { text, members })
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

    /// Destination and source of every mount.
    pub fn mounts(&self) -> Result<Vec<(Cow<'a, str>, Cow<'a, str>)>> {
        let Some(mounts) = present(self.members.get("mounts")) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for item in list("mounts", mounts)? {
            let members = object("mounts", item.get())?;
            let get = |key| {
                members
                    .get(key)
                    .map_or(Ok(Cow::Borrowed("")), |v| text("mounts", v))
            };
            let destination = match get("destination")? {
                Cow::Borrowed(path) => Cow::Borrowed(tidy(path)),
                Cow::Owned(path) => Cow::Owned(tidy(&path).to_owned()),
            };
            found.push((destination, get("source")?));
        }
        Ok(found)
    }

    fn within(&self, outer: &str, inner: &str) -> Result<Option<&'a RawValue>> {
        match present(self.members.get(outer)) {
            Some(value) => Ok(present(object(outer, value.get())?.get(inner))),
            None => Ok(None),
        }
    }

    /// The spec with the edits. What it already has at the path of a device or
    /// mount stays: the engine's word, and the user's, comes before ours.
    pub fn edited(&self, edits: &Edits) -> Result<String> {
        let mut splices = Vec::new();
        let mut top = Additions::new(self.text.trim_ascii_end(), &self.members);
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
        let taken: FxHashSet<&str> = taken.iter().map(|path| tidy(path)).collect();
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
        let linux_members =
            linux.map_or(Ok(RawObject(Vec::new())), |v| object("linux", v.get()))?;
        let taken = values("linux.devices", linux_members.get("devices"), "path")?;
        let taken: FxHashSet<&str> = taken.iter().map(|path| tidy(path)).collect();
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
        let mut inner = Additions::new(linux.get(), &linux_members);
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
    let members = object("linux.resources", resources.get())?;
    let mut added = Additions::new(resources.get(), &members);
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
        if let Some(value) = object(key, item.get())?.get(member) {
            found.push(text(key, value)?);
        }
    }
    Ok(found)
}

fn present(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|v| v.get() != "null")
}

fn object<'a>(key: &str, text: &'a str) -> Result<RawObject<'a>> {
    let members: RawObject = serde_json::from_str(text).map_err(|e| invalid(key, &e))?;
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
mod tests;
