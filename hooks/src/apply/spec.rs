//! Edits an OCI runtime spec as text: our additions are spliced in, and every other byte stays as
//! it is, including unknown members.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::host::files::publish;
use crate::host::own_hook;
use crate::host::rootfs::read_whole;
use crate::model::edits::{
    variable_name, Attribute, DescribedMount, Device, Edits, Hook, Link, Mount, Mounted, Present,
    Settled, FILE_MOUNT,
};
use crate::spec::config::{invalid, quote, RawObject, HOOK_STAGES, MAX_CONFIG};

pub use crate::spec::config::Spec;

/// Types of file systems that a runtime creates for each container.
pub const NEW_FILE_SYSTEMS: [&str; 9] =
    ["tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "ramfs", "devtmpfs"];
const BINDS: [&str; 2] = ["bind", "rbind"];

impl<'a> Spec<'a> {
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

/// At this stage new file systems are mounted, and the root is not entered yet.
const LATE_STAGE: &str = "createContainer";
/// The first words of a command line that makes links.
const LINKER: [&str; 2] = ["nvidia-cdi-hook", "create-symlinks"];

pub(super) fn edit_hooks<'a>(
    spec: &Spec<'a>,
    edits: &Settled,
    top: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let late = late_hook(&edits.late_links)?;
    let hooks: Vec<&Hook> = edits.hooks.iter().chain(&late).collect();
    if hooks.is_empty() && edits.replaced_hooks.is_empty() {
        return Ok(());
    }
    edit_member(
        "hooks",
        spec.members.get("hooks"),
        "{}",
        top,
        splices,
        |members, added, splices| {
            edit_stages(members, &hooks, &edits.replaced_hooks, added, splices)
        },
    )
}

/// Edits an object that is a member of another one. It is made if it is missing and gets something;
/// `default` is its text then.
fn edit_member<'a>(
    key: &str,
    present_value: Option<&'a RawValue>,
    default: &'a str,
    outer: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
    edit: impl FnOnce(&RawObject<'a>, &mut Additions<'a>, &mut Vec<Splice<'a>>) -> Result<()>,
) -> Result<()> {
    let listed = present(present_value);
    let text = listed.map_or(default, RawValue::get);
    let name = key.rsplit('.').next().unwrap_or(key);
    let members = object(key, text)?;
    let mut inner = Additions::new(text, &members);
    let mut own = Vec::new();
    edit(&members, &mut inner, &mut own)?;
    own.extend(inner.splice());
    if listed.is_some() {
        splices.extend(own);
    } else if !own.is_empty() {
        outer.set(name, &apply_splices(text, own));
    }
    Ok(())
}

fn edit_stages<'a>(
    members: &RawObject<'a>,
    hooks: &[&Hook],
    replaced: &[String],
    added: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let mut stages: Vec<&str> = hooks.iter().map(|hook| hook.stage.as_str()).collect();
    if !replaced.is_empty() {
        stages.extend(HOOK_STAGES);
    }
    stages.sort_unstable();
    stages.dedup();
    for stage in stages {
        let listed = members.get(stage);
        let there = items(&format!("hooks.{stage}"), listed)?;
        let is_replaced = |item: &&&RawValue| HOOK_STAGES.contains(&stage) && runs(item, replaced);
        let gone = there.iter().filter(is_replaced).count();
        let own = hooks.iter().filter(|hook| hook.stage == stage);
        let new = own.filter(|hook| !there.iter().any(|item| is_same(item, hook)));
        let new: Vec<String> = new.map(|hook| hook_json(hook)).collect();
        match listed {
            Some(listed) if gone > 0 => {
                let kept = there.iter().filter(|item| !is_replaced(item));
                let kept = kept.map(|item| item.get().to_owned());
                let all: Vec<String> = kept.chain(new).collect();
                let (old, new) = (listed.get(), format!("[{}]", all.join(",")));
                splices.push(Splice { old, new });
            }
            listed => extend(stage, listed, &new, added, splices)?,
        }
    }
    Ok(())
}

fn runs(item: &RawValue, names: &[String]) -> bool {
    let path = object("hooks.", item.get())
        .ok()
        .and_then(|members| members.get("path").map(|path| text("hooks.path", path)));
    let Some(Ok(path)) = path else { return false };
    let name = path.rsplit('/').next().unwrap_or_default();
    names.iter().any(|known| known == name)
}

/// True if the spec has this hook already, in any layout.
fn is_same(item: &RawValue, hook: &Hook) -> bool {
    let there: Option<ListedHook> = serde_json::from_str(item.get()).ok();
    there.is_some_and(|there| {
        there.path == hook.path
            && there.args.unwrap_or_default() == hook.args
            && there.env.as_ref() == Some(&hook.env)
            && there.timeout == hook.timeout
    })
}

#[derive(Deserialize)]
struct ListedHook {
    path: String,
    args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    timeout: Option<u32>,
}

fn hook_json(hook: &Hook) -> String {
    let timeout = hook.timeout.map_or(String::new(), |seconds| format!(",\"timeout\":{seconds}"));
    format!(
        "{{\"path\":{},\"args\":{},\"env\":{}{timeout}}}",
        quote(&hook.path),
        strings_json(&hook.args),
        strings_json(&hook.env)
    )
}

/// A hook for links in file systems that the runtime mounts first.
fn late_hook(links: &[Link]) -> Result<Option<Hook>> {
    if links.is_empty() {
        return Ok(None);
    }
    let mut args: Vec<String> = LINKER.iter().map(|&word| word.to_owned()).collect();
    for link in links {
        let pair = format!("{}::{}", link.target, link.path);
        args.extend(["--link".to_owned(), pair]);
    }
    own_hook(LATE_STAGE, args).map(Some)
}

pub(super) fn edit_linux<'a>(
    spec: &Spec<'a>,
    edits: &Settled,
    top: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let nothing = edits.allowed().next().is_none()
        && edits.intel_rdt.is_none()
        && edits.net_devices.is_empty();
    if nothing {
        return Ok(());
    }
    let nodes = nodes(spec, &edits.devices)?;
    edit_member("linux", spec.members.get("linux"), "{}", top, splices, |linux, inner, splices| {
        extend("devices", linux.get("devices"), &nodes, inner, splices)?;
        let resources = linux.get("resources");
        edit_member("linux.resources", resources, "{}", inner, splices, |all, inner, splices| {
            let listed = all.get("devices");
            extend("devices", listed, &new_rules(listed, edits)?, inner, splices)
        })?;
        // The container's own value stays.
        if let (Some(rdt), None) = (&edits.intel_rdt, present(linux.get("intelRdt"))) {
            inner.set("intelRdt", rdt);
        }
        // Interfaces that the container's own configuration moves stay as they are there.
        let listed = linux.get("netDevices").filter(|_| !edits.net_devices.is_empty());
        edit_member("linux.netDevices", listed, "{}", inner, splices, |all, inner, _| {
            for device in edits.net_devices.iter().filter(|it| all.get(&it.host).is_none()) {
                inner.set(&device.host, &format!("{{\"name\":{}}}", quote(&device.name)));
            }
            Ok(())
        })
    })
}

/// The rules to add. An earlier start may have added rules for nodes that we do not make.
fn new_rules(listed: Option<&RawValue>, edits: &Settled) -> Result<Vec<String>> {
    let needed = edits.allowed().filter(|device| device.needs_rule());
    let mut rules: Vec<String> = needed.map(rule_json).collect();
    rules.dedup();
    if rules.len() > edits.devices.len() {
        let listed = items("linux.resources.devices", listed)?;
        let listed: BTreeSet<&str> = listed.iter().map(|item| item.get()).collect();
        rules.retain(|rule| !listed.contains(rule.as_str()));
    }
    Ok(rules)
}

fn nodes(spec: &Spec, devices: &[Device]) -> Result<Vec<String>> {
    let is_given = |device: &Device| device.uid.is_some() && device.gid.is_some();
    let owner = if devices.iter().all(is_given) { (0, 0) } else { user(spec)? };
    Ok(devices.iter().map(|d| device_json(d, owner)).collect())
}

fn device_json(device: &Device, owner: (u32, u32)) -> String {
    let numbers = if device.kind == 'p' {
        Cow::Borrowed("")
    } else {
        format!(",\"major\":{},\"minor\":{}", device.major, device.minor).into()
    };
    format!(
        "{{\"path\":{},\"type\":\"{}\"{numbers},\"fileMode\":{},\"uid\":{},\"gid\":{}}}",
        quote(&device.path),
        device.kind,
        device.mode,
        device.uid.unwrap_or(owner.0),
        device.gid.unwrap_or(owner.1)
    )
}

fn rule_json(device: &Device) -> String {
    format!(
        "{{\"allow\":true,\"type\":\"{}\",\"major\":{},\"minor\":{},\"access\":\"{}\"}}",
        device.kind, device.major, device.minor, device.access
    )
}

/// Applies the edits. A spec without a process stays as it is.
pub(super) fn edit_process<'a>(
    spec: &Spec<'a>,
    edits: &Settled,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    if edits.environment.is_empty() && edits.unset.is_empty() && edits.groups.is_empty() {
        return Ok(());
    }
    let Some(process) = present(spec.members.get("process")) else {
        return Ok(());
    };
    let members = object("process", process.get())?;
    let mut inner = Additions::new(process.get(), &members);
    edit_environment(members.get("env"), edits, &mut inner, splices)?;
    add_groups(&members, edits, &mut inner, splices)?;
    splices.extend(inner.splice());
    Ok(())
}

/// The numbers of the user and group that the process runs as.
pub(super) fn user(spec: &Spec) -> Result<(u32, u32)> {
    let Some(user) = spec.within("process", "user")? else {
        return Ok((0, 0));
    };
    let members = object("process.user", user.get())?;
    let number = |key: &str| members.get(key).map_or(Ok(0), |v| id("process.user", v));
    Ok((number("uid")?, number("gid")?))
}

fn id(key: &str, value: &RawValue) -> Result<u32> {
    if value.get() == "null" {
        return Ok(0);
    }
    serde_json::from_str(value.get()).map_err(|e| invalid(key, &e))
}

/// Replaces a variable in its position, so that the order stays.
fn edit_environment<'a>(
    listed: Option<&'a RawValue>,
    edits: &Edits,
    process: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let mut kept: Vec<Cow<str>> = Vec::new();
    let mut is_changed = false;
    let mut done = vec![false; edits.environment.len()];
    let ours = edits.environment.iter().enumerate();
    let ours = ours.map(|(place, entry)| (variable_name(entry), place));
    let ours: FxHashMap<&str, usize> = ours.collect();
    let unset: FxHashSet<&str> = edits.unset.iter().map(String::as_str).collect();
    for item in items("process.env", listed)? {
        let entry = text("process.env", item)?;
        let name = variable_name(&entry);
        match ours.get(name).copied() {
            Some(place) if done[place] => is_changed = true,
            Some(place) => {
                done[place] = true;
                is_changed |= edits.environment[place] != *entry;
                kept.push(quote(&edits.environment[place]).into());
            }
            None if unset.contains(name) => is_changed = true,
            None => kept.push(item.get().into()),
        }
    }
    let missing = edits.environment.iter().zip(&done).filter(|(_, done)| !*done);
    let new: Vec<String> = missing.map(|(entry, _)| quote(entry)).collect();
    match listed {
        Some(listed) if is_changed => {
            kept.extend(new.into_iter().map(Cow::Owned));
            let new = format!("[{}]", kept.join(","));
            let old = listed.get();
            splices.push(Splice { old, new });
            Ok(())
        }
        listed => extend("env", listed, &new, process, splices),
    }
}

fn add_groups<'a>(
    process: &RawObject<'a>,
    edits: &Edits,
    inner: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    // The group of the host's root is never added.
    let wanted = edits.groups.iter().filter(|group| **group != 0);
    let mut wanted: Vec<u32> = wanted.copied().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let (user, root) = (process.get("user"), "{\"uid\":0,\"gid\":0}");
    edit_member("process.user", user, root, inner, splices, |user, added, splices| {
        let listed = user.get("additionalGids");
        for item in items("process.user.additionalGids", listed)? {
            if let Ok(there) = serde_json::from_str::<u32>(item.get()) {
                wanted.retain(|group| *group != there);
            }
        }
        let new: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        extend("additionalGids", listed, &new, added, splices)
    })
}

#[cfg(test)]
mod tests;
