//! Other programs' interfaces that a front end answers, and what they give in other ways than by a
//! vendor file.

use std::path::Path;
use std::sync::LazyLock;

use crate::config::nvidia::{Config, Mode};
use crate::config::settings::{Scheduler, Settings};
use crate::error::Result;
use crate::host::related;
use crate::host::Host;
use crate::log::Note;
use crate::model::edits::Edits;
use crate::model::policy::Policy;
use crate::model::request::{Ask, Interface, Request, Source, Units, Way};
use crate::spec::config::{hooks_at, request_with, HOOK_STAGES};

use super::nvidia::{csv, legacy, HostOf, Nvidia, Reader, DEVICES, HOOKS};
use super::sarus::{self, Given};
use super::{amd, cdi};

/// The configuration for NVIDIA's interface under this program's own names: by the vendor file.
static OWN: LazyLock<Config> = LazyLock::new(|| Config {
    mode: Mode::JitCdi,
    ..Config::default()
});

/// The interfaces that are answered. By default there are none.
#[derive(Debug, Default)]
pub struct Foreign<'a> {
    pub nvidia: Option<Nvidia<'a>>,
    pub amd: bool,
    pub scheduler: Scheduler,
    /// The devices that the scheduler gave to this process.
    pub given: Given,
    pub reader: Reader,
}

impl<'a> Foreign<'a> {
    /// The interfaces of the settings.
    pub fn of_settings(settings: &Settings, reader: Reader) -> Self {
        let has = |interface| settings.interfaces.contains(&interface);
        let nvidia = has(Interface::Nvidia).then(|| Nvidia {
            config: &OWN,
            problem: None,
            reader,
            reads_annotations: false,
            file: None,
        });
        Self {
            nvidia,
            amd: has(Interface::Amd),
            reader,
            ..Self::default()
        }
        .with_scheduler(settings)
    }

    /// NVIDIA's interface under NVIDIA's names, and the interfaces of the settings.
    pub fn of_nvidia(settings: &Settings, nvidia: Nvidia<'a>) -> Self {
        Self {
            nvidia: Some(nvidia),
            reader: nvidia.reader,
            amd: settings.interfaces.contains(&Interface::Amd),
            ..Self::default()
        }
        .with_scheduler(settings)
    }

    fn with_scheduler(mut self, settings: &Settings) -> Self {
        self.scheduler = settings.scheduler;
        if self.scheduler != Scheduler::Ignored {
            self.given = Given::of_process();
        }
        self
    }

    /// What a config asks for, through flags of vendor files and through these interfaces.
    pub fn request<'b>(&self, config: &'b [u8], policy: &Policy, root: &Path) -> Request<'b> {
        let wanted = self.nvidia.map(|nvidia| nvidia.wanted());
        let mut request = request_with(config, &wanted.unwrap_or_default());
        if self.reserve(&mut request) && self.reader == Reader::Runtime {
            let text = std::str::from_utf8(config).unwrap_or_default();
            request.hooks = hooks_at(text, &HOOK_STAGES);
        }
        if let Some(nvidia) = &self.nvidia {
            let facts = || {
                let host = Host::open(root).ok()?;
                host.facts(Interface::Nvidia.word()).facts().cloned()
            };
            sarus::apply(&mut request, &self.given, self.scheduler, facts);
            nvidia.read(&mut request, config, policy, &HostOf(root));
        }
        if self.amd {
            amd::read(&mut request, &self.given, self.scheduler, policy);
        }
        request
    }

    /// Adds the vendors that only the scheduler gives to a request. False: no scheduler counts.
    pub fn reserve(&self, request: &mut Request) -> bool {
        let is_scheduled = self.scheduler != Scheduler::Ignored;
        if is_scheduled {
            request.reserved = self.reserved();
        }
        is_scheduled
    }

    /// The vendors whose devices only the scheduler gives, also if their interface is not answered.
    fn reserved(&self) -> Vec<String> {
        let known = Interface::WORDS.map(|(_, interface)| interface.domain());
        let kind = self.nvidia.map(|nvidia| nvidia.config.cdi_kind.as_str());
        let own = kind
            .and_then(|kind| kind.split_once('/'))
            .map(|kind| kind.0);
        let all = known.into_iter().chain(own);
        all.map(str::to_ascii_lowercase).collect()
    }

    /// What a request gets in addition to a vendor file's answer.
    pub fn given(&self, ask: &Ask, request: &Request, host: &Host) -> Result<(Edits, Vec<Note>)> {
        let Some(nvidia) = self.nvidia.filter(|_| ask.interface == Interface::Nvidia) else {
            return Ok((Edits::default(), Vec::new()));
        };
        let (mut edits, mut notes) = match ask.way {
            Way::VendorFile => (nvidia.beside(host)?, Vec::new()),
            Way::Csv => csv::edits(host, nvidia.config, ask)?,
            Way::Cdi => by_names(nvidia.config, ask, request, host)?,
            Way::Hook => {
                let get = |name: &str| std::env::var(name).ok();
                let hook = legacy::hook(&nvidia, &request.hooks, get)?;
                let edits = Edits {
                    hooks: hook.into_iter().collect(),
                    ..Edits::default()
                };
                return Ok((edits, Vec::new()));
            }
        };
        if let Ok(details) = &ask.details {
            let (related, more) = related::edits(host, details);
            edits.append(related);
            notes.extend(more);
        }
        // The hook that Docker adds for `--gpus` has nothing left to do.
        edits.replaced_hooks = HOOKS.map(str::to_owned).to_vec();
        Ok((edits, notes))
    }
}

/// The edits of CDI specifications for the names of a request. The variable tells a later hook that
/// it has nothing left to do.
fn by_names(
    config: &Config,
    ask: &Ask,
    request: &Request,
    host: &Host,
) -> Result<(Edits, Vec<Note>)> {
    ask.details.as_ref().map_err(Clone::clone)?;
    let Units::These(names) = &ask.units else {
        return Ok((Edits::default(), Vec::new()));
    };
    let (mut edits, notes) = cdi::edits(names, &config.cdi_folders, host)?;
    edits.environment.retain(|entry| !is_devices(entry));
    // Devices that the scheduler gives need their variable.
    if request.reserved.is_empty() || ask.source == Source::Scheduler {
        edits.environment.push(format!("{DEVICES}=void"));
    }
    Ok((edits, notes))
}

fn is_devices(entry: &str) -> bool {
    entry.split('=').next() == Some(DEVICES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_nothing_foreign_is_answered() {
        let foreign = Foreign::of_settings(&Settings::default(), Reader::Runtime);
        assert!(foreign.nvidia.is_none() && !foreign.amd);
        let config =
            br#"{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all","ROCR_VISIBLE_DEVICES=0"]}}"#;
        let request = foreign.request(config, &Policy::default(), Path::new("/"));
        assert_eq!((request.asks.len(), request.suspect), (0, None));
    }

    #[test]
    fn settings_name_what_is_answered() {
        let settings = Settings {
            interfaces: vec![Interface::Nvidia, Interface::Amd],
            ..Settings::default()
        };
        let foreign = Foreign::of_settings(&settings, Reader::Runtime);
        let config = br#"{"annotations":{"cdi.k8s.io/a":"v/c=d"},"process":{"env":
            ["NVIDIA_VISIBLE_DEVICES=0","ROCR_VISIBLE_DEVICES=1"]}}"#;
        let request = foreign.request(config, &Policy::default(), Path::new("/"));
        let asks: Vec<_> = request
            .asks
            .iter()
            .map(|ask| (ask.interface, ask.way))
            .collect();
        let expected = [Interface::Nvidia, Interface::Amd].map(|it| (it, Way::VendorFile));
        assert_eq!(asks, expected);
    }
}
