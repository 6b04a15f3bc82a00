//! NVIDIA's runtime and hook: this program under their names.
//!
//! NVIDIA's `config.toml` sets the mode, the low-level runtimes and the log. Everything else comes
//! from the settings of this program.

use std::ffi::OsString;
use std::io::Write;

use super::Nvidia;
use crate::config::nvidia::{
    load, place, ConfigPath, LoadedConfig, NvidiaConfig, RuntimeMode, VARIABLE, XDG_VARIABLE,
};
use crate::config::settings;
use crate::error::Result;
use crate::frontends::{hook, runtime, Context, FrontEndKind};
use crate::log::Log;
use crate::spec::state::State;

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
    let (variable, xdg) = (std::env::var_os(VARIABLE), std::env::var_os(XDG_VARIABLE));
    let place = place(None, variable.as_deref(), xdg.as_deref());
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

/// Runs the hook with a state, as the runtime wrote it: gives the container what it asks for. The
/// hook acts in every mode, because with `docker run --gpus` no other program gives the devices.
/// Errors: the start is refused.
pub fn run_hook(loaded: &settings::LoadedSettings, nvidia: Nvidia, input: &str) -> Result<()> {
    let state = State::parse(input)?;
    let settings = &loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    hook::act(&Context::of_nvidia(loaded, &log, nvidia), &state)
}
