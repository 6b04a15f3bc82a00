//! The command line of `oci-decorator`.

mod options;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt;

use crate::cdi;
use crate::check::{self, Question};
use crate::engine::{self, Door};
use crate::error::{exit, Error, Result};
use crate::hook;
use crate::level::Level;
use crate::libcache;
use crate::log::{printable, Log, Note};
use crate::settings::Settings;
use crate::spec::{Spec, MAX_SIZE};

use options::Options;

const HELP: &str = include_str!("help.txt");
const VERSION: &str = concat!("oci-decorator ", env!("CARGO_PKG_VERSION"), "\n");

/// Runs a command line, without the program's name.
pub fn run(words: Vec<OsString>) -> u8 {
    match dispatch(words) {
        Ok(code) => code,
        Err(error) => {
            let line = printable(&error.to_string());
            let _ = writeln!(std::io::stderr(), "oci-decorator: {line}");
            error.code
        }
    }
}

fn dispatch(words: Vec<OsString>) -> Result<u8> {
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
    if verb == libcache::VERB {
        return rebuild(parser);
    }
    let run: fn(&Options) -> Result<u8> = match verb {
        "help" => return print(HELP),
        "check" => check,
        "precreate" => precreate,
        "cdi" => generate,
        stage if hook::STAGES.contains(&stage) => run_hook,
        stage if hook::IDLE_STAGES.contains(&stage) => idle,
        other => {
            let known = "check, precreate, cdi and the stages of OCI hooks";
            return Err(usage(&format!(
                "unknown command {other:?}; known are {known}"
            )));
        }
    };
    let options = Options::parse(parser, verb, config)?;
    if options.help {
        return print(HELP);
    }
    run(&options)
}

fn usage(problem: &dyn std::fmt::Display) -> Error {
    Error::usage(problem.to_string()).resolve("`oci-decorator --help` shows how it is used")
}

fn print(text: &str) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    // Flushed here: nothing does it at the end of the program.
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Error::failed(format!("can't write to standard output: {e}")))?;
    Ok(exit::DONE)
}

fn check(options: &Options) -> Result<u8> {
    let (settings, settings_problem) = options.settings();
    if options.config_dir.is_some() && !settings.config_dir.is_dir() {
        let shown = settings.config_dir.display();
        return Err(Error::not_found(format!("{shown} is not a folder")));
    }
    let question = Question {
        config_dir: settings.config_dir,
        root: settings.root,
        environment: options.environment.clone(),
        settings_problem,
    };
    let answer = check::answer(&question)?;
    if options.json {
        print(&answer.json())?;
    } else {
        print(&answer.text())?;
    }
    Ok(answer.code())
}

fn precreate(options: &Options) -> Result<u8> {
    let settings = options.sound_settings()?;
    let text = read_input("the spec", MAX_SIZE)?;
    let log = Log::new(settings.log_level, settings.log_file.clone(), "");
    let edited = edit_spec(&settings, &text, &log);
    if let Err(error) = &edited {
        // Engines say that a filter failed, and not why.
        log.write(&Note::new(Level::Error, format!("start refused: {error}")));
    }
    print(edited?.as_deref().unwrap_or(&text))
}

/// `None`: nothing applies.
fn edit_spec(settings: &Settings, text: &str, log: &Log) -> Result<Option<String>> {
    let spec = Spec::parse(text)?;
    let door = Door {
        config_dir: &settings.config_dir,
        root: &settings.root,
        log,
    };
    let Some(edits) = engine::edits(&door, &spec.environment()?)? else {
        return Ok(None);
    };
    if !edits.libraries.is_empty() || edits.bare_directories().next().is_some() {
        // A filter writes to its output and nowhere else.
        let message = "precreate edits the spec alone: empty folders and the library cache are left to oci-decorator-runtime or to a prestart hook";
        log.write(&Note::new(Level::Info, message));
    }
    spec.edited(&edits).map(Some)
}

/// A stage of OCI hooks at which a container's mount namespace can be joined.
fn run_hook(options: &Options) -> Result<u8> {
    let settings = options.sound_settings()?;
    let call = hook::Call {
        settings: &settings,
        library_cache: &options.library_cache,
        input: &read_input("the state", hook::MAX_STATE)?,
    };
    hook::run(&call)?;
    Ok(exit::DONE)
}

/// A stage at which there is nothing to do. Its input is left unread.
// Its shape is that of the other verbs.
#[allow(clippy::unnecessary_wraps)]
fn idle(_options: &Options) -> Result<u8> {
    Ok(exit::DONE)
}

fn generate(options: &Options) -> Result<u8> {
    let settings = options.sound_settings()?;
    let request = cdi::Request {
        settings: &settings,
        vendor: options.vendor.as_deref(),
        hook_words: options.words_for_hook()?,
    };
    let spec = cdi::generate(&request)?;
    match &options.output {
        None => print(&spec),
        Some(file) => {
            cdi::write(file, &spec)?;
            Ok(exit::DONE)
        }
    }
}

fn read_input(what: &str, limit: u64) -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin()
        .lock()
        .take(limit + 1)
        .read_to_end(&mut bytes);
    read.map_err(|e| Error::failed(format!("can't read {what} on standard input: {e}")))?;
    if bytes.len() as u64 > limit {
        return Err(Error::failed(format!(
            "{what} on standard input is larger than {limit} bytes"
        )));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::failed(format!("{what} on standard input is not UTF-8")))
}

/// The hidden verb of `libcache`.
fn rebuild(mut parser: lexopt::Parser) -> Result<u8> {
    let root = parser
        .value()
        .and_then(ValueExt::string)
        .map_err(|e| usage(&e))?;
    libcache::run_in_namespaces(&root)
        .map_err(|e| Error::failed(format!("can't rebuild the library cache of {root}: {e}")))?;
    Ok(exit::DONE)
}
