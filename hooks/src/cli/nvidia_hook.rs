//! The command line of `nvidia-container-runtime-hook`, and of its older name
//! `nvidia-container-toolkit`.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use crate::config::nvidia::{self, ConfigPath};
use crate::config::settings;
use crate::error::{exit, Result};
use crate::frontends::cdi_hook::{self, parse, Verb, VERBS};
use crate::frontends::hook::{self, read_state};
use crate::frontends::nvidia::HOOKS;
use crate::log::{printable, Level, Log};
use crate::spec::options::{flag, print, value, Opt, ParsedArgs};

/// Names our settings, which have the policy: a hook trusts no variable to name them.
pub const SETTINGS_OPTION: &str = "oci-decorator-config";

/// True for a name of this hook. Sarus's hook files append a version to the second name.
pub fn is_name(name: &str) -> bool {
    HOOKS.contains(&name) || name.starts_with("nvidia-container-toolkit-")
}

const OPTIONS: &[Opt] = &[
    value(&["config"]),
    value(&[SETTINGS_OPTION]),
    flag(&["debug"]),
    flag(&["version"]),
    flag(&["force"]),
];

const USAGE: &str = "\
Usage of nvidia-container-runtime-hook:
  -config FILE   settings; the file has to exist
                 (default: /etc/nvidia-container-runtime/config.toml, if it exists)
  -oci-decorator-config FILE
                 settings of oci-decorator; the file has to exist
                 (default: /etc/oci-decorator/config.toml, if it exists)
  -debug         print more on standard error
  -version       print the version

Commands:
  prestart       read a container's state from standard input, and give the container
                 the devices that it asks for
  poststart      do nothing
  poststop       do nothing
";
const VERSION: &str = concat!(
    "NVIDIA Container Runtime Hook version 1.20.2\ncommit: oci-decorator-",
    env!("CARGO_PKG_VERSION"),
    "\n"
);

/// Runs the hook. The variables that name a settings file are not read, because the environment may
/// be the container's.
pub fn run(words: &[OsString]) -> u8 {
    let words = match ParsedArgs::default().leading(words, OPTIONS) {
        Ok(words) => words,
        Err(error) => return wrong(&format!("{}\n{USAGE}", error.message)),
    };
    let place = nvidia::place(words.value("config").map(Path::new), false);
    let done = match words.operands.first().and_then(|word| word.to_str()) {
        _ if words.is_set("version") => print(VERSION),
        _ if words.is_set("help") => return wrong(USAGE),
        Some("prestart") => {
            prestart(place, words.value(SETTINGS_OPTION).map(Path::new), words.is_set("debug"))
        }
        Some("poststart" | "poststop") => Ok(exit::DONE),
        _ => return wrong(USAGE),
    };
    done.unwrap_or_else(|error| {
        let line = printable(&error.to_string());
        let _ = writeln!(std::io::stderr(), "nvidia-container-runtime-hook: {line}");
        exit::FAILED
    })
}

fn wrong(text: &str) -> u8 {
    let _ = write!(std::io::stderr(), "{text}");
    exit::USAGE
}

/// Gives a container its devices, at the stage `prestart`.
fn prestart(place: ConfigPath, own: Option<&Path>, is_debug: bool) -> Result<u8> {
    let is_missing = place.named && !place.path.exists();
    let loaded = nvidia::load(place);
    // A named file has to exist. For mistakes in it, the front end refuses only containers that
    // ask.
    if let (true, Some(problem)) = (is_missing, &loaded.problem) {
        return Err(problem.clone());
    }
    if is_debug {
        for warning in &loaded.warnings {
            let _ = writeln!(std::io::stderr(), "warning: {}", printable(warning));
        }
    }
    hook::run(&settings::load(own), Some(&loaded), &read_state(None)?)?;
    Ok(exit::DONE)
}

pub const CDI_HOOK: &str = "nvidia-cdi-hook";

/// Runs a command line, without the program's name.
pub fn run_cdi(words: &[OsString]) -> u8 {
    let done = match words.first().and_then(|word| word.to_str()) {
        Some("--version" | "-v" | "-version") => {
            let own = env!("CARGO_PKG_VERSION");
            print(format!("NVIDIA CDI Hook version 1.20.2\ncommit: oci-decorator-{own}\n"))
        }
        Some("--help" | "-h" | "help") => {
            let verbs = VERBS.join("\n    ");
            print(format!(
                "usage: {CDI_HOOK} COMMAND [OPTIONS]\n\nRuns a hook of a CDI specification at the stage createContainer. The container's state is\nread from standard input.\n\nCommands:\n    {verbs}\n"
            ))
        }
        _ => run_verb(words),
    };
    done.unwrap_or_else(|error| {
        let line = printable(&error.to_string());
        let _ = writeln!(std::io::stderr(), "{CDI_HOOK}: {line}");
        error.code
    })
}

fn run_verb(words: &[OsString]) -> Result<u8> {
    let (verb, state) = parse(words)?;
    let level = match verb {
        Verb::UpdateApplicationProfile => Level::Debug,
        _ => Level::Warning,
    };
    let log = Log::new(level, None, "");
    let notes = match cdi_hook::idle_note(&verb) {
        Some(note) => vec![note],
        None => cdi_hook::run(&verb, &read_state(state.as_deref())?)?,
    };
    log.write_all(&notes);
    // A runtime shows the output of a hook that fails.
    for note in notes.iter().filter(|note| note.level != Level::Debug) {
        let line = printable(&note.message);
        let _ = writeln!(std::io::stderr(), "{CDI_HOOK}: {line}");
    }
    Ok(exit::DONE)
}
