//! Edits the member `hooks` of a spec.

use serde_json::value::RawValue;

use super::splice::{apply, extend, Additions, Splice};
use super::{items, object, present, strings_json, text, Spec};
use crate::error::{Error, Result};
use crate::model::edits::{Hook, Link, Settled};
use crate::spec::config::HOOK_STAGES;
use crate::spec::json::{quote, Json};

/// At this stage new file systems are mounted, and the root is not entered yet.
const LATE_STAGE: &str = "createContainer";
/// The first words of a command line that makes links.
const LINKER: [&str; 2] = ["nvidia-cdi-hook", "create-symlinks"];

/// Removes and adds the hooks of the edits.
pub(super) fn edit<'a>(
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
        Some(listed) => edit_object(listed.get(), &hooks, &rest.replaced_hooks, splices),
        None if hooks.is_empty() => Ok(()),
        None => {
            let mut inner = Vec::new();
            edit_object("{}", &hooks, &[], &mut inner)?;
            top.set("hooks", &apply("{}", inner));
            Ok(())
        }
    }
}

fn edit_object<'a>(
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
