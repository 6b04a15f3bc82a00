//! NVIDIA's runtime and hook: this program under their names.
//!
//! NVIDIA's `config.toml` sets the mode, the low-level runtimes and the log. Everything else comes
//! from the settings of this program.

use std::ffi::OsString;
use std::path::Path;

use super::{Nvidia, Reader};
use crate::config::nvidia::{
    load, place, Config, Loaded, Mode, Place, DEFAULT_PATH, VARIABLE, XDG_VARIABLE,
};
use crate::config::settings;
use crate::error::{Error, Result};
use crate::frontends::foreign::Foreign;
use crate::frontends::hook::{act, Task};
use crate::frontends::runtime::{run_as, Guise};
use crate::frontends::FrontEnd;
use crate::log::Log;
use crate::spec::state::State;

/// The names of NVIDIA's runtime, and the mode that each selects.
pub const NAMES: [(&str, Option<Mode>); 3] = [
    ("nvidia-container-runtime", None),
    ("nvidia-container-runtime.cdi", Some(Mode::Cdi)),
    ("nvidia-container-runtime.legacy", Some(Mode::Legacy)),
];

/// NVIDIA's configuration.
#[derive(Debug)]
pub struct Settings<'a> {
    pub config: &'a Config,
    /// Every mistake in it. A container that asks for devices is refused with them.
    pub problem: Option<&'a Error>,
    pub warnings: &'a [String],
    /// Its path, unless it is the default.
    pub file: Option<&'a Path>,
}

impl<'a> Settings<'a> {
    /// The configuration that was loaded from a place.
    pub fn new(loaded: &'a Loaded, place: &'a Place) -> Self {
        Self {
            config: &loaded.config,
            problem: loaded.problem.as_ref(),
            warnings: &loaded.warnings,
            file: (place.path != Path::new(DEFAULT_PATH)).then_some(&place.path),
        }
    }

    /// The configuration of the runtime with this name.
    pub fn config_of(&self, name: &str) -> Config {
        let mut config = self.config.clone();
        config.mode = mode_of(name).unwrap_or(config.mode);
        config
    }

    /// The interface of the runtime, with the configuration of one of its names.
    pub fn by_runtime(&self, config: &'a Config) -> Nvidia<'a> {
        Nvidia {
            config,
            problem: self.problem,
            reader: Reader::Runtime,
            reads_annotations: true,
            file: self.file,
        }
    }

    /// The interface of the hook.
    pub fn by_hook(&self) -> Nvidia<'a> {
        Nvidia {
            config: self.config,
            problem: self.problem,
            reader: Reader::Hook,
            reads_annotations: false,
            file: self.file,
        }
    }
}

/// True for a name of NVIDIA's runtime.
pub fn is_name(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == name)
}

/// The mode that a name of the program selects. `None`: the configuration selects it.
fn mode_of(name: &str) -> Option<Mode> {
    let mut names = NAMES.into_iter();
    names.find(|(known, _)| *known == name)?.1
}

/// Runs the command line of a runtime with this name. Returns only if that fails.
pub fn run_runtime(words: &[OsString], name: &str) -> u8 {
    let (variable, xdg) = (std::env::var_os(VARIABLE), std::env::var_os(XDG_VARIABLE));
    let place = place(None, variable.as_deref(), xdg.as_deref());
    let loaded = load(&place.path, place.named);
    let settings = Settings::new(&loaded, &place);
    let config = settings.config_of(name);
    // In NVIDIA's configuration, /dev/null means that no log is written.
    let log_file = config.log_file.clone();
    let log_file = log_file.filter(|file| file != Path::new("/dev/null"));
    let guise = Guise {
        nvidia: settings.by_runtime(&config),
        runtimes: config.runtimes.as_deref(),
        file: &place.path,
        log_level: config.log_level,
        log_file,
        warnings: settings.warnings,
    };
    run_as(words, Some(&guise))
}

/// The call of the hook, at the stage `prestart` or `createRuntime`.
#[derive(Debug)]
pub struct HookCall<'a> {
    /// Our own settings.
    pub loaded: &'a settings::Loaded,
    pub nvidia: Settings<'a>,
    /// The state, as the runtime wrote it.
    pub input: &'a str,
}

/// Runs the hook: gives the container what it asks for. The hook acts in every mode, because
/// with `docker run --gpus` no other program gives the devices.
/// Errors: the start is refused.
pub fn run_hook(call: &HookCall) -> Result<()> {
    let state = State::parse(call.input)?;
    let settings = &call.loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    let mut front_end = FrontEnd::new(call.loaded, &log, Reader::Hook);
    front_end.foreign = Foreign::of_nvidia(settings, call.nvidia.by_hook());
    front_end.warnings = call.nvidia.warnings;
    let task = Task {
        library_cache: &[],
        leaves_cgroups: call.nvidia.config.no_cgroups,
    };
    act(&front_end, &task, &state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_modes() {
        for (name, is, mode) in [
            ("nvidia-container-runtime", true, None),
            ("nvidia-container-runtime.cdi", true, Some(Mode::Cdi)),
            ("nvidia-container-runtime.legacy", true, Some(Mode::Legacy)),
            ("nvidia-container-runtime-hook", false, None),
            ("oci-decorator-runtime", false, None),
        ] {
            assert_eq!((is_name(name), mode_of(name)), (is, mode), "{name}");
        }
    }
}
