//! Reads the file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use toml::{Table, Value};

use super::keys::{self, Taken};
use super::Config;
use crate::config::settings::{one_line, read, File};
use crate::config::trust;
use crate::error::Error;

/// Where the file is when nothing else is said.
pub const DEFAULT_PATH: &str = "/etc/nvidia-container-runtime/config.toml";
/// Environment variable that names another file. Only the runtime and `nvidia-ctk` read
/// it: a hook's environment may be the container's.
pub const VARIABLE: &str = "NVIDIA_CTK_CONFIG_FILE_PATH";
/// Environment variable with the folder of a user's own settings; as above.
pub const XDG_VARIABLE: &str = "XDG_CONFIG_HOME";

const BELOW_XDG: &str = "nvidia-container-runtime/config.toml";

/// Which file counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    /// The user named this file: it has to be there.
    pub named: bool,
}

/// The file as far as it could be read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Where something is wrong, the rest of the file and defaults. Nothing of a file
    /// that others than root may change.
    pub config: Config,
    /// Every mistake of the file.
    pub problem: Option<Error>,
    /// What counts otherwise than it is written, each with file and key.
    pub warnings: Vec<String>,
    /// Keys of the file that change nothing here; [`super::without_meaning`] says why.
    pub idle: Vec<String>,
}

impl Loaded {
    fn broken(problem: Error) -> Self {
        Self {
            problem: Some(problem),
            ..Self::default()
        }
    }
}

/// Which file it is: the one that the command line names, else those of the two variables,
/// else the usual one. Empty variables don't count.
pub fn place(option: Option<&Path>, variable: Option<&OsStr>, xdg: Option<&OsStr>) -> Place {
    let set = |value: Option<&OsStr>| value.filter(|v| !v.is_empty()).map(PathBuf::from);
    let named = option.map(PathBuf::from).or_else(|| set(variable));
    if let Some(path) = named {
        return Place { path, named: true };
    }
    let path = set(xdg).map_or_else(|| DEFAULT_PATH.into(), |folder| folder.join(BELOW_XDG));
    Place { path, named: false }
}

/// Reads the file. Where one that was not named is missing, the defaults count. A link that
/// leads nowhere is a mistake.
pub fn load(path: &Path, named: bool) -> Loaded {
    if !named && rustix::fs::lstat(path).err() == Some(Errno::NOENT) {
        return Loaded::default();
    }
    let shown = path.display();
    match read(path) {
        Ok(file) => judge(path, &file),
        Err(Errno::INVAL) => Loaded::broken(Error::usage(format!("{shown} is not a regular file"))),
        Err(Errno::NOENT) => Loaded::broken(
            Error::usage(format!("can't read {shown}: there is no such file")).resolve(format!(
                "`nvidia-ctk config default --output {shown}` makes it"
            )),
        ),
        Err(error) => Loaded::broken(Error::usage(format!("can't read {shown}: {error}"))),
    }
}

fn judge(path: &Path, file: &File) -> Loaded {
    let shown = path.display();
    if let Some(problem) = &file.distrust {
        let problem = Error::usage(format!("{shown} does not count: {problem}"));
        return Loaded::broken(problem.resolve(trust::RESOLUTION));
    }
    let read = Reading::of(&file.text);
    let mut problem = None;
    if let Some(whole) = &file.problem {
        problem = Some(Error::usage(format!("{shown} {whole}")));
    } else if !read.mistakes.is_empty() {
        let message = format!("{shown}: {}", read.mistakes.join("; "));
        let problem_of_keys = Error::usage(message)
            .resolve("correct the file; `nvidia-ctk info` says whether all is well");
        problem = Some(problem_of_keys);
    }
    let warnings = read.warnings.iter().map(|text| format!("{shown}: {text}"));
    Loaded {
        config: read.config,
        problem,
        warnings: warnings.collect(),
        idle: read.idle,
    }
}

/// Every mistake of a text that is to be such a file, each with its key.
pub fn mistakes(text: &str) -> Vec<String> {
    Reading::of(text).mistakes
}

#[derive(Default)]
struct Reading {
    config: Config,
    mistakes: Vec<String>,
    warnings: Vec<String>,
    idle: Vec<String>,
}

impl Reading {
    fn of(text: &str) -> Self {
        let mut reading = Self::default();
        match text.parse::<Table>() {
            Ok(table) => {
                reading.table("", &table);
                reading.experimental(&table);
            }
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(text, span.start));
                let problem = format!("line {line}: not valid TOML: {}", one_line(&error));
                reading.mistakes.push(problem);
            }
        }
        reading
    }

    fn table(&mut self, above: &str, table: &Table) {
        for (key, value) in table {
            let key = match above {
                "" => key.clone(),
                above => format!("{above}.{key}"),
            };
            match value {
                Value::Table(inner) if keys::is_table(&key) => self.table(&key, inner),
                value => self.value(&key, value),
            }
        }
    }

    fn value(&mut self, key: &str, value: &Value) {
        if keys::is_table(key) {
            let found = value.type_str();
            self.mistakes
                .push(format!("{key}: expected a table, found {found}"));
            return;
        }
        match keys::set(&mut self.config, key, value) {
            Ok(Taken::Done) if keys::without_meaning(key).is_some() => {
                self.idle.push(key.to_owned());
            }
            Ok(Taken::Done) => {}
            Ok(Taken::Warning(text)) => self.warnings.push(format!("{key}: {text}")),
            Ok(Taken::Unknown) => {
                let text = format!("{key}: unknown key, which changes nothing");
                self.warnings.push(text);
            }
            Err(problem) => self.mistakes.push(format!("{key}: {problem}")),
        }
    }

    /// The mode as it was said in the spring of 2022.
    fn experimental(&mut self, table: &Table) {
        const TABLE: &str = "nvidia-container-runtime";
        let Some(runtime) = table.get(TABLE).and_then(Value::as_table) else {
            return;
        };
        let is_on = runtime.get("experimental").and_then(Value::as_bool);
        let word = runtime.get("discover-mode").and_then(Value::as_str);
        if is_on != Some(true) {
            if word.is_some() {
                self.warnings.push(format!(
                    "{TABLE}.discover-mode: does not count without experimental = true; write `mode`"
                ));
            }
            return;
        }
        let old = word.unwrap_or("auto");
        let mode = runtime.get("mode").and_then(Value::as_str);
        if let Some(mode) = mode {
            self.warnings.push(format!(
                "{TABLE}.experimental: does not count beside mode = {mode:?}; remove it"
            ));
            return;
        }
        // A wrong word is a mistake already.
        if let Ok(mode) = keys::discover_mode(old) {
            self.config.mode = mode;
        }
        self.warnings.push(format!(
            "{TABLE}.experimental: is an old form; write mode = {old:?}"
        ));
    }
}

/// Which line of a text a byte is on.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
