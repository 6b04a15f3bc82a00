//! The command line of `nvidia-ctk`.

mod cdi;
mod config;
mod config_text;
mod runtime;
mod system;
mod system_nodes;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use super::check::SampleContainer;
use super::commands::{command, Program, Takes};
use super::{complain, nvidia_cdi_hook, print, report, JSON};
use crate::config::nvidia::{self, ConfigPath};
use crate::config::settings;
use crate::error::Result;
use crate::log::printable;
use crate::spec::options::{flag, value, Opt, ParsedArgs, Syntax};

const HELP: &str = include_str!("nvidia_ctk/help.txt");

static PROGRAM: Program = Program {
    name: "nvidia-ctk",
    version: concat!(
        // Of the toolkit whose decisions are made here, as other programs compare it.
        "NVIDIA Container Toolkit CLI version 1.20.2\ncommit: oci-decorator-",
        env!("CARGO_PKG_VERSION"),
        "\n"
    ),
    syntax: Syntax::Go,
    options: &[
        flag(&["debug", "d"]).or(&["NVIDIA_CTK_DEBUG"]),
        flag(&["quiet"]).or(&["NVIDIA_CTK_QUIET"]),
        value(&["config"]).keyed("settings").or(&["NVIDIA_CTK_CONFIG"]),
        flag(&["version", "v"]),
    ],
    helps: &[("", HELP), ("cdi", cdi::HELP)],
    commands: &[
        command("runtime configure", runtime::OPTIONS, runtime::run),
        command("config", config::OPTIONS, config::run),
        command("config default", config::OPTIONS, config::run_default),
        command("info", INFO, info),
        command("system create-dev-char-symlinks", system::LINK_OPTIONS, system::links),
        command("system create-device-nodes", system::NODE_OPTIONS, system::nodes),
        command("cdi generate", cdi::GENERATE, cdi::generate),
        command("cdi list", cdi::LIST, cdi::list),
        command("hook", &[], hook).takes(Takes::Line),
    ],
};

const INFO: &[Opt] = &[JSON, value(&["config-file", "config"])];

/// Checks as `oci-decorator check` does, with these settings of NVIDIA's.
fn info(words: &ParsedArgs) -> Result<u8> {
    let own = settings::load(settings::named_by_environment().as_deref());
    report(words, &SampleContainer::default(), &own, &place_of(words))
}

/// Runs a hook, which reports its own errors.
#[allow(clippy::unnecessary_wraps)]
fn hook(words: &ParsedArgs) -> Result<u8> {
    Ok(nvidia_cdi_hook::run(&words.operands))
}

/// Runs a command line, without the program's name.
pub fn run(line: &[OsString]) -> u8 {
    let done = PROGRAM.run(line).and_then(|done| done.map_or_else(|| print(HELP), Ok));
    done.unwrap_or_else(|error| complain(PROGRAM.name, &error))
}

/// Prints a line on standard error, with --debug.
fn debug(words: &ParsedArgs, line: &str) {
    if words.is_set("debug") {
        warn(words, line);
    }
}

/// Prints a line on standard error, without --quiet.
fn warn(words: &ParsedArgs, line: &str) {
    if !words.is_set("quiet") {
        let _ = writeln!(std::io::stderr(), "{}: {}", PROGRAM.name, printable(line));
    }
}

/// The settings file for a command line.
fn place_of(words: &ParsedArgs) -> ConfigPath {
    let named = words.value("config-file").or(words.value("settings"));
    let variable = |name| std::env::var_os(name);
    nvidia::place(
        named.filter(|path| !path.is_empty()).map(Path::new),
        variable(nvidia::VARIABLE).as_deref(),
        variable(nvidia::XDG_VARIABLE).as_deref(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::links::NAMES;
    use crate::frontends::cdi_hook::VERBS;

    #[test]
    fn the_reference_and_the_help_have_every_command() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/nvidia.md");
        let page = std::fs::read_to_string(page).unwrap();
        for command in PROGRAM.commands {
            let name = command.name.replace("hook", "hook NAME");
            assert!(page.contains(&format!("| `nvidia-ctk {name}` |")), "{name}");
            for word in command.name.split(' ') {
                assert!(HELP.contains(word) || cdi::HELP.contains(word), "{word}");
            }
        }
        for verb in VERBS {
            assert!(page.contains(&format!("| `{verb}` |")), "{verb}");
        }
        for name in NAMES {
            assert!(page.contains(&format!("`{name}")), "{name}");
        }
        let words = HELP.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
        for option in words.filter(|word| word.starts_with("--")) {
            let is_there =
                ["`", " ", "="].iter().any(|end| page.contains(&format!("`{option}{end}")));
            assert!(is_there, "{option}");
        }
    }

    #[test]
    fn the_help_of_cdi_has_every_option() {
        for option in [cdi::GENERATE, cdi::LIST].into_iter().flatten() {
            let name = option.name();
            let is_global = ["debug", "quiet"].contains(&name);
            assert!(is_global || cdi::HELP.contains(&format!("--{name}")), "{name}");
        }
    }
}
