//! Makes requests for devices of what variables, mounts and annotations say.

use std::collections::BTreeSet;

use crate::config::nvidia::{Compat, NvidiaConfig, RuntimeMode};
use crate::error::{Error, Result};
use crate::frontends::cdi::is_name;
use crate::frontends::nvidia::vars::{self, CUDA_VERSION, DEVICES, IMEX_CHANNELS, MOUNTS};
use crate::frontends::nvidia::{FrontEndKind, Nvidia};
use crate::host::gated_devices::GATED;
use crate::log::brief;
use crate::model::edits::paths::clean;
use crate::model::request::{
    Backend, Channels, ContainerRequest, DeviceList, DeviceRequest, Extra, ExtraKind, Features,
    Interface, RequestSource, MIG_RIGHTS,
};

impl Nvidia<'_> {
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
            add(&[RequestSource::Scheduler], format!("{} of the scheduler", vars::CUDA), list);
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
            None => {
                vars::is_legacy(environment).then(|| (CUDA_VERSION.to_owned(), DeviceList::All))
            }
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
        if let Some(name) = names.iter().find(|name| by_annotation && !is_name(name)) {
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
            vars::capabilities(environment, &self.loaded.config.capabilities)?
        } else {
            Features::All
        };
        let is_checked = self.is_legacy() || request.backend == Backend::Csv;
        if is_checked && !self.loaded.config.disable_require {
            request.requirements = vars::requirements(environment)?;
        }
        request.extras = extras(container, &self.loaded.config);
        request.groups = !self.loaded.config.no_groups;
        request.compat = self.loaded.config.compat == Compat::LibraryCache
            && !self.is_disabled("enable-cuda-compat");
        request.every_list = vars::wants_every_list(environment);
        Ok(())
    }
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

/// True for `vendor/class=device`.
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
