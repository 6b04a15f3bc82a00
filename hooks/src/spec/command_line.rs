//! The parts of an OCI runtime's command line that matter here: whether it makes a
//! container, and from which bundle.
//!
//! The line is passed on unchanged to a runtime that may be runc, crun, youki or one that
//! is newer than this program. So it is read in every way in which one of them may read
//! it ([`grammar`]). Engines write lines that all of them read alike. Where the readings
//! differ, the front end looks at all the bundles, and refuses a line that may be misread.

mod grammar;
mod names;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;

use grammar::{Reading, Readings};

// Why a line is in doubt.
const MANY: &str = "it has too many options that no known runtime takes";
const HIDDEN: &str = "an unknown option hides which command it is";
const NAME: &str = "runc, crun and youki want exactly one name for a container";

/// The format of the log that the engine asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// What a command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `--log`: where the runtime reports errors.
    pub log: Option<PathBuf>,
    pub log_format: LogFormat,
    /// The bundles from which a runtime may make a container, the likeliest first. Empty:
    /// this line makes no container.
    pub creates: Vec<Create>,
    /// Why runtimes may read other bundles than these.
    pub doubt: Option<&'static str>,
}

/// The bundle from which a container is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Empty: the current folder.
    pub bundle: PathBuf,
    /// The container's config, relative to the current folder or absolute.
    pub config: PathBuf,
    pub container: String,
}

impl Arguments {
    /// Reads a command line, without the program's name.
    pub fn parse(words: &[OsString]) -> Self {
        let Readings { all, complete } = grammar::readings(words);
        let (valid, invalid): (Vec<&Reading>, Vec<&Reading>) =
            all.iter().partition(|reading| reading.is_valid());
        // A reading with an option that no runtime knows is the least likely one.
        let fewest = valid.iter().map(|r| r.unknown).min();
        let likely: Vec<&Reading> =
            valid.into_iter().filter(|reading| Some(reading.unknown) == fewest).collect();
        let (creating, other): (Vec<&Reading>, Vec<&Reading>) =
            likely.iter().partition(|reading| reading.creates);
        let first = likely.first().or(invalid.first()).copied();
        let mut arguments = Self {
            log: first.and_then(|r| r.log).map(PathBuf::from),
            log_format: first.map(|r| r.log_format).unwrap_or_default(),
            ..Self::default()
        };
        if !complete {
            arguments.doubt = Some(MANY);
        } else if !other.is_empty() && !creating.is_empty() {
            arguments.doubt = Some(HIDDEN);
        } else if likely.is_empty() {
            arguments.doubt = Some(NAME);
        }
        let of = if likely.is_empty() || !complete { all.iter().collect() } else { creating };
        for reading in of.into_iter().filter(|reading| reading.creates) {
            arguments.add(reading);
        }
        if arguments.creates.is_empty() {
            arguments.doubt = None;
        }
        arguments
    }

    fn add(&mut self, reading: &Reading) {
        let bundle = PathBuf::from(reading.bundle.unwrap_or_default());
        let own = "config.json";
        let configs = match reading.config {
            // crun starts from the current folder. A runtime that enters the bundle first doesn't.
            Some(name) if name != own => vec![PathBuf::from(name), bundle.join(name)],
            _ => vec![bundle.join(own)],
        };
        for config in configs {
            let create = Create {
                bundle: bundle.clone(),
                config,
                container: reading
                    .container
                    .map(|c| c.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            };
            if !self.creates.contains(&create) {
                self.creates.push(create);
            }
        }
    }
}
