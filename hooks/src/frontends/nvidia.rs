//! NVIDIA's interface: what its variables, mounts and annotations ask for. The names and rules are
//! those of NVIDIA's container toolkit, without its mistakes.

pub mod csv;

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use crate::config::nvidia::{load, place, Compat, LoadedConfig, NvidiaConfig, RuntimeMode};
use crate::config::reader;
use crate::config::settings;
use crate::error::{Error, Result};
use crate::frontends::cdi::params_edit;
use crate::frontends::{runtime, FrontEndKind};
use crate::host::nodes::GATED;
use crate::host::Host;
use crate::log::brief;
use crate::model::edits::{clean, Edits};
use crate::model::policy::Policy;
use crate::model::request::{
    Backend, Channels, ContainerRequest, DeviceList, DeviceRequest, Environment, Extra, ExtraKind,
    Features, Interface, RequestSource, Requirement, MIG_RIGHTS,
};
use crate::spec::config::ScanScope;

/// Programs of hooks that an edited spec no longer needs.
pub const HOOKS: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// The configuration for NVIDIA's interface under this program's own names: by the vendor file.
pub static OWN: LazyLock<LoadedConfig> = LazyLock::new(|| {
    let config = NvidiaConfig { mode: RuntimeMode::JitCdi, ..NvidiaConfig::default() };
    LoadedConfig { config, ..LoadedConfig::default() }
});

/// NVIDIA's interface, for a kind of front end.
#[derive(Debug, Clone, Copy)]
pub struct Nvidia<'a> {
    /// A container that asks for devices is refused with the mistakes in it.
    pub loaded: &'a LoadedConfig,
    pub kind: FrontEndKind,
}

impl<'a> Nvidia<'a> {
    /// True for NVIDIA's runtime: its engine has not handled CDI annotations, so they count.
    fn is_runtime(&self) -> bool {
        self.kind == FrontEndKind::Runtime && self.loaded.path.is_some()
    }

    /// The parts of a config that are read for this interface.
    pub fn scan_scope(&self) -> ScanScope<'a> {
        let prefixes: &[String] =
            if self.is_runtime() { &self.loaded.config.cdi_prefixes } else { &[] };
        ScanScope {
            mounts_below: self.loaded.config.volume_mounts.then_some(MOUNTS),
            cdi_prefixes: prefixes,
        }
    }

    /// Adds what a container asks for through this interface to its request. The root is the
    /// host's, which is opened only if a request needs it.
    pub fn read(&self, request: &mut ContainerRequest, policy: &Policy, root: &Path) {
        if self.trigger(request, |_| true).is_none() {
            return;
        }
        request.possible_trigger = self.trigger(request, |source| policy.may_use(source));
        if request.ambiguity.is_none() && request.possible_trigger.is_some() {
            request.ambiguity.clone_from(&self.loaded.problem);
        }
        if request.ambiguity.is_none() {
            let is_tegra = LazyCell::new(|| Host::open(root).is_ok_and(|host| host.is_tegra()));
            request.device_requests.extend(self.requests(request, &|| *is_tegra));
        }
    }

    /// The variable, mount or annotation that may ask for something, in any reading of the request
    /// and in a source that may count.
    fn trigger(
        &self,
        request: &ContainerRequest,
        may: impl Fn(RequestSource) -> bool,
    ) -> Option<String> {
        let annotation = request.cdi.first();
        let annotation =
            annotation.filter(|_| may(RequestSource::Cdi) && may(RequestSource::Annotations));
        if let Some((key, _)) = annotation {
            return Some(key.clone().into_owned());
        }
        if self.loaded.config.volume_mounts && may(RequestSource::Mounts) {
            let mut mounts = request.mounts.iter();
            if let Some(mount) = mounts.find(|m| m.destination.contains(MOUNTS)) {
                return Some(mount.destination.clone().into_owned());
            }
        }
        if !may(RequestSource::Environment) && !request.is_scheduled {
            return None;
        }
        let asks = |name: &&str| {
            let mut values = request.environment.of(name);
            values.any(|value| DeviceList::of([value]) != DeviceList::Nothing)
        };
        let swarm = self.loaded.config.swarm_resources.iter().map(String::as_str);
        let asking = swarm.chain([DEVICES]).find(asks);
        let is_legacy =
            || request.environment.get(DEVICES).is_none() && is_legacy(&request.environment);
        // `NAME` without a `=`, which is an error for a container that asks.
        let bare = || {
            let entry = request.environment.bare_of(DEVICES);
            entry.then_some(DEVICES)
        };
        let asking = asking.or_else(bare);
        let asking = asking.or_else(|| is_legacy().then_some(CUDA_VERSION));
        asking.map(str::to_owned)
    }

    /// True where NVIDIA's hook gives the devices in NVIDIA's toolkit. It reads the capabilities, and checks what an image
    /// requires. The modes that make a specification give every feature, and check nothing.
    fn is_legacy(&self) -> bool {
        match self.loaded.config.mode {
            RuntimeMode::Legacy => true,
            RuntimeMode::Auto => self.kind == FrontEndKind::Hook,
            RuntimeMode::Csv | RuntimeMode::Cdi | RuntimeMode::JitCdi => false,
        }
    }

    /// True for a hook that NVIDIA's runtime leaves out in the modes that make a specification.
    fn is_disabled(&self, hook: &str) -> bool {
        let names = &self.loaded.config.disabled_hooks;
        self.kind == FrontEndKind::Runtime
            && matches!(self.loaded.config.mode, RuntimeMode::Auto | RuntimeMode::JitCdi)
            && names.iter().any(|name| name == "all" || name == hook)
    }

    /// What a spec gets in addition to the vendor file's devices. Programs of the driver must not make
    /// nodes in a container that was given its nodes. Our hook prevents that itself. The runtime
    /// starts before the container exists, so it adds a hook, but only if the driver's settings on
    /// the host require it.
    pub fn spec_edits(&self, host: &Host) -> Result<Edits> {
        let is_wanted = self.is_runtime() && !self.is_disabled("disable-device-node-modification");
        let hook = if is_wanted { params_edit(host)? } else { None };
        Ok(Edits {
            hooks: hook.into_iter().collect(),
            keeps_nodes: self.kind == FrontEndKind::Hook,
            ..Edits::default()
        })
    }

    /// The requests of a container. An earlier one overrides the later ones.
    pub(super) fn requests(
        &self,
        container: &ContainerRequest,
        is_tegra: &dyn Fn() -> bool,
    ) -> Vec<DeviceRequest> {
        let mut found: Vec<DeviceRequest> = Vec::new();
        let mut add = |sources: &[RequestSource], by: String, devices| {
            found.push(DeviceRequest {
                interface: Some(Interface::Nvidia),
                sources: sources.to_vec(),
                by,
                devices,
                needs_privilege: !self.loaded.config.environment_when_unprivileged,
                ..DeviceRequest::default()
            });
        };
        if let Some((key, _)) = container.cdi.first() {
            let names = container.cdi.iter().flat_map(|(_, names)| names.split(','));
            let sources = [RequestSource::Cdi, RequestSource::Annotations];
            add(&sources, key.clone().into_owned(), DeviceList::of_names(names));
        }
        if self.loaded.config.volume_mounts {
            let names = by_mounts(container);
            if let Some(first) = names.first() {
                let by = format!("the mount {MOUNTS}/{}", brief(first));
                let list = DeviceList::of(names.iter().map(String::as_str));
                add(&[RequestSource::Mounts], by, list);
            }
        }
        if let Some((by, list)) = self.by_environment(container) {
            add(&[RequestSource::Environment], by, list);
        }
        if container.is_scheduled {
            let list = DeviceList::of([container.environment.get(DEVICES).unwrap_or_default()]);
            add(&[RequestSource::Scheduler], format!("{CUDA} of the scheduler"), list);
        }
        for request in &mut found {
            self.complete(request, container, is_tegra);
        }
        found
    }

    fn by_environment(&self, container: &ContainerRequest) -> Option<(String, DeviceList)> {
        let environment = &container.environment;
        let mut swarm = self.loaded.config.swarm_resources.iter();
        let swarm: Vec<_> =
            swarm.by_ref().filter_map(|name| Some((name, environment.get(name)?))).collect();
        if let Some((first, _)) = swarm.first() {
            let list = DeviceList::of(swarm.iter().map(|(_, value)| *value));
            return Some(((*first).clone(), list));
        }
        if container.is_scheduled {
            return None;
        }
        if environment.bare_of(DEVICES) {
            // This is refused later.
            return Some((DEVICES.to_owned(), DeviceList::These(Vec::new())));
        }
        match environment.get(DEVICES) {
            Some(value) => Some((DEVICES.to_owned(), DeviceList::of([value]))),
            None => is_legacy(environment).then(|| (CUDA_VERSION.to_owned(), DeviceList::All)),
        }
    }

    /// Adds what the devices are looked up in, and what else the container says about them.
    fn complete(
        &self,
        request: &mut DeviceRequest,
        container: &ContainerRequest,
        is_tegra: &dyn Fn() -> bool,
    ) {
        let list = std::mem::take(&mut request.devices);
        let names = list.names();
        let by_annotation = request.sources.first() == Some(&RequestSource::Cdi);
        let backend = self.backend(self.loaded.config.mode, names, is_tegra);
        request.backend = backend;
        let is_cdi = |name: &String| is_qualified(name) && !is_automatic(name);
        let needs_cdi = backend == Backend::Cdi || names.iter().any(is_cdi);
        if needs_cdi && !request.is_schedulers() && !request.sources.contains(&RequestSource::Cdi) {
            request.sources.push(RequestSource::Cdi);
        }
        let is_unreserved = |name: &String| {
            let kind = name.split_once('=').map(|(kind, _)| kind);
            kind.is_some_and(|kind| !container.reserves(kind))
        };
        let is_unreserved = backend == Backend::Cdi && names.iter().all(is_unreserved);
        request.is_beside_scheduler = request.is_schedulers() || is_unreserved;
        if backend != Backend::Cdi {
            request.problem = self.add_details(container, request).err();
        }
        if let Some(name) =
            names.iter().find(|name| by_annotation && reader::qualified(name).is_none())
        {
            request.problem = Some(no_name(&request.by, name));
        }
        if backend == Backend::Cdi && names.iter().any(|name| is_automatic(name)) {
            request.problem = Some(mixed(&request.by));
        }
        request.devices = self.looked_up(list, backend);
        let mut given = request.devices.names().iter();
        let by_cdi = given.find(|name| self.kind == FrontEndKind::Hook && is_qualified(name));
        if let (Some(name), None) = (by_cdi, &request.problem) {
            request.problem = Some(names_of_cdi(&request.by, name));
        }
    }

    /// What a mode looks these names up in. A hook acts in every mode, because with `docker run
    /// --gpus` no other program gives the devices.
    fn backend(&self, mode: RuntimeMode, names: &[String], is_tegra: &dyn Fn() -> bool) -> Backend {
        let all = |is: fn(&str) -> bool| !names.is_empty() && names.iter().all(|name| is(name));
        let automatic = all(is_automatic);
        let by_name = all(is_qualified) && !automatic;
        match (mode, self.kind) {
            (RuntimeMode::Cdi, FrontEndKind::Runtime) if automatic => {
                self.backend(RuntimeMode::Auto, names, is_tegra)
            }
            (RuntimeMode::Csv, _) => Backend::Csv,
            (RuntimeMode::Cdi, FrontEndKind::Runtime) => Backend::Cdi,
            (RuntimeMode::Auto, FrontEndKind::Runtime) if by_name => Backend::Cdi,
            (RuntimeMode::Auto, _) if is_tegra() => Backend::Csv,
            _ => Backend::VendorFile,
        }
    }

    /// The devices by the names that the backend needs.
    fn looked_up(&self, list: DeviceList, backend: Backend) -> DeviceList {
        let kind = &self.loaded.config.cdi_kind;
        let is_cdi = backend == Backend::Cdi;
        let names = match list {
            DeviceList::All if is_cdi => return DeviceList::These(vec![qualified("all", kind)]),
            DeviceList::These(names) => names,
            other => return other,
        };
        let name = |name: &String| match backend {
            Backend::Cdi => qualified(name, kind),
            _ => bare(name, kind).to_owned(),
        };
        let mut names: Vec<String> = names.iter().map(name).collect();
        names.dedup();
        let is_special = |name: &&String| !is_cdi && matches!(name.as_str(), "all" | "none");
        match names.iter().find(is_special).map(String::as_str) {
            Some("all") => DeviceList::All,
            Some(_) => DeviceList::None,
            None => DeviceList::These(names),
        }
    }

    /// Adds what the container's variables say about the devices.
    fn add_details(&self, container: &ContainerRequest, request: &mut DeviceRequest) -> Result<()> {
        let environment = &container.environment;
        if let Some(entry) = environment.bare() {
            return Err(bare_entry(entry));
        }
        request.features = if self.is_legacy() {
            capabilities(environment, &self.loaded.config.capabilities)?
        } else {
            Features::All
        };
        let is_checked = self.is_legacy() || request.backend == Backend::Csv;
        if is_checked && !self.loaded.config.disable_require {
            request.requirements = requirements(environment)?;
        }
        request.extras = extras(container, &self.loaded.config);
        request.groups = !self.loaded.config.no_groups;
        request.compat = self.loaded.config.compat == Compat::LibraryCache
            && !self.is_disabled("enable-cuda-compat");
        request.every_list = wants_every_list(environment);
        Ok(())
    }
}

// NVIDIA's runtime and hook: this program under their names.
//
// NVIDIA's `config.toml` sets the mode, the low-level runtimes and the log. Everything else comes
// from the settings of this program.

/// The names of NVIDIA's runtime, and the mode that each selects.
pub const NAMES: [(&str, Option<RuntimeMode>); 3] = [
    ("nvidia-container-runtime", None),
    ("nvidia-container-runtime.cdi", Some(RuntimeMode::Cdi)),
    ("nvidia-container-runtime.legacy", Some(RuntimeMode::Legacy)),
];

const VERSION: &str = concat!(
    "NVIDIA Container Runtime version 1.20.2\ncommit: oci-decorator-",
    env!("CARGO_PKG_VERSION"),
    "\nspec: 1.3.0\n\n"
);

/// The configuration of the runtime with this name.
pub fn named(name: &str, mut loaded: LoadedConfig) -> LoadedConfig {
    let known = NAMES.into_iter().find(|(known, _)| *known == name);
    let selected = known.and_then(|(_, mode)| mode);
    loaded.config.mode = selected.unwrap_or(loaded.config.mode);
    loaded
}

pub fn is_name(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == name)
}

/// Runs the command line of a runtime with this name. Returns only if that fails.
pub fn run_runtime(words: &[OsString], name: &str) -> u8 {
    let loaded = named(name, load(place(None, true)));
    if words.first().is_some_and(|word| word == "--version" || word == "-v") {
        // The low-level runtime adds its own.
        let _ = std::io::stdout().write_all(VERSION.as_bytes());
    }
    runtime::run(words, Some(&loaded))
}

/// Looks whether one of our runtimes, by the name of its program, would find its low-level runtime
/// with this `PATH`. Errors: it would start no container.
pub fn look_for_low_level(program: &str, path: OsString) -> Result<()> {
    let place_of_own = settings::named_by_environment();
    let own = settings::load(place_of_own.as_deref());
    let loaded = is_name(program).then(|| load(place(None, true)));
    runtime::low_level(&own, place_of_own.as_deref(), loaded.as_ref(), path).map(drop)
}

fn bare_entry(entry: &str) -> Error {
    Error::usage(format!(
        "the container asks for devices, and its environment has {:?}, which is not NAME=VALUE",
        brief(entry)
    ))
    .resolve("write a \"=\" behind the name, or leave the entry out")
}

fn no_name(by: &str, name: &str) -> Error {
    Error::usage(format!(
        "the annotation {by} has {:?}, which is not the name of a CDI device",
        brief(name)
    ))
    .resolve("write names like vendor.com/class=device, with commas between them")
}

fn mixed(by: &str) -> Error {
    let automatic = AUTOMATIC;
    Error::usage(format!(
        "{by} asks for devices of {automatic}, which no specification has, and for others of CDI"
    ))
    .resolve("name devices of one kind only: NVIDIA_VISIBLE_DEVICES=0,1")
}

fn names_of_cdi(by: &str, name: &str) -> Error {
    Error::usage(format!(
        "{by} asks for the CDI device {:?}, which a hook can't give: its specification may change the container's spec",
        brief(name)
    ))
    .resolve("start the container with `--runtime=nvidia`, or with `--device` of an engine that knows CDI")
}

/// The names of devices below the folder, without those of channels.
pub fn by_mounts(request: &ContainerRequest) -> Vec<String> {
    let names = below(request).into_iter();
    names
        .filter(|name| !name.starts_with("imex/"))
        .map(|name| match name.strip_prefix("cdi/") {
            // A CDI name as a path: vendor, class and device.
            Some(rest) if !rest.contains('=') => match rest.rsplit_once('/') {
                Some((kind, device)) => format!("{kind}={device}"),
                None => rest.to_owned(),
            },
            Some(rest) => rest.to_owned(),
            None => name,
        })
        .collect()
}

/// Paths below the folder on which `/dev/null` is mounted.
pub fn below(request: &ContainerRequest) -> Vec<String> {
    let empty = |source: &str| clean(source) == "/dev/null";
    let mounts = request.mounts.iter().filter(|mount| empty(&mount.source));
    mounts
        .filter_map(|mount| {
            let path = clean(&mount.destination);
            let name = path.strip_prefix(MOUNTS)?.strip_prefix('/')?;
            Some(name.to_owned())
        })
        .collect()
}

pub fn is_qualified(name: &str) -> bool {
    let parts = name.split_once('=').and_then(|(kind, device)| {
        let (vendor, class) = kind.split_once('/')?;
        Some([vendor, class, device])
    });
    parts.is_some_and(|parts| parts.iter().all(|part| !part.is_empty()))
}

/// The name with a kind. A name without one gets the default kind.
pub fn qualified(name: &str, kind: &str) -> String {
    if is_qualified(name) {
        name.to_owned()
    } else {
        format!("{kind}={name}")
    }
}

/// The kind of devices that NVIDIA's runtime describes when a container starts.
pub const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

/// True for the name of a device that needs no specification: the vendor file answers.
pub fn is_automatic(name: &str) -> bool {
    is_qualified(name) && bare(name, AUTOMATIC) != name
}

/// The name without the default kind, and without the automatic one.
pub fn bare<'n>(name: &'n str, kind: &str) -> &'n str {
    let rest = |kind| name.strip_prefix(kind)?.strip_prefix('=');
    let rest = rest(kind).or_else(|| rest(AUTOMATIC));
    rest.filter(|rest| !rest.is_empty()).unwrap_or(name)
}

// Requests for more than GPUs: IMEX channels between hosts, rights over MIG partitions, and nodes of
// other drivers.

/// The requests of a container; channels by mounts come before those by the variable.
pub fn extras(container: &ContainerRequest, config: &NvidiaConfig) -> Vec<Extra> {
    let mut found = Vec::new();
    let environment = &container.environment;
    let mut add = |source, by: String, kind| found.push(Extra { source, by, kind });
    if !config.ignore_imex {
        let mounts = if config.volume_mounts { below(container) } else { Vec::new() };
        let mounts = mounts.iter().filter_map(|name| name.strip_prefix("imex/"));
        let mounts: Vec<&str> = mounts.filter(|word| !word.is_empty()).collect();
        if let Some(first) = mounts.first() {
            let by = format!("the mount {MOUNTS}/imex/{}", brief(first));
            let channels = channels(&mounts, &by);
            add(RequestSource::Mounts, by, ExtraKind::Channels(channels));
        }
        let words = environment.get(IMEX_CHANNELS).unwrap_or_default().split(',').map(str::trim);
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        if !words.is_empty() {
            let channels = channels(&words, IMEX_CHANNELS);
            add(
                RequestSource::Environment,
                IMEX_CHANNELS.to_owned(),
                ExtraKind::Channels(channels),
            );
        }
    }
    for (variable, right) in MIG_RIGHTS {
        let value = environment.get(variable).unwrap_or_default();
        if !value.trim().is_empty() {
            let kind = ExtraKind::MigRight(right, value.to_owned());
            add(RequestSource::Environment, variable.to_owned(), kind);
        }
    }
    for variable in GATED.iter().filter_map(|it| it.variable) {
        if environment.get(variable) == Some("enabled") {
            add(RequestSource::Environment, variable.to_owned(), ExtraKind::Gated);
        }
    }
    found
}

fn channels(words: &[&str], by: &str) -> Result<Channels> {
    if words == ["all"] {
        return Ok(Channels::All);
    }
    let mut known = BTreeSet::new();
    let mut numbers = Vec::new();
    for word in words {
        let digits = word.strip_prefix("channel").unwrap_or(word);
        let is_number = digits.bytes().all(|b| b.is_ascii_digit());
        let number: Option<u32> = is_number.then(|| digits.parse().ok()).flatten();
        let number = number.ok_or_else(|| {
            Error::usage(format!(
                "{by} asks for the IMEX channel {:?}, which is not a number",
                brief(word)
            ))
            .resolve("name channels by their numbers, like 0,1, or \"all\"")
        })?;
        if known.insert(number) {
            numbers.push(number);
        }
    }
    Ok(Channels::These(numbers))
}

/// The variable for devices.
pub const DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The variable for features.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Images that are older than these variables have only this one.
pub const CUDA_VERSION: &str = "CUDA_VERSION";
pub const IMEX_CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";
/// The variable with which Slurm and others give NVIDIA's devices to a job.
pub const CUDA: &str = "CUDA_VISIBLE_DEVICES";
/// Mounts below this folder request the devices that they are named after.
pub const MOUNTS: &str = "/var/run/nvidia-container-devices";

/// The capabilities of images that name none.
const DEFAULT: [&str; 2] = ["compute", "utility"];
const REQUIRE: &str = "NVIDIA_REQUIRE_";
const REQUIRE_CUDA: &str = "NVIDIA_REQUIRE_CUDA";
/// Not a requirement: it selects the file lists of a board.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";
const EVERY_LIST: &str = "csv-mounts=all";
const DISABLE: &str = "NVIDIA_DISABLE_REQUIRE";
/// The values that Go's `strconv.ParseBool` takes for true.
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];

/// True for an image that is older than the variable for devices.
pub fn is_legacy(environment: &Environment) -> bool {
    environment.get(CUDA_VERSION).is_some_and(|version| !version.is_empty())
        && environment.get(REQUIRE_CUDA).unwrap_or_default().is_empty()
}

/// True if an image asks for every file list of a board.
pub fn wants_every_list(environment: &Environment) -> bool {
    environment.get(JETPACK) == Some(EVERY_LIST)
}

/// The features of the capabilities. A legacy image expects every supported one.
/// Errors: a capability that the configuration does not support.
pub fn capabilities(environment: &Environment, supported: &[String]) -> Result<Features> {
    let contains = |list: &[String], word: &str| list.iter().any(|known| known == word);
    let value = environment.get(CAPABILITIES).unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if !contains(&found, word) {
            found.push(word.to_owned());
        }
    }
    let is_all = contains(&found, "all") || found.is_empty() && is_legacy(environment);
    let (words, by_name) = if is_all {
        (supported.to_vec(), false)
    } else if found.is_empty() {
        let defaults = DEFAULT.into_iter().filter(|word| contains(supported, word));
        (defaults.map(str::to_owned).collect(), false)
    } else if let Some(unknown) = found.iter().find(|word| !contains(supported, word)) {
        return Err(unsupported(value, unknown, supported));
    } else {
        (found, true)
    };
    Ok(Features::These { words, by_name })
}

fn unsupported(value: &str, unknown: &str, supported: &[String]) -> Error {
    Error::usage(format!(
        "{CAPABILITIES}={} asks for {:?}, which is not supported",
        brief(value),
        brief(unknown)
    ))
    .resolve(format!(
        "name some of {}, or \"all\"; `supported-driver-capabilities` of NVIDIA's config.toml limits them",
        supported.join(", ")
    ))
}

/// The requirements of an image, all of which must be met. Errors: `CUDA_VERSION` is not a version.
pub fn requirements(environment: &Environment) -> Result<Vec<Requirement>> {
    if environment.get(DISABLE).is_some_and(|word| TRUE.contains(&word)) {
        return Ok(Vec::new());
    }
    let variables = environment.variables().into_iter();
    let mut found: Vec<Requirement> = variables
        .filter(|(name, _)| name.starts_with(REQUIRE) && !name.starts_with(JETPACK))
        .map(|(name, value)| Requirement { by: name.to_owned(), text: value.to_owned() })
        .collect();
    if is_legacy(environment) {
        let value = environment.get(CUDA_VERSION).unwrap_or_default();
        let version = major_minor(value).ok_or_else(|| {
            Error::usage(format!("{CUDA_VERSION}={} of the image is not a version", brief(value)))
                .resolve("set NVIDIA_VISIBLE_DEVICES=void for an image that needs no GPU, or NVIDIA_DISABLE_REQUIRE=true")
        })?;
        found.push(Requirement {
            by: format!("{CUDA_VERSION}={value}"),
            text: format!("cuda>={version}"),
        });
    }
    Ok(found)
}

/// The first two numbers of a semantic version. Later numbers may be missing.
/// <https://semver.org/#spec-item-2>
fn major_minor(text: &str) -> Option<String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, _) = match text.find(['-', '+']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let is_number = |part: &&str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits && (part.len() == 1 || !part.starts_with('0'))
    };
    let parts: Vec<&str> = numbers.split('.').collect();
    // A hyphen or a plus may only follow three numbers.
    let is_whole = parts.len() == 3 || numbers.len() == text.len();
    if parts.len() > 3 || !parts.iter().all(is_number) || !is_whole {
        return None;
    }
    Some(format!("{}.{}", parts[0], parts.get(1).unwrap_or(&"0")))
}
