//! NVIDIA's interface: what its variables, mounts and annotations ask for, as one [`Ask`].
//! The names and rules are those of its container toolkit, the mistakes are not.

mod asks;
mod capabilities;
pub mod csv;
mod devices;
mod imex;
pub mod legacy;
mod mode;
pub mod programs;
mod requirements;

use std::path::Path;

use crate::config::nvidia::Config;
use crate::decide::not_scheduled;
use crate::discover::host::Host;
use crate::edits::Edits;
use crate::error::{Error, Result};
use crate::frontends::cdi::params_edit;
use crate::oci::spec::{hooks_at, Wanted, HOOK_STAGES};
use crate::policy::{Policy, Who};
use crate::request::{Request, Source, Way};

pub use devices::Words;

use devices::Candidate;

/// Which devices.
pub const DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Which features.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Images from before these variables have this one only.
pub const CUDA_VERSION: &str = "CUDA_VERSION";
const REQUIRE_CUDA: &str = "NVIDIA_REQUIRE_CUDA";
/// Mounts below it ask for devices by their names.
const MOUNTS: &str = "/var/run/nvidia-container-devices";
/// Programs of hooks that do what a spec that is edited needs no more.
pub const HOOKS: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Which front end reads the request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A runtime, or a filter of specs.
    #[default]
    Runtime,
    /// A hook: the spec is what it is.
    Hook,
}

/// What the interface is read with.
#[derive(Debug, Clone, Copy)]
pub struct Nvidia<'a> {
    pub config: &'a Config,
    /// Why the configuration may be another than was meant.
    pub problem: Option<&'a Error>,
    pub reader: Reader,
    /// Annotations of CDI count: no engine has seen to them.
    pub reads_annotations: bool,
    /// Where the configuration is, unless that is the usual place.
    pub file: Option<&'a Path>,
}

impl<'a> Nvidia<'a> {
    /// What of a config is looked at.
    pub fn wanted(&self) -> Wanted<'a> {
        let prefixes: &[String] = if self.reads_annotations {
            &self.config.cdi_prefixes
        } else {
            &[]
        };
        Wanted {
            mounts_below: self.config.volume_mounts.then_some(MOUNTS),
            cdi_prefixes: prefixes,
        }
    }

    /// Adds to the request what it asks for by this interface.
    pub fn read(&self, request: &mut Request, config: &[u8], policy: &Policy, host: &HostOf) {
        if self.suspect(request, |_| true).is_none() {
            return;
        }
        request.suspect = self.suspect(request, |source| policy.who(source) != Who::None);
        if request.doubt.is_none() && request.suspect.is_some() {
            request.doubt = self.problem.cloned();
        }
        if request.doubt.is_some() {
            return;
        }
        let (counting, mut refused) = self.counting(request, policy, host);
        for (candidate, way) in counting {
            let ask = self.ask(request, candidate, way, policy, &mut refused);
            if ask.way == Way::Hook {
                let text = std::str::from_utf8(config).unwrap_or_default();
                request.hooks = hooks_at(text, &HOOK_STAGES[..1]);
            }
            request.asks.push(ask);
        }
        request.refused.extend(refused);
    }

    /// By what something may be asked for, however the request is read, in a source that
    /// may count.
    fn suspect(&self, request: &Request, may: impl Fn(Source) -> bool) -> Option<String> {
        let annotation = request.cdi.first().filter(|_| may(Source::Cdi));
        if let Some((key, _)) = annotation {
            return Some(key.clone().into_owned());
        }
        if self.config.volume_mounts && may(Source::Mounts) {
            let mut mounts = request.mounts.iter();
            if let Some(mount) = mounts.find(|m| m.destination.contains(MOUNTS)) {
                return Some(mount.destination.clone().into_owned());
            }
        }
        if !may(Source::Environment) && !request.is_scheduled {
            return None;
        }
        let asks = |name: &&str| {
            let mut values = request.environment.of(name);
            values.any(|value| Words::of([value]) != Words::Nothing)
        };
        let swarm = self.config.swarm_resources.iter().map(String::as_str);
        let asking = swarm.chain([DEVICES]).find(asks);
        let is_legacy = || {
            request.environment.get(DEVICES).is_none()
                && requirements::is_legacy(&request.environment)
        };
        // `NAME` without a value, which is an error where something is asked for.
        let bare = || {
            let entry = request.environment.bare_of(DEVICES);
            entry.then_some(DEVICES)
        };
        let asking = asking.or_else(bare);
        let asking = asking.or_else(|| is_legacy().then_some(CUDA_VERSION));
        asking.map(str::to_owned)
    }

    /// What asks and counts, with the way by which it is given; and why others don't. It is
    /// the first source. Beside a scheduler it is that one's list, and names of CDI that
    /// mean no device which a scheduler could give.
    fn counting(
        &self,
        request: &Request,
        policy: &Policy,
        host: &HostOf,
    ) -> (Vec<(Candidate, Way)>, Vec<String>) {
        let (mut counting, mut refused) = (Vec::new(), Vec::new());
        let is_scheduled = !request.reserved.is_empty();
        for mut candidate in devices::candidates(request, self.config) {
            if candidate.words == Words::Nothing {
                if is_scheduled {
                    continue;
                }
                break;
            }
            let way = self.way(&candidate, host);
            let names = candidate.names();
            if way == Way::Cdi || names.iter().any(|name| devices::is_qualified(name)) {
                candidate.require_cdi();
            }
            let judged = if is_scheduled && !is_apart(request, &candidate, way) {
                Err(not_scheduled(&candidate.by))
            } else {
                let mut sources = candidate.sources.iter();
                let by_policy = sources.try_for_each(|source| {
                    policy.judge_source(*source, request.privileged, &candidate.by)
                });
                by_policy.and_then(|()| self.judge(request, &candidate))
            };
            match judged {
                Ok(()) => counting.push((candidate, way)),
                Err(reason) => refused.push(reason),
            }
            if !is_scheduled && !counting.is_empty() {
                break;
            }
        }
        (counting, refused)
    }

    fn way(&self, candidate: &Candidate, host: &HostOf) -> Way {
        let is_tegra = || host.open().is_ok_and(|host| mode::is_tegra(&host));
        let way = mode::way(self.config.mode, self.reader, candidate.names(), is_tegra);
        // A hook has no scheduler's environment, and asks the container's mounts first.
        if way == Way::Hook && candidate.is_schedulers() {
            return Way::VendorFile;
        }
        way
    }

    /// NVIDIA's own rule about images that bring variables.
    fn judge(&self, request: &Request, candidate: &Candidate) -> std::result::Result<(), String> {
        let by_environment = candidate.sources.contains(&Source::Environment);
        if self.config.environment_when_unprivileged || request.privileged || !by_environment {
            return Ok(());
        }
        Err(format!(
            "{} of the container's environment does not count: the container is not privileged, and accept-nvidia-visible-devices-envvar-when-unprivileged is false",
            candidate.by
        ))
    }

    /// What a spec gets beside a vendor file's answer: programs of the driver must not make
    /// nodes in a container that was given its own. A hook sees to that itself; a runtime, before
    /// whom there is no container yet, needs a hook, and has one only where the driver's
    /// settings on the host call for it.
    pub fn beside(&self, host: &Host) -> Result<Edits> {
        let hook = match self.reader {
            Reader::Runtime if self.reads_annotations => params_edit(host)?,
            _ => None,
        };
        Ok(Edits {
            hooks: hook.into_iter().collect(),
            keeps_nodes: self.reader == Reader::Hook,
            ..Edits::default()
        })
    }
}

/// The host that a request may have to be looked up on.
#[derive(Debug, Clone, Copy)]
pub struct HostOf<'a>(pub &'a Path);

impl HostOf<'_> {
    fn open(&self) -> Result<Host> {
        Host::open(self.0)
    }
}

/// True for a request that counts beside a scheduler.
fn is_apart(request: &Request, candidate: &Candidate, way: Way) -> bool {
    let mut names = candidate.names().iter();
    let is_others = |name: &String| {
        let kind = name.split_once('=').map(|(kind, _)| kind);
        kind.is_some_and(|kind| !request.reserves(kind))
    };
    candidate.is_schedulers() || way == Way::Cdi && names.all(is_others)
}

#[cfg(test)]
mod tests;
