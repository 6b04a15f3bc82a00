//! NVIDIA's interface: what its variables, mounts and annotations ask for. The names and rules are
//! those of NVIDIA's container toolkit, without its mistakes.

pub mod csv;
mod requests;
pub mod vars;

use std::cell::LazyCell;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use crate::config::nvidia::{load, place, LoadedConfig, NvidiaConfig, RuntimeMode};
use crate::config::settings::{self, Settings};
use crate::error::Result;
use crate::frontends::cdi::params_edit;
use crate::frontends::nvidia::vars::{CUDA_VERSION, DEVICES, MOUNTS};
use crate::frontends::{runtime, FrontEndKind};
use crate::host::Host;
use crate::model::edits::Edits;
use crate::model::policy::Policy;
use crate::model::request::{ContainerRequest, DeviceList, Interface, RequestSource};
use crate::spec::config::ScanScope;

/// Programs of hooks that an edited spec no longer needs.
pub const HOOKS: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// The configuration for NVIDIA's interface under this program's own names: by the vendor file.
static OWN: LazyLock<LoadedConfig> = LazyLock::new(|| {
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
    /// The interface with NVIDIA's configuration, or under this program's own names. `None`: the
    /// settings do not list it.
    pub fn of(
        loaded: Option<&'a LoadedConfig>,
        settings: &Settings,
        kind: FrontEndKind,
    ) -> Option<Self> {
        let is_listed = settings.interfaces.contains(&Interface::Nvidia);
        let loaded = loaded.or_else(|| is_listed.then(|| &*OWN))?;
        Some(Self { loaded, kind })
    }

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
        if self.possible_trigger(request, |_| true).is_none() {
            return;
        }
        request.possible_trigger = self.possible_trigger(request, |source| policy.may_use(source));
        if request.ambiguity.is_none() && request.possible_trigger.is_some() {
            request.ambiguity.clone_from(&self.loaded.problem);
        }
        if request.ambiguity.is_none() {
            let is_tegra =
                LazyCell::new(|| Host::open(root).is_ok_and(|host| csv::is_tegra(&host)));
            request.device_requests.extend(self.requests(request, &|| *is_tegra));
        }
    }

    /// The variable, mount or annotation that may ask for something, in any reading of the request
    /// and in a source that may count.
    fn possible_trigger(
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
            || request.environment.get(DEVICES).is_none() && vars::is_legacy(&request.environment);
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

/// True for a name of NVIDIA's runtime.
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
