//! The options of the commands.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt;

use super::usage;
use crate::error::{Error, Result};
use crate::hook;
use crate::settings::{self, Settings};

/// What a command line says beside its command.
#[derive(Default)]
pub struct Options {
    pub config: Option<PathBuf>,
    pub config_dir: Option<PathBuf>,
    pub root: Option<PathBuf>,
    pub environment: Vec<String>,
    pub json: bool,
    pub help: bool,
    pub vendor: Option<String>,
    pub output: Option<PathBuf>,
    pub library_cache: Vec<String>,
}

/// Other programs of this kind take `-config FILE`, and hook files are written for them.
pub fn normal(words: Vec<OsString>) -> Vec<OsString> {
    let double = |word: OsString| {
        let bytes = word.as_bytes();
        if bytes == b"-config" || bytes.starts_with(b"-config=") {
            let mut long = OsString::from("-");
            long.push(word);
            long
        } else {
            word
        }
    };
    words.into_iter().map(double).collect()
}

pub fn value(parser: &mut lexopt::Parser) -> Result<OsString> {
    parser.value().map_err(|e| usage(&e))
}

fn text(parser: &mut lexopt::Parser) -> Result<String> {
    value(parser)?.string().map_err(|e| usage(&e))
}

impl Options {
    /// Reads what follows a command. Errors: what the command doesn't take.
    pub fn parse(mut parser: lexopt::Parser, verb: &str, config: Option<PathBuf>) -> Result<Self> {
        let mut options = Self {
            config,
            ..Self::default()
        };
        let is_hook = hook::STAGES.contains(&verb) || hook::IDLE_STAGES.contains(&verb);
        let mut words = 0;
        while let Some(argument) = parser.next().map_err(|e| usage(&e))? {
            match argument {
                Short('h') | Long("help") => options.help = true,
                Long("config") => options.config = Some(value(&mut parser)?.into()),
                Long("config-dir") => options.config_dir = Some(value(&mut parser)?.into()),
                Long("root") => options.root = Some(value(&mut parser)?.into()),
                Long("env") if verb == "check" => options.environment.push(text(&mut parser)?),
                Long("json") if matches!(verb, "check" | "cdi") => options.json = true,
                Long("vendor") if verb == "cdi" => options.vendor = Some(text(&mut parser)?),
                Long("output") if verb == "cdi" => {
                    options.output = Some(value(&mut parser)?.into());
                }
                Long("library-cache") if is_hook => {
                    options.library_cache.push(text(&mut parser)?);
                }
                Value(word) if verb == "cdi" && words == 0 && word == "generate" => words += 1,
                other => return Err(usage(&format!("{verb}: {}", other.unexpected()))),
            }
        }
        if verb == "cdi" && words == 0 && !options.help {
            return Err(usage(&"cdi: say what to do; known is generate"));
        }
        Ok(options)
    }

    /// The settings with what the command line says instead. `OCI_DECORATOR_CONFIG` is
    /// not read: the environment may be the container's.
    pub fn settings(&self) -> (Settings, Option<Error>) {
        let (mut settings, problem) = match settings::load(self.config.as_deref()) {
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

    /// The same, where mistakes of the settings end the command.
    pub fn sound_settings(&self) -> Result<Settings> {
        match self.settings() {
            (settings, None) => Ok(settings),
            (_, Some(problem)) => Err(problem),
        }
    }

    /// The options with which a hook works on the same host and vendor files.
    /// Errors: the working folder is needed and can't be told.
    pub fn words_for_hook(&self) -> Result<Vec<String>> {
        let mut words = Vec::new();
        for (name, path) in [
            ("--config", &self.config),
            ("--config-dir", &self.config_dir),
            ("--root", &self.root),
        ] {
            if let Some(path) = path {
                words.extend([name.to_owned(), absolute(path)?]);
            }
        }
        Ok(words)
    }
}

fn absolute(path: &Path) -> Result<String> {
    let fail = |problem: &str| Error::failed(format!("{}: {problem}", path.display()));
    let path = std::path::absolute(path).map_err(|e| fail(&e.to_string()))?;
    path.into_os_string()
        .into_string()
        .map_err(|_| fail("not valid UTF-8"))
}
