//! Ensures that only the scheduler gives GPUs. The device nodes decide, whatever flag or CDI kind a
//! container names and whatever hooks its spec has.

use crate::error::Result;
use crate::host::reserved::Reserved;
use crate::host::Host;
use crate::log::level::Level;
use crate::log::Note;
use crate::model::edits::Edits;
use crate::model::policy::{not_scheduled, refuse, Policy};
use crate::model::request::ContainerRequest;
use crate::model::vendor::VendorFile;

use super::nvidia::HOOKS;

/// The devices that only the host's scheduler gives.
#[derive(Debug)]
pub struct Scheduled<'a> {
    host: &'a Host,
    reserved: Reserved,
    policy: &'a Policy,
}

impl<'a> Scheduled<'a> {
    /// `None`: no scheduler counts.
    pub fn of(
        request: &ContainerRequest,
        host: &'a Host,
        files: &[VendorFile],
        policy: &'a Policy,
    ) -> Option<Self> {
        let vendors = files.iter().filter_map(|file| file.content.as_ref().ok());
        request.has_scheduler().then(|| Self {
            host,
            reserved: Reserved::of(host, vendors),
            policy,
        })
    }

    /// Removes the nodes that only the scheduler gives, and returns their paths. `by` asks for
    /// them. Errors: the policy refuses the start.
    pub fn limit(&self, by: &str, edits: &mut Edits, notes: &mut Vec<Note>) -> Result<Vec<String>> {
        let gpus = edits.devices.iter().filter(|it| self.reserved.has(it));
        let mut paths: Vec<String> = gpus.map(|device| device.path.clone()).collect();
        let binds = edits.described.iter();
        let binds = binds.filter(|mount| self.reserved.is_in(self.host, &mount.source));
        paths.extend(binds.map(|mount| mount.target.clone()));
        if let Some(first) = paths.first() {
            let reason = format!("{}: {first} is a GPU's", not_scheduled(by));
            notes.push(refuse(self.policy, None, reason)?);
            edits.devices.retain(|device| !paths.contains(&device.path));
            edits.described.retain(|mount| !paths.contains(&mount.target));
        }
        Ok(paths)
    }
}

/// True if a scheduler counts and the spec has a hook that would give devices.
pub fn has_hook(request: &ContainerRequest) -> bool {
    request.has_scheduler() && hooks(request).next().is_some()
}

fn hooks<'r>(request: &'r ContainerRequest) -> impl Iterator<Item = &'r String> {
    let name = |path: &&String| path.rsplit('/').next().unwrap_or_default().to_owned();
    let hooks = request.hooks.iter();
    hooks.filter(move |path| HOOKS.contains(&name(path).as_str()))
}

/// Removes NVIDIA's hooks, which know nothing about the scheduler.
pub fn without_hooks(request: &ContainerRequest, notes: &mut Vec<Note>) -> Edits {
    let reason = |hook: &String| {
        let message = format!(
            "the hook {hook} of the container is left out: with \"scheduler\" in config.toml, only the host's scheduler gives these devices"
        );
        Note::new(Level::Notice, message)
    };
    notes.extend(hooks(request).map(reason));
    let is_replaced = has_hook(request);
    let replaced_hooks = is_replaced.then(|| HOOKS.map(str::to_owned).to_vec());
    Edits { replaced_hooks: replaced_hooks.unwrap_or_default(), ..Edits::default() }
}
