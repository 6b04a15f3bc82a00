//! The steps that every front end takes before it applies edits: read the vendor files, pass the
//! request to the policy and the decision, look things up on the host, settle conflicts with the
//! container, and log.
//!
//! A container that asks for nothing starts, whatever is wrong with the settings, the vendor files
//! or its own config. A container that asks, or may ask, is refused with the reason.

pub mod cdi;
pub mod cdi_hook;
pub mod hook;
pub mod nvidia;
pub mod runtime;
pub mod scheduler;

use std::io::Read;
use std::path::Path;

use crate::apply::spec::Spec;
use crate::config::nvidia::{LoadedConfig, NvidiaConfig};
use crate::config::settings::{LoadedSettings, Settings};
use crate::config::vendor;
use crate::error::{Error, Result};
use crate::frontends::nvidia::{csv, Nvidia, DEVICES, HOOKS, OWN};
use crate::frontends::scheduler::{
    has_hook, read_amd, replace_request, without_hooks, Scheduled, SchedulerLists,
};
use crate::host::nodes::gated_edits;
use crate::host::resolve::resolve;
use crate::host::rootfs::{path_of, Rootfs};
use crate::host::{libraries, Host};
use crate::log::{Level, Log, Note};
use crate::model::decide::{decide, ResolvedRequest};
use crate::model::edits::{variable_name, Edits, Image, Present, Settled, Unseen};
use crate::model::policy::Policy;
use crate::model::request::{Backend, ContainerRequest, DeviceRequest, Interface};
use crate::model::vendor::VendorFile;
use crate::spec::config::{ContainerConfig, HOOK_STAGES};

/// What a front end works with: the settings, and what differs between the names of this program.
#[derive(Debug)]
pub struct Context<'a> {
    pub loaded: &'a LoadedSettings,
    pub log: &'a Log,
    pub kind: FrontEndKind,
    /// NVIDIA's interface. `None`: it is not answered.
    pub nvidia: Option<Nvidia<'a>>,
    /// The devices that the scheduler gave to this process.
    pub scheduled: SchedulerLists,
}

/// The kind of front end that reads a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEndKind {
    /// A runtime, or a filter of specs, which edit the spec.
    Runtime,
    /// A hook, which can't change the spec.
    Hook,
}

impl<'a> Context<'a> {
    /// Under NVIDIA's names, with their settings. Under this program's own, the interfaces are those of
    /// its settings.
    pub fn of(
        loaded: &'a LoadedSettings,
        log: &'a Log,
        kind: FrontEndKind,
        nvidia: Option<&'a LoadedConfig>,
    ) -> Self {
        let settings = &loaded.settings;
        let scheduled = settings.scheduler.then(SchedulerLists::of_process).unwrap_or_default();
        let is_listed = settings.interfaces.contains(&Interface::Nvidia);
        let nvidia = nvidia.or_else(|| is_listed.then(|| &*OWN));
        let nvidia = nvidia.map(|loaded| Nvidia { loaded, kind });
        Self { loaded, log, kind, nvidia, scheduled }
    }

    pub fn policy(&self) -> &'a Policy {
        &self.loaded.settings.policy
    }

    /// What a container with this request gets, logged. `None`: nothing applies.
    /// Errors: the start is refused.
    pub fn edits(&self, request: &ContainerRequest) -> Result<Option<Edits>> {
        let mut notes = Vec::new();
        let edits = self.decided(request, &mut notes);
        self.log.write_all(&notes);
        edits
    }

    /// The same, but the lines to log are added to the notes.
    pub fn decided(
        &self,
        request: &ContainerRequest,
        notes: &mut Vec<Note>,
    ) -> Result<Option<Edits>> {
        let files = self.vendor_files(request, notes)?;
        if let Some(problem) = self.loaded.problem.as_ref().or(request.ambiguity.as_ref()) {
            if let Some(flag) = self.policy().possible_trigger(&files, request) {
                return Err(in_doubt(flag, problem));
            }
            notes.push(Note::new(Level::Warning, problem.to_string()));
            return Ok(None);
        }
        let settings = &self.loaded.settings;
        let decided = decide(&files, request, self.policy(), &settings.config_dir, notes);
        // A host that can't be looked at may be a Jetson, which needs no vendor file.
        let allowed = decided.map_err(|error| Host::open(&settings.root).err().unwrap_or(error))?;
        let changes = !request.set.is_empty() || !request.unset.is_empty();
        let has_hook = request.has_scheduler() && has_hook(request);
        if allowed.is_empty() && !changes && !has_hook {
            return Ok(None);
        }
        let host = Host::open(&settings.root)?;
        let is_scheduled = request.has_scheduler();
        let scheduled = is_scheduled.then(|| Scheduled::of(&host, &files, self.policy()));
        self.collected(request, &host, &allowed, scheduled.as_ref(), notes).map(Some)
    }

    /// Looks everything up on the host.
    fn collected(
        &self,
        request: &ContainerRequest,
        host: &Host,
        allowed: &[ResolvedRequest],
        scheduled: Option<&Scheduled>,
        notes: &mut Vec<Note>,
    ) -> Result<Edits> {
        let warning = |text: &String| Note::new(Level::Warning, text.clone());
        notes.extend(self.warnings().map(warning));
        // Variables from interfaces come later and override these.
        let mut edits = Edits {
            environment: request.set.clone(),
            unset: request.unset.clone(),
            ..Edits::default()
        };
        if scheduled.is_some() {
            edits.append(without_hooks(request, notes));
        }
        for one in allowed {
            let (mut own, more) = self.edits_of(one, request, host)?;
            notes.extend(more);
            let is_limited = one.request.interface.is_none() || one.request.backend == Backend::Cdi;
            if let Some(scheduled) = scheduled.filter(|_| is_limited) {
                scheduled.limit(&one.request.by, &mut own, notes)?;
            }
            edits.append(own);
        }
        edits.sort();
        edits.validate()?;
        Ok(edits)
    }

    /// The flag that may request something, for a container whose config is not known for certain.
    pub fn flag_in_doubt(&self, request: &ContainerRequest) -> Result<Option<String>> {
        let mut notes = Vec::new();
        let files = self.vendor_files(request, &mut notes);
        self.log.write_all(&notes);
        Ok(self.policy().possible_trigger(&files?, request).map(str::to_owned))
    }

    /// Errors: the folder can't be read, and the container has an annotation that asks.
    fn vendor_files(
        &self,
        request: &ContainerRequest,
        notes: &mut Vec<Note>,
    ) -> Result<Vec<VendorFile>> {
        let mut files = read(&self.loaded.settings.config_dir, request, notes)?;
        for folder in &self.loaded.suspected {
            files.extend(read(folder, request, notes)?);
        }
        Ok(files)
    }

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
                replace_request(&mut request, &self.scheduled);
            }
            nvidia.read(&mut request, self.policy(), &settings.root);
        }
        if settings.interfaces.contains(&Interface::Amd) {
            read_amd(&mut request, &self.scheduled, settings.scheduler, self.policy());
        }
        request
    }

    /// Warnings about NVIDIA's configuration, which are logged if something is asked for.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &String> {
        self.nvidia.iter().flat_map(|nvidia| &nvidia.loaded.warnings)
    }

    /// Looks up on the host what a request gives a container.
    fn edits_of(
        &self,
        allowed: &ResolvedRequest,
        container: &ContainerRequest,
        host: &Host,
    ) -> Result<(Edits, Vec<Note>)> {
        let request = &allowed.request;
        let (mut edits, mut notes) = match (&allowed.choice, self.nvidia) {
            (Some(choice), _) => resolve(host, request, choice)?,
            (None, Some(nvidia)) if request.backend == Backend::Csv => {
                csv::edits(host, &nvidia.loaded.config, request)?
            }
            (None, Some(nvidia)) => by_names(&nvidia.loaded.config, request, container, host)?,
            (None, None) => Default::default(),
        };
        let nvidia = self.nvidia.filter(|_| request.interface == Some(Interface::Nvidia));
        if let Some(nvidia) = nvidia {
            if request.backend == Backend::VendorFile {
                edits.append(nvidia.spec_edits(host)?);
            }
            let (gated, more) = gated_edits(host, request);
            edits.append(gated);
            notes.extend(more);
            // The hook that Docker adds for `--gpus` has nothing left to do.
            edits.replaced_hooks = HOOKS.map(str::to_owned).to_vec();
        }
        Ok((edits, notes))
    }
}

fn read(
    folder: &Path,
    request: &ContainerRequest,
    notes: &mut Vec<Note>,
) -> Result<Vec<VendorFile>> {
    vendor::read(folder).or_else(|error| {
        if let Some(flag) = request.annotations.asking().next() {
            return Err(in_doubt(flag, &error));
        }
        // Without the files, it is not known which variables are flags.
        notes.push(Note::new(Level::Error, error.to_string()));
        Ok(Vec::new())
    })
}

/// Why a container that asks is refused, while another would start.
fn in_doubt(flag: &str, problem: &Error) -> Error {
    Error { message: format!("{flag} is set, but {}", problem.message), ..problem.clone() }
}

/// Reads standard input to its end. Errors: it is larger than `limit` bytes.
pub fn read_input(what: &str, limit: u64) -> Result<Vec<u8>> {
    let what = format!("{what} on standard input");
    read_all(Input, &what, limit)
}

/// Standard input without a buffer, which would cost time at each start.
struct Input;

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), buffer)?)
    }
}

/// Reads a file to its end. Errors: it can't be read, or is larger than `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let file = std::fs::File::open(path);
    let file = file.map_err(|e| Error::failed(format!("can't read {shown}: {e}")))?;
    read_all(file, &shown, limit)
}

fn read_all(source: impl Read, shown: &str, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = source.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::failed(format!("can't read {shown}: {e}")))?;
    if bytes.len() as u64 > limit {
        return Err(Error::failed(format!("{shown} is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The container's root of a spec in a bundle. `None`: the spec names none.
/// Errors: it can't be opened, or is the host's own.
pub fn rootfs(spec: &Spec, bundle: &Path) -> Result<Option<Rootfs>> {
    let path = spec.root_path()?;
    path.map(|path| Rootfs::open(&bundle.join(&*path))).transpose()
}

/// Settles the edits with what the container has already. `root` is the host's.
pub fn settle(
    mut edits: Edits,
    mut present: Present,
    rootfs: Option<&Rootfs>,
    root: &Path,
    log: &Log,
) -> Result<Settled> {
    libraries::find(&mut edits, || Host::open(root))?;
    let image = rootfs.map_or(&Unseen as &dyn Image, |rootfs| rootfs);
    if let Some(root) = rootfs.and_then(|rootfs| path_of(&rootfs.mounted)) {
        present.add_below(&root);
    }
    let (settled, notes) = edits.settle(&present, image);
    log.write_all(&notes);
    Ok(settled)
}

/// The vendors whose devices only the scheduler gives, also if their interface is not answered.
/// Empty: no scheduler counts.
pub fn reserved(settings: &Settings, nvidia: Option<&Nvidia>) -> Vec<String> {
    if !settings.scheduler {
        return Vec::new();
    }
    let known = Interface::WORDS.map(|(_, interface)| interface.domain());
    let kind = nvidia.and_then(|nvidia| nvidia.loaded.config.cdi_kind.split_once('/'));
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
    edits.environment.retain(|entry| variable_name(entry) != DEVICES);
    // Devices that the scheduler gives need their variable.
    if !container.has_scheduler() || request.is_schedulers() {
        edits.environment.push(format!("{DEVICES}=void"));
    }
    Ok((edits, notes))
}
