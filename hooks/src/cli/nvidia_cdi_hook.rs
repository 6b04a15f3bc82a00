//! The command line of `nvidia-cdi-hook`, as CDI specifications have it.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use super::print;
use crate::error::{exit, Error, Result};
use crate::frontends::cdi_hook::{self, parse, Verb, VERBS};
use crate::frontends::hook::MAX_STATE;
use crate::frontends::{read_file, read_input};
use crate::log::level::Level;
use crate::log::{printable, Log};

/// The name of the program with this command line.
pub const NAME: &str = "nvidia-cdi-hook";

/// Runs a command line, without the program's name.
pub fn run(words: &[OsString]) -> u8 {
    let done = match words.first().and_then(|word| word.to_str()) {
        Some("--version" | "-v" | "-version") => {
            let own = env!("CARGO_PKG_VERSION");
            print(&format!("NVIDIA CDI Hook version 1.20.2\ncommit: oci-decorator-{own}\n"))
        }
        Some("--help" | "-h" | "help") => {
            let verbs = VERBS.join("\n    ");
            print(&format!(
                "usage: {NAME} COMMAND [OPTIONS]\n\nRuns a hook of a CDI specification at the stage createContainer. The container's state is\nread from standard input.\n\nCommands:\n    {verbs}\n"
            ))
        }
        _ => run_verb(words),
    };
    done.unwrap_or_else(|error| {
        let line = printable(&error.to_string());
        let _ = writeln!(std::io::stderr(), "{NAME}: {line}");
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
        let _ = writeln!(std::io::stderr(), "{NAME}: {line}");
    }
    Ok(exit::DONE)
}

fn read_state(file: Option<&str>) -> Result<String> {
    let state = match file {
        None => read_input("the state", MAX_STATE)?,
        Some(path) => read_file(Path::new(path), MAX_STATE)?,
    };
    String::from_utf8(state).map_err(|_| Error::failed("the state is not valid UTF-8"))
}
