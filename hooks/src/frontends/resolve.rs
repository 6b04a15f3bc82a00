//! From a config to requests, and from an allowed request to edits.

use crate::config::nvidia::NvidiaConfig;
use crate::config::settings::Settings;
use crate::error::Result;
use crate::host::inventory::collect;
use crate::host::resolve::resolve;
use crate::host::{gated_devices, Host};
use crate::log::Note;
use crate::model::decide::ResolvedRequest;
use crate::model::edits::Edits;
use crate::model::request::{Backend, ContainerRequest, DeviceRequest, Interface};
use crate::spec::config::{ContainerConfig, HOOK_STAGES};

use super::nvidia::{csv, vars::DEVICES, Nvidia, HOOKS};
use super::{cdi, sarus, Context, FrontEndKind};

impl Context<'_> {
    /// What a config requests, through flags of vendor files and through other programs' interfaces.
    pub fn request<'b>(&self, config: &ContainerConfig<'b>) -> ContainerRequest<'b> {
        let scope = self.nvidia.map(|nvidia| nvidia.scan_scope());
        let mut request = config.request(&scope.unwrap_or_default());
        if self.loaded.settings.scheduler && self.kind == FrontEndKind::Runtime {
            request.hooks = config.hooks_at(&HOOK_STAGES);
        }
        self.with_device_requests(request)
    }

    /// The request with those through other programs' interfaces.
    pub fn with_device_requests<'b>(
        &self,
        mut request: ContainerRequest<'b>,
    ) -> ContainerRequest<'b> {
        let settings = &self.loaded.settings;
        request.reserved = reserved(settings, self.nvidia.as_ref());
        if let Some(nvidia) = &self.nvidia {
            if settings.scheduler {
                sarus::apply(&mut request, &self.scheduled);
            }
            nvidia.read(&mut request, self.policy, &settings.root);
        }
        if settings.interfaces.contains(&Interface::Amd) {
            sarus::read_amd(&mut request, &self.scheduled, settings.scheduler, self.policy);
        }
        request
    }

    /// Warnings about NVIDIA's configuration, which are logged if something is asked for.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &String> {
        self.nvidia.iter().flat_map(|nvidia| nvidia.warnings)
    }

    /// Looks up on the host what a request gives a container.
    pub(super) fn resolve(
        &self,
        allowed: &ResolvedRequest,
        container: &ContainerRequest,
        host: &Host,
    ) -> Result<(Edits, Vec<Note>)> {
        let request = &allowed.request;
        let (mut edits, mut notes) = match (&allowed.choice, self.nvidia) {
            (Some(choice), _) if request.interface.is_none() => collect(host, choice)?,
            (Some(choice), _) => resolve(host, request, choice)?,
            (None, Some(nvidia)) if request.backend == Backend::Csv => {
                csv::edits(host, nvidia.config, request)?
            }
            (None, Some(nvidia)) => by_names(nvidia.config, request, container, host)?,
            (None, None) => Default::default(),
        };
        let nvidia = self.nvidia.filter(|_| request.interface == Some(Interface::Nvidia));
        if let Some(nvidia) = nvidia {
            if request.backend == Backend::VendorFile {
                edits.append(nvidia.spec_edits(host)?);
            }
            let (gated, more) = gated_devices::edits(host, request);
            edits.append(gated);
            notes.extend(more);
            // The hook that Docker adds for `--gpus` has nothing left to do.
            edits.replaced_hooks = HOOKS.map(str::to_owned).to_vec();
        }
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
    config: &NvidiaConfig,
    request: &DeviceRequest,
    container: &ContainerRequest,
    host: &Host,
) -> Result<(Edits, Vec<Note>)> {
    let names = request.devices.names();
    let (mut edits, notes) = cdi::edits(names, &config.cdi_folders, host)?;
    edits.environment.retain(|entry| !is_devices(entry));
    // Devices that the scheduler gives need their variable.
    if !container.has_scheduler() || request.is_schedulers() {
        edits.environment.push(format!("{DEVICES}=void"));
    }
    Ok((edits, notes))
}

fn is_devices(entry: &str) -> bool {
    entry.split('=').next() == Some(DEVICES)
}
