//! Other programs' interfaces that a front end answers: what a config asks for through them, and
//! what they give in other ways than by a vendor file.

use crate::config::nvidia::Config;
use crate::config::settings::Settings;
use crate::error::Result;
use crate::host::related;
use crate::host::Host;
use crate::log::Note;
use crate::model::edits::Edits;
use crate::model::request::{Ask, Interface, Request, Source, Units, Way};
use crate::spec::config::{Config as Spec, HOOK_STAGES};

use super::nvidia::{csv, Nvidia, DEVICES, HOOKS};
use super::{amd, cdi, sarus, Context, FrontEndKind};

impl Context<'_> {
    /// What a config asks for, through flags of vendor files and through these interfaces.
    pub fn request<'b>(&self, config: &Spec<'b>) -> Request<'b> {
        let settings = &self.loaded.settings;
        let wanted = self.nvidia.map(|nvidia| nvidia.scan_scope());
        let mut request = config.request(&wanted.unwrap_or_default());
        request.reserved = reserved(settings, self.nvidia.as_ref());
        if request.has_scheduler() && self.kind == FrontEndKind::Runtime {
            request.hooks = config.hooks_at(&HOOK_STAGES);
        }
        if let Some(nvidia) = &self.nvidia {
            if settings.scheduler {
                sarus::apply(&mut request, &self.scheduled);
            }
            nvidia.read(&mut request, self.policy, &settings.root);
        }
        if settings.interfaces.contains(&Interface::Amd) {
            amd::read(&mut request, &self.scheduled, settings.scheduler, self.policy);
        }
        request
    }

    /// Warnings about NVIDIA's configuration, which are logged if something is asked for.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &String> {
        self.nvidia.iter().flat_map(|nvidia| nvidia.warnings)
    }

    /// What a request gets in addition to a vendor file's answer.
    pub(super) fn beside(
        &self,
        ask: &Ask,
        request: &Request,
        host: &Host,
    ) -> Result<(Edits, Vec<Note>)> {
        let Some(nvidia) = self.nvidia.filter(|_| ask.interface == Interface::Nvidia) else {
            return Ok((Edits::default(), Vec::new()));
        };
        let (mut edits, mut notes) = match ask.way {
            Way::VendorFile => (nvidia.beside(host)?, Vec::new()),
            Way::Csv => csv::edits(host, nvidia.config, ask)?,
            Way::Cdi => by_names(nvidia.config, ask, request, host)?,
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

/// The vendors whose devices only the scheduler gives, also if their interface is not answered.
/// Empty: no scheduler counts.
pub fn reserved(settings: &Settings, nvidia: Option<&Nvidia>) -> Vec<String> {
    if !settings.scheduler {
        return Vec::new();
    }
    let known = Interface::WORDS.map(|(_, interface)| interface.domain());
    let kind = nvidia.and_then(|nvidia| nvidia.config.cdi_kind.split_once('/'));
    let own = kind.map(|(vendor, _)| vendor);
    let all = known.into_iter().chain(own);
    all.map(str::to_ascii_lowercase).collect()
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
    if !request.has_scheduler() || ask.source == Source::Scheduler {
        edits.environment.push(format!("{DEVICES}=void"));
    }
    Ok((edits, notes))
}

fn is_devices(entry: &str) -> bool {
    entry.split('=').next() == Some(DEVICES)
}
