//! NVIDIA's hook: ours, with the request that NVIDIA's variables make. It acts in every
//! mode: where Docker was given `--gpus`, no one else does.

use super::Reader;
use crate::config::settings::Loaded;
use crate::error::Result;
use crate::frontends::foreign::Foreign;
use crate::frontends::hook::{act, Task};
use crate::frontends::nvidia::runtime::Settings;
use crate::frontends::FrontEnd;
use crate::log::Log;
use crate::oci::state::State;

/// How the hook was called, at the stage `prestart` or `createRuntime`.
#[derive(Debug)]
pub struct Call<'a> {
    /// Our own settings.
    pub loaded: &'a Loaded,
    pub nvidia: Settings<'a>,
    /// The state, as the runtime wrote it.
    pub input: &'a str,
}

/// Gives the container what it asks for. Errors: the start is to be refused.
pub fn run(call: &Call) -> Result<()> {
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
