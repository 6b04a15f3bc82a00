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

use crate::config::nvidia::{
    load, place, ConfigPath, LoadedConfig, NvidiaConfig, RuntimeMode, DEFAULT_PATH,
};
use crate::config::settings::{self, Settings};
use crate::error::{Error, Result};
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
static OWN: LazyLock<NvidiaConfig> =
    LazyLock::new(|| NvidiaConfig { mode: RuntimeMode::JitCdi, ..NvidiaConfig::default() });

/// The parameters of NVIDIA's interface.
#[derive(Debug, Clone, Copy)]
pub struct Nvidia<'a> {
    pub config: &'a NvidiaConfig,
    /// Why the configuration may not be the intended one: every mistake in it. A container that
    /// asks for devices is refused with them.
    pub problem: Option<&'a Error>,
    pub warnings: &'a [String],
    pub kind: FrontEndKind,
    /// CDI annotations count, because no engine has handled them.
    pub reads_annotations: bool,
    /// The path of the configuration, unless it is the default.
    pub file: Option<&'a Path>,
}

impl<'a> Nvidia<'a> {
    /// The interface under this program's own names. `None`: the settings do not list it.
    pub fn of_settings(settings: &Settings, kind: FrontEndKind) -> Option<Self> {
        let is_listed = settings.interfaces.contains(&Interface::Nvidia);
        is_listed.then(|| Self::of_config(&OWN, kind))
    }

    /// The interface with a configuration of no file.
    pub fn of_config(config: &'a NvidiaConfig, kind: FrontEndKind) -> Self {
        let (problem, warnings, file) = (None, &[][..], None);
        Self { config, problem, warnings, kind, reads_annotations: false, file }
    }

    /// The interface under NVIDIA's names, with the configuration that was loaded from a place.
    pub fn of_loaded(loaded: &'a LoadedConfig, place: &'a ConfigPath, kind: FrontEndKind) -> Self {
        Self {
            config: &loaded.config,
            problem: loaded.problem.as_ref(),
            warnings: &loaded.warnings,
            kind,
            reads_annotations: kind == FrontEndKind::Runtime,
            file: (place.path != Path::new(DEFAULT_PATH)).then_some(&place.path),
        }
    }

    /// The parts of a config that are read for this interface.
    pub fn scan_scope(&self) -> ScanScope<'a> {
        let prefixes: &[String] =
            if self.reads_annotations { &self.config.cdi_prefixes } else { &[] };
        ScanScope {
            mounts_below: self.config.volume_mounts.then_some(MOUNTS),
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
            request.ambiguity = self.problem.cloned();
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
        if self.config.volume_mounts && may(RequestSource::Mounts) {
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
        let swarm = self.config.swarm_resources.iter().map(String::as_str);
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
        match self.config.mode {
            RuntimeMode::Legacy => true,
            RuntimeMode::Auto => self.kind == FrontEndKind::Hook,
            RuntimeMode::Csv | RuntimeMode::Cdi | RuntimeMode::JitCdi => false,
        }
    }

    /// True for a hook that NVIDIA's runtime leaves out in the modes that make a specification.
    fn is_disabled(&self, hook: &str) -> bool {
        let names = &self.config.disabled_hooks;
        self.kind == FrontEndKind::Runtime
            && matches!(self.config.mode, RuntimeMode::Auto | RuntimeMode::JitCdi)
            && names.iter().any(|name| name == "all" || name == hook)
    }

    /// What a spec gets in addition to the vendor file's devices. Programs of the driver must not make
    /// nodes in a container that was given its nodes. Our hook prevents that itself. The runtime
    /// starts before the container exists, so it adds a hook, but only if the driver's settings on
    /// the host require it.
    pub fn spec_edits(&self, host: &Host) -> Result<Edits> {
        let hook = match self.kind {
            FrontEndKind::Runtime
                if self.reads_annotations
                    && !self.is_disabled("disable-device-node-modification") =>
            {
                params_edit(host)?
            }
            _ => None,
        };
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
pub fn config_of(name: &str, config: &NvidiaConfig) -> NvidiaConfig {
    let named = NAMES.into_iter().find(|(known, _)| *known == name);
    let selected = named.and_then(|(_, mode)| mode);
    NvidiaConfig { mode: selected.unwrap_or(config.mode), ..config.clone() }
}

/// True for a name of NVIDIA's runtime.
pub fn is_name(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == name)
}

/// Runs the command line of a runtime with this name. Returns only if that fails.
pub fn run_runtime(words: &[OsString], name: &str) -> u8 {
    let (loaded, place) = loaded(name);
    let nvidia = Nvidia::of_loaded(&loaded, &place, FrontEndKind::Runtime);
    if words.first().is_some_and(|word| word == "--version" || word == "-v") {
        // The low-level runtime adds its own.
        let _ = std::io::stdout().write_all(VERSION.as_bytes());
    }
    runtime::run(words, Some(nvidia))
}

/// NVIDIA's settings for a runtime with this name.
fn loaded(name: &str) -> (LoadedConfig, ConfigPath) {
    let place = place(None, true);
    let mut loaded = load(&place.path, place.named);
    loaded.config = config_of(name, &loaded.config);
    (loaded, place)
}

/// Looks whether one of our runtimes, by the name of its program, would find its low-level runtime
/// with this `PATH`. Errors: it would start no container.
pub fn look_for_low_level(program: &str, path: OsString) -> Result<()> {
    let named = settings::named_by_environment();
    let own = settings::load(named.as_deref());
    let (loaded, place) = loaded(program);
    let nvidia = Nvidia::of_loaded(&loaded, &place, FrontEndKind::Runtime);
    let nvidia = is_name(program).then_some(nvidia);
    runtime::low_level(&own, named.as_deref(), nvidia, path).map(drop)
}
