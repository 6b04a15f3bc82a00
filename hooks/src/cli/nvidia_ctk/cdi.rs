//! The command line of `nvidia-ctk cdi`.

mod options;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use lexopt::Arg::{Long, Short, Value};

use options::{Options, Verb};

use crate::apply::cdi::gpu::modes::{self, Mode};
use crate::apply::cdi::gpu::{self, KIND};
use crate::apply::cdi::transform::Transform;
use crate::apply::cdi::{write, yaml};
use crate::cli::cdi_list::Listing;
use crate::cli::{help, print};
use crate::config::cdi::folder::{DEFAULT, MAX_SIZE};
use crate::config::cdi::Syntax;
use crate::error::{exit, Error, Result};
use crate::frontends::{read_file, read_input};

const HELP: &str = include_str!("cdi.txt");
const VERBS: &str = "generate, list and transform root";

/// Runs the words that follow `nvidia-ctk cdi`.
/// Errors: wrong usage; nothing to generate; a file that can't be read or written.
pub fn run(words: &[OsString]) -> Result<u8> {
    let mut parser = lexopt::Parser::from_args(words.iter().cloned());
    let verb = match parser.next().map_err(|e| usage(&e))? {
        Some(Value(verb)) => verb.to_string_lossy().into_owned(),
        Some(Short('h') | Long("help")) => return print(HELP),
        Some(other) => return Err(usage(&other.unexpected())),
        None => return Err(usage(&format!("no command given; known are {VERBS}"))),
    };
    let (verb, carry_out): (Verb, fn(&Options) -> Result<u8>) = match verb.as_str() {
        "help" => return print(HELP),
        "generate" => (Verb::Generate, generate),
        "list" => (Verb::List, list),
        "transform" => match parser.next().map_err(|e| usage(&e))? {
            Some(Value(what)) if what == "root" => (Verb::Transform, transform),
            Some(Short('h') | Long("help")) => return print(HELP),
            _ => return Err(usage(&"transform: the only known command is root")),
        },
        other => {
            return Err(usage(&format!(
                "unknown command {other:?}; known are {VERBS}"
            )))
        }
    };
    let options = Options::parse(verb, parser, variable)?;
    if options.help {
        return print(&help::of(HELP, verb.words()));
    }
    carry_out(&options)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn usage(problem: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("cdi: {problem}"))
        .resolve("see its commands and options: nvidia-ctk cdi --help")
}

fn generate(options: &Options) -> Result<u8> {
    let settings = options.settings()?;
    let namings = if options.namings.is_empty() {
        &gpu::USUAL[..]
    } else {
        &options.namings
    };
    let request = gpu::Request {
        vendor: options.vendor.as_deref().unwrap_or(KIND.0),
        class: options.class.as_deref().unwrap_or(KIND.1),
        namings,
        ids: &options.ids,
        without_all: options.without_all,
        disabled_hooks: &options.disabled_hooks,
        enabled_hooks: &options.enabled_hooks,
        ..gpu::Request::of(&settings)
    };
    let document = modes::generate(options.mode.unwrap_or(Mode::Devices), &request)?;
    for name in &options.unused {
        say(&format!(
            "{name} has no meaning here: the vendor file names the driver's folder"
        ));
    }
    put(options, &document)
}

/// Prints a document, or writes it.
fn put(options: &Options, document: &serde_json::Value) -> Result<u8> {
    let text = match options.syntax() {
        Syntax::Json => format!("{document:#}\n"),
        Syntax::Yaml => yaml::text(document),
    };
    match &options.output {
        None => print(&text),
        Some(path) => write(path, &text).map(|()| exit::DONE),
    }
}

fn list(options: &Options) -> Result<u8> {
    let settings = options.settings()?;
    let usual = DEFAULT.map(PathBuf::from);
    let folders = if options.folders.is_empty() {
        &usual[..]
    } else {
        &options.folders
    };
    let listing = Listing::read(&settings.root, folders)?;
    if options.json {
        print(listing.json())?;
    } else {
        listing.complain("nvidia-ctk");
        print(listing.text())?;
    }
    Ok(listing.code())
}

fn transform(options: &Options) -> Result<u8> {
    let (Some(from), Some(to)) = (&options.from, &options.to) else {
        return Err(usage(&"transform root: --from and --to are needed"));
    };
    let text = read(options.input.as_deref())?;
    let is_json = text.trim_start().starts_with('{');
    let syntax = if is_json { Syntax::Json } else { Syntax::Yaml };
    let transform = Transform {
        from: from.clone(),
        to: to.clone(),
        in_container: options.in_container,
    };
    put(options, &transform.apply(&text, syntax)?)
}

fn read(path: Option<&Path>) -> Result<String> {
    match path {
        None => is_text("standard input", read_input("the specification", MAX_SIZE)?),
        Some(path) => is_text(&path.display().to_string(), read_file(path, MAX_SIZE)?),
    }
}

fn is_text(shown: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::failed(format!("{shown} is not UTF-8")))
}

fn say(problem: &str) {
    let line = crate::log::printable(problem);
    let _ = writeln!(std::io::stderr(), "nvidia-ctk: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_every_command_and_option() {
        for verb in VERBS.replace(" and ", ", ").split(", ") {
            assert!(HELP.contains(&format!("\n  {verb} ")), "{verb}");
        }
        for option in options::usual_names() {
            assert!(HELP.contains(&format!("--{option}")), "{option}");
        }
    }
}
