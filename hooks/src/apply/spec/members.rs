//! TODO

use std::borrow::Cow;
use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::value::RawValue;

use crate::apply::spec::{
    apply_splices, extend, invalid, items, object, present, strings_json, text, Additions, Spec,
    Splice,
};
use crate::error::{Error, Result};
use crate::model::edits::{variable_name, Device, Edits, Hook, Link, Settled};
use crate::spec::config::HOOK_STAGES;
use crate::spec::json::{quote, Json, RawObject};

/// At this stage new file systems are mounted, and the root is not entered yet.
const LATE_STAGE: &str = "createContainer";
/// The first words of a command line that makes links.
const LINKER: [&str; 2] = ["nvidia-cdi-hook", "create-symlinks"];

/// Removes and adds the hooks of the edits.
pub(super) fn edit_hooks<'a>(
    spec: &Spec<'a>,
    edits: &Settled,
    top: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let rest = &edits.rest;
    let late = late_hook(&edits.late_links)?;
    let hooks: Vec<&Hook> = rest.hooks.iter().chain(&late).collect();
    if hooks.is_empty() && rest.replaced_hooks.is_empty() {
        return Ok(());
    }
    match present(spec.members.get("hooks")) {
        Some(listed) => edit_hooks_object(listed.get(), &hooks, &rest.replaced_hooks, splices),
        None if hooks.is_empty() => Ok(()),
        None => {
            let mut inner = Vec::new();
            edit_hooks_object("{}", &hooks, &[], &mut inner)?;
            top.set("hooks", &apply_splices("{}", inner));
            Ok(())
        }
    }
}

fn edit_hooks_object<'a>(
    text: &'a str,
    hooks: &[&Hook],
    replaced: &[String],
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let members = object("hooks", text)?;
    let mut added = Additions::new(text, &members);
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
            listed => extend(stage, listed, &new, &mut added, splices)?,
        }
    }
    splices.extend(added.splice());
    Ok(())
}

/// True if the hook's program has one of these names.
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
    let Ok(Json::Object(members)) = serde_json::from_str(item.get()) else {
        return false;
    };
    let get = |key: &str| members.iter().find(|(name, _)| name == key).map(|m| &m.1);
    let list = |key: &str, own: &[String]| match get(key) {
        Some(Json::Array(items)) => {
            items.iter().map(Json::text).eq(own.iter().map(|t| Some(t.as_str())))
        }
        _ => own.is_empty(),
    };
    let timeout = match get("timeout") {
        Some(Json::Number(seconds)) => Some(*seconds),
        _ => None,
    };
    get("path").and_then(Json::text) == Some(&hook.path)
        && list("args", &hook.args)
        && matches!(get("env"), Some(Json::Array(_)))
        && list("env", &hook.env)
        && timeout == hook.timeout.map(f64::from)
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

/// A hook that runs this program. Errors: the program's path can't be found.
pub fn own_hook(stage: &str, args: Vec<String>) -> Result<Hook> {
    let path = std::env::current_exe()
        .ok()
        .and_then(|path| path.into_os_string().into_string().ok())
        .ok_or_else(|| Error::failed("can't find this program's own path"))?;
    Ok(Hook {
        stage: stage.to_owned(),
        path,
        args,
        // Without an environment, a runtime may pass the container's on.
        env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        timeout: None,
    })
}

/// Adds the devices, rules and interfaces of the edits.
pub(super) fn edit_linux<'a>(
    spec: &Spec<'a>,
    edits: &Settled,
    top: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let rest = &edits.rest;
    let nothing =
        edits.allowed().next().is_none() && rest.intel_rdt.is_none() && rest.net_devices.is_empty();
    if nothing {
        return Ok(());
    }
    let nodes = nodes(spec, &edits.devices)?;
    if let Some(linux) = present(spec.members.get("linux")) {
        return edit_linux_object(linux.get(), &nodes, edits, splices);
    }
    let mut inner = Vec::new();
    edit_linux_object("{}", &nodes, edits, &mut inner)?;
    if !inner.is_empty() {
        top.set("linux", &apply_splices("{}", inner));
    }
    Ok(())
}

fn edit_linux_object<'a>(
    linux: &'a str,
    nodes: &[String],
    edits: &Settled,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let members = object("linux", linux)?;
    let mut inner = Additions::new(linux, &members);
    let listed = members.get("devices");
    extend("devices", listed, nodes, &mut inner, splices)?;
    add_rules(&members, edits, &mut inner, splices)?;
    let rest = &edits.rest;
    // The container's own value stays.
    if let (Some(rdt), None) = (&rest.intel_rdt, present(members.get("intelRdt"))) {
        inner.set("intelRdt", rdt);
    }
    if !rest.net_devices.is_empty() {
        add_net_devices(&members, edits, &mut inner, splices)?;
    }
    splices.extend(inner.splice());
    Ok(())
}

fn add_rules<'a>(
    linux: &RawObject<'a>,
    edits: &Settled,
    inner: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let resources = present(linux.get("resources"));
    let Some(resources) = resources else {
        let rules = new_rules(None, edits)?;
        if !rules.is_empty() {
            let value = format!("{{\"devices\":[{}]}}", rules.join(","));
            inner.set("resources", &value);
        }
        return Ok(());
    };
    let members = object("linux.resources", resources.get())?;
    let rules = new_rules(Some(&members), edits)?;
    let mut added = Additions::new(resources.get(), &members);
    let listed = members.get("devices");
    extend("devices", listed, &rules, &mut added, splices)?;
    splices.extend(added.splice());
    Ok(())
}

/// The rules to add. An earlier start may have added rules for nodes that we do not make.
fn new_rules(resources: Option<&RawObject>, edits: &Settled) -> Result<Vec<String>> {
    let needed = edits.allowed().filter(|device| device.needs_rule());
    let mut rules: Vec<String> = needed.map(rule_json).collect();
    rules.dedup();
    if rules.len() > edits.devices.len() {
        let listed = resources.and_then(|members| members.get("devices"));
        let listed = items("linux.resources.devices", listed)?;
        let listed: BTreeSet<&str> = listed.iter().map(|item| item.get()).collect();
        rules.retain(|rule| !listed.contains(rule.as_str()));
    }
    Ok(rules)
}

/// Interfaces that the container's own configuration moves stay as they are there.
fn add_net_devices<'a>(
    linux: &RawObject<'a>,
    edits: &Settled,
    inner: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    let listed = present(linux.get("netDevices"));
    let text = listed.map_or("{}", |listed| listed.get());
    let members = object("linux.netDevices", text)?;
    let mut added = Additions::new(text, &members);
    for device in &edits.rest.net_devices {
        if members.get(&device.host).is_none() {
            let value = format!("{{\"name\":{}}}", quote(&device.name));
            added.set(&device.host, &value);
        }
    }
    if listed.is_some() {
        splices.extend(added.splice());
    } else {
        inner.set("netDevices", &apply_splices(text, added.splice().collect()));
    }
    Ok(())
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
    let rest = &edits.rest;
    if rest.environment.is_empty() && rest.unset.is_empty() && rest.groups.is_empty() {
        return Ok(());
    }
    let Some(process) = present(spec.members.get("process")) else {
        return Ok(());
    };
    let members = object("process", process.get())?;
    let mut inner = Additions::new(process.get(), &members);
    edit_environment(members.get("env"), rest, &mut inner, splices)?;
    add_groups(&members, rest, &mut inner, splices)?;
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
    let user = present(process.get("user"));
    let text = user.map_or("{\"uid\":0,\"gid\":0}", |user| user.get());
    let members = object("process.user", text)?;
    let listed = members.get("additionalGids");
    for item in items("process.user.additionalGids", listed)? {
        if let Ok(Json::Number(there)) = serde_json::from_str(item.get()) {
            wanted.retain(|group| (f64::from(*group) - there).abs() > 0.0);
        }
    }
    let new: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    let mut added = Additions::new(text, &members);
    if user.is_some() {
        extend("additionalGids", listed, &new, &mut added, splices)?;
        splices.extend(added.splice());
        return Ok(());
    }
    let mut own = Vec::new();
    extend("additionalGids", listed, &new, &mut added, &mut own)?;
    own.extend(added.splice());
    inner.set("user", &apply_splices(text, own));
    Ok(())
}
