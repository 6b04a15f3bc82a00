//! The command line of `oci-decorator`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt;

use crate::check::{self, Question};
use crate::engine::{self, Door};
use crate::error::{exit, Error, Result};
use crate::level::Level;
use crate::libcache;
use crate::log::{printable, Log, Note};
use crate::settings::{self, Settings};
use crate::spec::{Spec, MAX_SIZE};

const HELP: &str = include_str!("help.txt");

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
    let mut parser = lexopt::Parser::from_args(words);
    match parser.next().map_err(|e| usage(&e))? {
        Some(Short('h') | Long("help")) => print(HELP),
        Some(Short('V') | Long("version")) => {
            print(concat!("oci-decorator ", env!("CARGO_PKG_VERSION"), "\n"))
        }
        Some(Value(verb)) => match verb.to_str() {
            Some("help") => print(HELP),
            Some("check") => check(parser),
            Some("precreate") => precreate(parser),
            Some(libcache::VERB) => rebuild(parser),
            _ => Err(usage(&format!(
                "unknown command {:?}; known are check and precreate",
                verb.to_string_lossy()
            ))),
        },
        Some(other) => Err(usage(&other.unexpected())),
        None => Err(usage(&"no command given")),
    }
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

/// The options that the verbs share.
#[derive(Default)]
struct Options {
    config_dir: Option<PathBuf>,
    root: Option<PathBuf>,
    environment: Vec<String>,
    json: bool,
    help: bool,
}

fn value(parser: &mut lexopt::Parser) -> Result<OsString> {
    parser.value().map_err(|e| usage(&e))
}

impl Options {
    fn parse(mut parser: lexopt::Parser, verb: &str) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next().map_err(|e| usage(&e))? {
            match argument {
                Short('h') | Long("help") => options.help = true,
                Long("config-dir") => options.config_dir = Some(value(&mut parser)?.into()),
                Long("root") => options.root = Some(value(&mut parser)?.into()),
                Long("env") if verb == "check" => {
                    let entry = value(&mut parser)?.string().map_err(|e| usage(&e))?;
                    options.environment.push(entry);
                }
                Long("json") if verb == "check" => options.json = true,
                other => return Err(usage(&format!("{verb}: {}", other.unexpected()))),
            }
        }
        Ok(options)
    }

    /// The settings with what the command line says instead. Its variable is
    /// not read: the environment may be the container's.
    fn settings(&self) -> (Settings, Option<Error>) {
        let (mut settings, problem) = match settings::load(None) {
            Ok(settings) => (settings, None),
            Err(error) => (Settings::default(), Some(error)),
        };
        if let Some(root) = &self.root {
            settings.root.clone_from(root);
            settings.config_dir = settings::beneath(root, settings::DEFAULT_CONFIG_DIR);
        }
        if let Some(config_dir) = &self.config_dir {
            settings.config_dir.clone_from(config_dir);
        }
        (settings, problem)
    }
}

fn check(parser: lexopt::Parser) -> Result<u8> {
    let options = Options::parse(parser, "check")?;
    if options.help {
        return print(HELP);
    }
    let (settings, settings_problem) = options.settings();
    if options.config_dir.is_some() && !settings.config_dir.is_dir() {
        let shown = settings.config_dir.display();
        return Err(Error::not_found(format!("{shown} is not a folder")));
    }
    let question = Question {
        config_dir: settings.config_dir,
        root: settings.root,
        environment: options.environment,
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

fn precreate(parser: lexopt::Parser) -> Result<u8> {
    let options = Options::parse(parser, "precreate")?;
    if options.help {
        return print(HELP);
    }
    let (settings, problem) = options.settings();
    if let Some(problem) = problem {
        return Err(problem);
    }
    let text = read_input()?;
    let log = Log::new(settings.log_level, settings.log_file, "");
    let spec = Spec::parse(&text)?;
    let door = Door {
        config_dir: &settings.config_dir,
        root: &settings.root,
        log: &log,
    };
    let Some(edits) = engine::edits(&door, &spec)? else {
        return print(&text);
    };
    if !edits.libraries.is_empty() || edits.bare_directories().next().is_some() {
        // A filter writes to its output and nowhere else.
        let message = "precreate edits the spec alone: empty folders and the library cache are made by oci-decorator-runtime";
        log.write(&Note::new(Level::Info, message));
    }
    print(&spec.edited(&edits)?)
}

fn read_input() -> Result<String> {
    let fail = |e: std::io::Error| Error::failed(format!("can't read standard input: {e}"));
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(Error::failed(format!(
            "the spec on standard input is larger than {MAX_SIZE} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|_| Error::failed("the spec on standard input is not UTF-8"))
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
