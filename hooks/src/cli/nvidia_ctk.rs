//! The command line of `nvidia-ctk`.

pub mod cdi;
mod config;
mod config_text;
mod info;
mod runtime;
mod system;
mod system_nodes;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use super::go_flags::{truth, Known, Takes, Words};
use super::{complain, nvidia_cdi_hook, print};
use crate::error::{Error, Result};
use crate::log::printable;

const HELP: &str = include_str!("nvidia_ctk/help.txt");
const VERSION: &str = concat!(
    "NVIDIA Container Toolkit CLI of oci-decorator version ",
    env!("CARGO_PKG_VERSION"),
    "\n"
);

/// Options before the command.
const KNOWN: &[Known] = &[
    (&["debug", "d"], Takes::Nothing),
    (&["quiet"], Takes::Nothing),
    (&["config"], Takes::Value),
    (&["version", "v"], Takes::Nothing),
    (&["help", "h"], Takes::Nothing),
];

/// The options before the command.
#[derive(Debug, Clone, Copy)]
struct Said {
    is_debug: bool,
    is_quiet: bool,
}

impl Said {
    fn debug(self, line: &str) {
        if self.is_debug {
            self.warn(line);
        }
    }

    fn warn(self, line: &str) {
        if !self.is_quiet {
            let _ = writeln!(std::io::stderr(), "nvidia-ctk: {}", printable(line));
        }
    }
}

/// Runs a command line, without the program's name.
pub fn run(words: &[OsString]) -> u8 {
    dispatch(words).unwrap_or_else(|error| complain("nvidia-ctk", &error))
}

fn dispatch(words: &[OsString]) -> Result<u8> {
    let words = parse(words, KNOWN, "nvidia-ctk")?;
    if words.is_set("version") {
        return print(VERSION);
    }
    let Some((verb, rest)) = words.rest.split_first() else {
        return print(HELP);
    };
    if words.is_set("help") {
        return print(HELP);
    }
    // An option overrides its variable.
    let is = |option, variable| {
        let by_variable = || std::env::var(variable).ok().and_then(|text| truth(&text));
        words.flag(option).or_else(by_variable) == Some(true)
    };
    let said = Said {
        is_debug: is("debug", "NVIDIA_CTK_DEBUG"),
        is_quiet: is("quiet", "NVIDIA_CTK_QUIET"),
    };
    let by_variable = std::env::var("NVIDIA_CTK_CONFIG").ok();
    let named = words.value("config").map(str::to_owned).or(by_variable);
    let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
    match &*verb.to_string_lossy() {
        "help" | "h" => print(HELP),
        "runtime" => runtime::run(rest, said),
        "config" => config::run(rest, named.as_deref(), said),
        "info" => info::run(rest, named.as_deref()),
        "system" => system::run(rest, said),
        "cdi" => cdi::run(rest),
        // The hook reports its own errors.
        "hook" => Ok(nvidia_cdi_hook::run(rest)),
        other => Err(usage(&format!(
            "unknown command {other:?}; known are runtime, config, info, system, cdi, hook"
        ))),
    }
}

fn parse(words: &[OsString], known: &[Known], verb: &str) -> Result<Words> {
    Words::parse(words, known).map_err(|problem| usage(&format!("{verb}: {problem}")))
}

/// Errors: there are words after the options.
fn no_more(words: &Words) -> Result<()> {
    words.no_more().map_err(|problem| usage(&problem))
}

fn usage(problem: &str) -> Error {
    Error::usage(problem).resolve("see its commands and options: nvidia-ctk --help")
}

/// The command of a group, such as `configure` of `runtime`.
fn sub<'a>(group: &str, words: &'a [OsString], known: &[&str]) -> Result<(String, &'a [OsString])> {
    let known_list = known.join(", ");
    let Some((verb, rest)) = words.split_first() else {
        return Err(usage(&format!(
            "{group}: the command is missing; known are {known_list}"
        )));
    };
    let verb = verb.to_string_lossy().into_owned();
    if ["help", "-h", "--help", "-help"].contains(&&*verb) {
        return Ok(("help".to_owned(), rest));
    }
    if known.contains(&&*verb) {
        return Ok((verb, rest));
    }
    Err(usage(&format!(
        "{group}: unknown command {verb:?}; known are {known_list}"
    )))
}

/// Prints the help of a command.
fn help(command: &str) -> Result<u8> {
    print(&super::help::of(HELP, command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::links::NAMES;
    use crate::frontends::cdi_hook::VERBS;
    use std::fs;
    use std::path::Path;

    const PAGE: &str = "../docs/reference/nvidia.md";
    /// The words after `nvidia-ctk`.
    const COMMANDS: [&str; 10] = [
        "runtime configure",
        "config",
        "config default",
        "info",
        "system create-dev-char-symlinks",
        "system create-device-nodes",
        "cdi generate",
        "cdi list",
        "cdi transform root",
        "hook NAME",
    ];

    #[test]
    fn the_reference_has_every_command() {
        let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
        for command in COMMANDS {
            assert!(
                page.contains(&format!("| `nvidia-ctk {command}` |")),
                "{command}"
            );
        }
        for verb in VERBS {
            assert!(page.contains(&format!("| `{verb}` |")), "{verb}");
        }
        for name in NAMES {
            assert!(page.contains(&format!("`{name}")), "{name}");
        }
        let words = HELP.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
        for option in words.filter(|word| word.starts_with("--")) {
            let is_there = ["`", " ", "="]
                .iter()
                .any(|end| page.contains(&format!("`{option}{end}")));
            assert!(is_there, "{option}");
        }
    }

    /// The help has the commands of the list above.
    #[test]
    fn the_help_has_every_command() {
        for command in COMMANDS {
            let last = command.split(' ').next_back().unwrap_or_default();
            assert!(HELP.contains(last), "{command}");
        }
        for group in ["runtime", "config", "info", "system", "cdi", "hook"] {
            assert!(HELP.contains(&format!("\n  {group} ")), "{group}");
        }
    }
}
