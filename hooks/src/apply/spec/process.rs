//! Edits the member `process` of a spec: its environment and its groups.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::value::RawValue;

use super::splice::{apply, extend, Additions, Splice};
use super::{invalid, items, object, present, text, Spec};
use crate::error::Result;
use crate::model::edits::{variable_name, Edits, Settled};
use crate::spec::json::{quote, Json, RawObject};

/// Applies the edits. A spec without a process stays as it is.
pub(super) fn edit<'a>(
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
    inner.set("user", &apply(text, own));
    Ok(())
}
