//! Edits an OCI runtime spec as text: our additions are spliced in, and every other byte stays as
//! it is, including unknown members.

pub mod members;

use std::borrow::Cow;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde_json::value::RawValue;

use crate::apply::spec::members::{edit_hooks, edit_linux, edit_process};
use crate::error::{Error, Result};
use crate::host::files::publish;
use crate::host::rootfs::read_whole;
use crate::model::edits::{
    Attribute, DescribedMount, Mount, Mounted, Present, Settled, FILE_MOUNT,
};
use crate::spec::config::{invalid, MAX_CONFIG};
use crate::spec::json::{quote, RawObject};

pub use crate::spec::config::Spec;

/// Types of file systems that a runtime creates for each container.
pub const NEW_FILE_SYSTEMS: [&str; 9] =
    ["tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "ramfs", "devtmpfs"];
const BINDS: [&str; 2] = ["bind", "rbind"];

impl<'a> Spec<'a> {
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

    pub fn edited(&self, edits: &Settled) -> Result<String> {
        let mut splices = Vec::new();
        let mut top = Additions::new(self.text.trim_ascii_end(), &self.members);
        self.add_mounts(edits, &mut top, &mut splices)?;
        edit_linux(self, edits, &mut top, &mut splices)?;
        edit_process(self, edits, &mut splices)?;
        edit_hooks(self, edits, &mut top, &mut splices)?;
        splices.extend(top.splice());
        Ok(apply_splices(self.text, splices))
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

/// A new text for a part of the old text.
pub struct Splice<'a> {
    pub old: &'a str,
    pub new: String,
}

/// Members to set in an object, old or new.
pub(super) struct Additions<'a> {
    object: &'a str,
    empty: bool,
    nulls: Vec<(Cow<'a, str>, &'a str)>,
    new: Vec<String>,
    replaced: Vec<Splice<'a>>,
}

impl<'a> Additions<'a> {
    pub fn new(object: &'a str, members: &RawObject<'a>) -> Self {
        let nulls = members.0.iter().filter(|(_, v)| v.get() == "null");
        Self {
            object,
            empty: members.0.is_empty(),
            nulls: nulls.map(|(k, v)| (k.clone(), v.get())).collect(),
            new: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Adds a member, or replaces its `null` (Go writes one for an empty list).
    pub fn set(&mut self, key: &str, value: &str) {
        match self.nulls.iter().find(|(name, _)| name == key) {
            Some((_, old)) => self.replaced.push(Splice { old, new: value.to_owned() }),
            None => self.new.push(format!("{}:{value}", quote(key))),
        }
    }

    pub fn splice(self) -> impl Iterator<Item = Splice<'a>> {
        let end = &self.object[self.object.len() - 1..];
        let own = (!self.new.is_empty()).then(|| Splice {
            old: end,
            new: format!("{}{}}}", if self.empty { "" } else { "," }, self.new.join(",")),
        });
        self.replaced.into_iter().chain(own)
    }
}

/// Adds items to a list of an object. The object may lack the list.
pub(super) fn extend<'a>(
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
            let comma = if list(key, value)?.is_empty() { "" } else { "," };
            let old = &value.get()[value.get().len() - 1..];
            splices.push(Splice { old, new: format!("{comma}{items}]") });
        }
    }
    Ok(())
}

pub fn apply_splices(text: &str, mut splices: Vec<Splice>) -> String {
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

const TEMPORARY: &str = ".config.json.oci-decorator";

/// The text of a bundle's config, and the file's status. `None`: the bundle has no such file.
pub fn read_config(path: &Path) -> Result<Option<(Vec<u8>, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fail = |problem: &dyn std::fmt::Display| {
        Error::failed(format!("can't read {}: {problem}", path.display()))
    };
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        other => other.map_err(|e| fail(&e))?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(|e| fail(&e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(fail(&"it is not a regular file"));
    }
    let bytes = read_whole(&fd, &stat, MAX_CONFIG).map_err(|e| fail(&e))?;
    Ok(Some((bytes, stat)))
}

/// Replaces the file atomically and keeps its owner and mode.
pub fn write_config(path: &Path, text: &str, like: &Stat) -> rustix::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    publish(&folder, TEMPORARY, name, text.as_bytes(), like, |_| Ok(()))
}

#[cfg(test)]
mod tests;
