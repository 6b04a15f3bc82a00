//! The command line of `oci-decorator`.

pub mod cdi_list;
pub mod check;
mod configure;
mod go_flags;
mod help;
mod install_links;
pub mod nvidia_cdi_hook;
pub mod nvidia_ctk;
pub mod nvidia_hook;
mod options;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;

use lexopt::Arg::{Long, Short, Value};

use crate::apply::cdi;
use crate::apply::spec::MAX_SIZE;
use crate::cli::cdi_list::Listing;
use crate::cli::check::{Question, Said};
use crate::config::{nvidia, settings};
use crate::error::{exit, Error, Result};
use crate::frontends::cdi::DEFAULT_FOLDERS;
use crate::frontends::{hook, precreate, read_input};
use crate::log::printable;

use options::Options;

const HELP: &str = include_str!("cli/help.txt");
const VERSION: &str = concat!("oci-decorator ", env!("CARGO_PKG_VERSION"), "\n");

/// Runs a command line, without the program's name.
pub fn run(words: Vec<OsString>) -> u8 {
    let is_engines = words.iter().any(|word| is_called_by_engines(word));
    match dispatch(words) {
        Ok(code) => code,
        Err(error) if is_engines => complain("oci-decorator", &error.on_one_line()),
        Err(error) => complain("oci-decorator", &error),
    }
}

/// True for the commands that engines start: they show the last line of an error, or its first
/// bytes.
fn is_called_by_engines(word: &OsStr) -> bool {
    word == "precreate" || word.to_str().is_some_and(hook::is_stage)
}

/// Prints an error, and returns its exit code.
fn complain(program: &str, error: &Error) -> u8 {
    let text = error.lines().join("\n");
    let _ = writeln!(std::io::stderr(), "{program}: {text}");
    error.code
}

fn dispatch(words: Vec<OsString>) -> Result<u8> {
    // The options of these commands have other forms.
    match words.split_first() {
        Some((verb, rest)) if verb == "configure" => return configure::run(rest),
        Some((verb, rest)) if verb == "install-links" => return install_links::run(rest),
        _ => {}
    }
    let mut parser = lexopt::Parser::from_args(options::normal(words));
    let mut config = None;
    loop {
        let argument = parser.next().map_err(|e| usage(&e))?;
        let verb = match argument {
            Some(Short('h') | Long("help")) => return print(HELP),
            Some(Short('V') | Long("version")) => return print(VERSION),
            Some(Long("config")) => {
                config = Some(options::value(&mut parser)?.into());
                continue;
            }
            Some(Value(verb)) => verb.to_string_lossy().into_owned(),
            Some(other) => return Err(usage(&other.unexpected())),
            None => return Err(usage(&"no command given")),
        };
        return run_verb(&verb, parser, config);
    }
}

fn run_verb(verb: &str, parser: lexopt::Parser, config: Option<PathBuf>) -> Result<u8> {
    let run: fn(&Options) -> Result<u8> = match verb {
        "help" => return print(HELP),
        "check" => check,
        "precreate" => filter,
        "cdi" => generate,
        stage if hook::STAGES.contains(&stage) => run_hook,
        stage if hook::IDLE_STAGES.contains(&stage) => idle,
        other => {
            let known =
                "check, precreate, cdi, configure, install-links and the stages of OCI hooks";
            return Err(usage(&format!(
                "unknown command {other:?}; known are {known}"
            )));
        }
    };
    let options = Options::parse(parser, verb, config)?;
    if options.help {
        return print(&help::of(HELP, &options.command(verb)));
    }
    run(&options)
}

fn usage(problem: &dyn std::fmt::Display) -> Error {
    Error::usage(problem.to_string()).resolve("see its commands and options: oci-decorator --help")
}

fn print(text: &str) -> Result<u8> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    // Flushed here, because nothing is flushed when the program ends.
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|e| Error::failed(format!("can't write to standard output: {e}")))?;
    Ok(exit::DONE)
}

fn check(options: &Options) -> Result<u8> {
    let loaded = options.settings();
    let config_dir = &loaded.settings.config_dir;
    if options.config_dir.is_some() && !config_dir.is_dir() {
        let shown = config_dir.display();
        return Err(
            Error::not_found(format!("{shown} is not a folder")).resolve(format!(
                "make it, and put vendor files there: mkdir -p {shown}; or check those of this host: oci-decorator check"
            )),
        );
    }
    let nvidia = match &options.root {
        Some(root) => settings::beneath(root, nvidia::DEFAULT_PATH),
        None => nvidia::DEFAULT_PATH.into(),
    };
    let question = Question {
        said: Said {
            environment: &options.environment,
            annotations: &options.annotations,
            privileged: options.privileged,
        },
        loaded: &loaded,
        nvidia: &nvidia,
    };
    let answer = check::answer(&question)?;
    if options.json {
        print(&answer.json())?;
    } else {
        print(&answer.text())?;
    }
    Ok(answer.code())
}

fn filter(options: &Options) -> Result<u8> {
    let config = read_input("the spec", MAX_SIZE)?;
    match precreate::run(&options.settings(), &config)? {
        Some(edited) => print(&edited),
        None => print_bytes(&config),
    }
}

/// Runs the hook at a stage at which a container's mount namespace can be joined.
fn run_hook(options: &Options) -> Result<u8> {
    let state = read_input("the state", hook::MAX_STATE)?;
    let call = hook::Call {
        loaded: &options.settings(),
        library_cache: &options.library_cache,
        input: std::str::from_utf8(&state)
            .map_err(|_| Error::failed("the state on standard input is not UTF-8"))?,
    };
    hook::run(&call)?;
    Ok(exit::DONE)
}

/// Does nothing, at a stage without work. The input is not read.
// The signature is that of the other commands.
#[allow(clippy::unnecessary_wraps)]
fn idle(_options: &Options) -> Result<u8> {
    Ok(exit::DONE)
}

/// Lists the devices of every specification on this host.
fn list(options: &Options) -> Result<u8> {
    let settings = options.settings().sound()?;
    let folders = DEFAULT_FOLDERS.map(PathBuf::from);
    let listing = Listing::read(&settings.root, &folders)?;
    if options.json {
        print(listing.json())?;
        return Ok(listing.code());
    }
    listing.complain("oci-decorator");
    print(listing.text())?;
    Ok(listing.code())
}

fn generate(options: &Options) -> Result<u8> {
    if options.task == Some("list") {
        return list(options);
    }
    let settings = options.settings().sound()?;
    let request = cdi::Request {
        settings: &settings,
        vendor: options.vendor.as_deref(),
        hook_words: options.words_for_hook()?,
    };
    if let Some(folder) = &options.output_dir {
        for note in cdi::write_each(folder, &request)? {
            let _ = writeln!(std::io::stderr(), "note: {}", printable(&note));
        }
        return Ok(exit::DONE);
    }
    let spec = cdi::generate(&request)?;
    match &options.output {
        None => print(&spec),
        Some(file) => {
            cdi::write(file, &spec)?;
            Ok(exit::DONE)
        }
    }
}
