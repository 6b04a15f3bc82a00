//! The command line of `nvidia-cdi-hook`.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use crate::error::{exit, Error, Result};
use crate::frontends::cdi_hook::{self, Call, Verb, VERBS};
use crate::frontends::hook::MAX_STATE;
use crate::frontends::{read_file, read_input};
use crate::log::level::Level;
use crate::log::{printable, Log};

/// The name of the program with this command line.
pub const NAME: &str = "nvidia-cdi-hook";

/// Runs a command line, without the program's name.
pub fn run(words: &[OsString]) -> u8 {
    match words.first().and_then(|word| word.to_str()) {
        Some("--version" | "-v" | "-version") => {
            return print_or_fail(&format!(
                "{NAME} (oci-decorator) {}\n",
                env!("CARGO_PKG_VERSION")
            ));
        }
        Some("--help" | "-h" | "help") => {
            let verbs = VERBS.join("\n    ");
            return print_or_fail(&format!(
                "usage: {NAME} COMMAND [OPTIONS]\n\nRuns a hook of a CDI specification at the stage createContainer. The container's state is\nread from standard input.\n\nCommands:\n    {verbs}\n"
            ));
        }
        _ => {}
    }
    match try_run(words.to_vec()) {
        Ok(()) => exit::DONE,
        Err(error) => {
            let line = printable(&error.to_string());
            let _ = writeln!(std::io::stderr(), "{NAME}: {line}");
            error.code
        }
    }
}

fn try_run(words: Vec<OsString>) -> Result<()> {
    let call = Call::parse(words)?;
    let level = match call.verb {
        Verb::UpdateApplicationProfile => Level::Debug,
        _ => Level::Warning,
    };
    let log = Log::new(level, None, "");
    let notes = match cdi_hook::idle_note(&call.verb) {
        Some(note) => vec![note],
        None => cdi_hook::run(&call, &state(&call)?)?,
    };
    log.write_all(&notes);
    // A runtime shows the output of a hook that fails.
    for note in notes.iter().filter(|note| note.level != Level::Debug) {
        let line = printable(&note.message);
        let _ = writeln!(std::io::stderr(), "{NAME}: {line}");
    }
    Ok(())
}

fn state(call: &Call) -> Result<String> {
    let state = match &call.state {
        None => read_input("the state", MAX_STATE)?,
        Some(path) => read_file(Path::new(path), MAX_STATE)?,
    };
    String::from_utf8(state).map_err(|_| Error::failed("the state is not valid UTF-8"))
}

fn print_or_fail(text: &str) -> u8 {
    super::print(text).unwrap_or(exit::FAILED)
}
