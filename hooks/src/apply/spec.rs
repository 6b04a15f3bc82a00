//! Edits an OCI runtime spec as text: our additions are spliced in, and every other byte stays as
//! it is, including unknown members.

pub mod hooks;
mod linux;
mod process;
pub(crate) mod splice;

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::model::edits::{
    Attribute, DescribedMount, Mount, Mounted, Present, Settled, FILE_MOUNT,
};
use crate::spec::config::ContainerConfig;
use crate::spec::json::{quote, RawObject};
use splice::{apply, extend, Additions, Splice};

/// Types of file systems that a runtime creates for each container.
pub const NEW_FILE_SYSTEMS: [&str; 9] =
    ["tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "ramfs", "devtmpfs"];
const BINDS: [&str; 2] = ["bind", "rbind"];

/// The text of a spec and its members.
#[derive(Debug)]
pub struct Spec<'a> {
    text: &'a str,
    members: RawObject<'a>,
}

impl<'a> Spec<'a> {
    /// Errors: the config is not a JSON object.
    pub fn of(config: &ContainerConfig<'a>) -> Result<Self> {
        let (text, members) = config.members()?;
        Ok(Self { text, members: members.clone() })
    }

    /// The same from a text.
    pub fn parse(text: &'a str) -> Result<Self> {
        Self::of(&ContainerConfig::parse(text.as_bytes()))
    }

    /// The spec without edits.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// `root.path`, relative to the bundle or absolute.
    pub fn root_path(&self) -> Result<Option<Cow<'a, str>>> {
        self.within("root", "path")?.map(|path| text("root.path", path)).transpose()
    }

    /// The mounts and devices of the container's own configuration.
    pub fn present(&self) -> Result<Present<'a>> {
        let mut found = Present::default();
        for item in items("mounts", self.members.get("mounts"))? {
            found.mounts.push(mounted(&object("mounts", item.get())?)?);
        }
        for item in items("linux.devices", self.within("linux", "devices")?)? {
            if let Some(path) = object("linux.devices", item.get())?.get("path") {
                found.devices.push(text("linux.devices", path)?);
            }
        }
        Ok(found)
    }

    fn within(&self, outer: &str, inner: &str) -> Result<Option<&'a RawValue>> {
        match present(self.members.get(outer)) {
            Some(value) => Ok(present(object(outer, value.get())?.get(inner))),
            None => Ok(None),
        }
    }

    /// The spec with the edits.
    pub fn edited(&self, edits: &Settled) -> Result<String> {
        let mut splices = Vec::new();
        let mut top = Additions::new(self.text.trim_ascii_end(), &self.members);
        self.add_mounts(edits, &mut top, &mut splices)?;
        linux::edit(self, edits, &mut top, &mut splices)?;
        process::edit(self, edits, &mut splices)?;
        hooks::edit(self, edits, &mut top, &mut splices)?;
        splices.extend(top.splice());
        Ok(apply(self.text, splices))
    }

    fn add_mounts(
        &self,
        edits: &Settled,
        top: &mut Additions<'a>,
        splices: &mut Vec<Splice<'a>>,
    ) -> Result<()> {
        let options: Vec<String> = Attribute::options(FILE_MOUNT).map(quote).collect();
        let options = options.join(",");
        let own = edits.mounts.iter();
        let mounts: Vec<String> = if edits.described.is_empty() {
            own.map(|m| mount_json(m, &options)).collect()
        } else {
            // Parents come before what lies in them, in both kinds of mounts.
            let own = own.map(|m| (&m.target, mount_json(m, &options)));
            let described = edits.described.iter();
            let described = described.map(|m| (&m.target, described_json(m)));
            let mut all: Vec<_> = own.chain(described).collect();
            all.sort_by_key(|(target, _)| target.matches('/').count());
            all.into_iter().map(|(_, json)| json).collect()
        };
        let present = self.members.get("mounts");
        extend("mounts", present, &mounts, top, splices)
    }
}

/// Reads a mount of a spec. It is a bind mount if the type or an option says so.
fn mounted<'a>(members: &RawObject<'a>) -> Result<Mounted<'a>> {
    let get = |key| {
        let value = present(members.get(key));
        value.map_or(Ok(Cow::Borrowed("")), |v| text("mounts", v))
    };
    let mut is_new = NEW_FILE_SYSTEMS.contains(&&*get("type")?);
    if is_new {
        for option in items("mounts", members.get("options"))? {
            is_new &= !BINDS.contains(&&*text("mounts", option)?);
        }
    }
    Ok(Mounted { destination: get("destination")?, source: get("source")?, is_new })
}

fn mount_json(mount: &Mount, options: &str) -> String {
    let (target, source) = (quote(&mount.target), quote(&mount.source));
    [
        "{\"destination\":",
        &target,
        ",\"type\":\"bind\",\"source\":",
        &source,
        ",\"options\":[",
        options,
        "]}",
    ]
    .concat()
}

fn described_json(mount: &DescribedMount) -> String {
    let kind = if mount.kind.is_empty() { "bind" } else { &mount.kind };
    format!(
        "{{\"destination\":{},\"type\":{},\"source\":{},\"options\":{}}}",
        quote(&mount.target),
        quote(kind),
        quote(&mount.source),
        strings_json(&mount.options)
    )
}

fn strings_json(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(","))
}

/// The items of a list. A missing list has none.
fn items<'a>(key: &str, value: Option<&'a RawValue>) -> Result<Vec<&'a RawValue>> {
    present(value).map_or(Ok(Vec::new()), |value| list(key, value))
}

fn present(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|v| v.get() != "null")
}

fn object<'a>(key: &str, text: &'a str) -> Result<RawObject<'a>> {
    serde_json::from_str(text).map_err(|e| invalid(key, &e))
}

fn list<'a>(key: &str, value: &'a RawValue) -> Result<Vec<&'a RawValue>> {
    serde_json::from_str(value.get()).map_err(|e| invalid(key, &e))
}

/// The text of a string, borrowed if it has no escapes.
fn text<'a>(key: &str, value: &'a RawValue) -> Result<Cow<'a, str>> {
    let raw = value.get();
    match raw.strip_prefix('"').and_then(|r| r.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
        _ => serde_json::from_str(raw).map(Cow::Owned).map_err(|e| invalid(key, &e)),
    }
}

fn invalid(key: &str, problem: &dyn std::fmt::Display) -> Error {
    let place = if key.is_empty() { "" } else { ": " };
    Error::failed(format!("the container's config.json is not a valid spec: {key}{place}{problem}"))
}

#[cfg(test)]
mod tests;
