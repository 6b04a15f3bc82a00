//! Edits the member `linux` of a spec: device nodes, the rights to use them, network interfaces.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::process::user;
use super::splice::{apply, extend, Additions, Splice};
use super::{items, object, present, Spec};
use crate::error::Result;
use crate::model::edits::{Device, Settled};
use crate::spec::json::{quote, RawObject};

/// Adds the devices, rules and interfaces of the edits.
pub(super) fn edit<'a>(
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
        return edit_object(linux.get(), &nodes, edits, splices);
    }
    let mut inner = Vec::new();
    edit_object("{}", &nodes, edits, &mut inner)?;
    if !inner.is_empty() {
        top.set("linux", &apply("{}", inner));
    }
    Ok(())
}

fn edit_object<'a>(
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
        inner.set("netDevices", &apply(text, added.splice().collect()));
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
