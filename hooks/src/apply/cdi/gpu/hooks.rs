//! The hooks of a specification, in the words that NVIDIA's has.

use super::Request;
use crate::apply::spec::hooks::own_hook;
use crate::discover::facts::Facts;
use crate::edits::{Edits, Hook};
use crate::error::Result;
use crate::rootfs::split;

/// Ours, in the words that NVIDIA's has.
pub(super) fn hooks(edits: &Edits, facts: Option<&Facts>, request: &Request) -> Result<Vec<Hook>> {
    let mut calls: Vec<Vec<String>> = Vec::new();
    if let Some(version) = facts.and_then(|facts| facts.driver_version.as_deref()) {
        let mut words = vec![
            "enable-cuda-compat".to_owned(),
            format!("--host-driver-version={version}"),
        ];
        if let Some(cuda) = facts.and_then(|facts| facts.cuda_version.as_deref()) {
            words.push(format!("--host-cuda-version={cuda}"));
        }
        calls.push(words);
    }
    let folders = edits
        .libraries
        .iter()
        .filter_map(|library| split(&library.path));
    let mut folders: Vec<&str> = folders
        .map(|(folder, _)| folder.trim_end_matches('/'))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    if !folders.is_empty() {
        let mut words = vec!["update-ldcache".to_owned()];
        for folder in folders {
            words.extend(["--folder".to_owned(), folder.to_owned()]);
        }
        calls.push(words);
    }
    calls.push(vec!["disable-device-node-modification".to_owned()]);
    let is_on = |words: &Vec<String>| {
        let is_disabled = |hook: &String| hook == "all" || *hook == words[0];
        request.enabled_hooks.contains(&words[0]) || !request.disabled_hooks.iter().any(is_disabled)
    };
    let hook = |words: Vec<String>| {
        let args = ["nvidia-cdi-hook".to_owned()]
            .into_iter()
            .chain(words)
            .collect();
        own_hook("createContainer", args)
    };
    calls.into_iter().filter(is_on).map(hook).collect()
}
