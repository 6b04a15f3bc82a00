//! Reads NVIDIA's `config.toml`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use toml::{Table, Value};

use super::keys;
use super::Config;
use crate::config::settings::{cannot_read, one_line, read, File};
use crate::error::Error;

/// The default path of the file.
pub const DEFAULT_PATH: &str = "/etc/nvidia-container-runtime/config.toml";
/// Environment variable that names another file. Only the runtime and `nvidia-ctk` read it, because
/// a hook's environment may be the container's.
pub const VARIABLE: &str = "NVIDIA_CTK_CONFIG_FILE_PATH";
/// Environment variable with the folder of a user's settings; the same programs read it.
pub const XDG_VARIABLE: &str = "XDG_CONFIG_HOME";

const BELOW_XDG: &str = "nvidia-container-runtime/config.toml";

/// The file that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    /// The user named this file, so it has to exist.
    pub named: bool,
}

/// The file as far as it could be read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The values of the file, with defaults where there are mistakes. Only defaults if a user
    /// other than root may change the file.
    pub config: Config,
    /// Every mistake of the file.
    pub problem: Option<Error>,
    /// Values with another effect than in NVIDIA's program, each with file and key.
    pub warnings: Vec<String>,
    /// Keys of the file that change nothing here; [`super::without_meaning`] says why.
    pub idle: Vec<String>,
}

impl Loaded {
    fn broken(problem: Error) -> Self {
        Self { problem: Some(problem), ..Self::default() }
    }
}

/// Finds the file: the one that the command line names, else the one of the first variable that is
/// set, else the default. Empty variables do not count.
pub fn place(option: Option<&Path>, variable: Option<&OsStr>, xdg: Option<&OsStr>) -> Place {
    let set = |value: Option<&OsStr>| value.filter(|v| !v.is_empty()).map(PathBuf::from);
    let named = option.map(PathBuf::from).or_else(|| set(variable));
    if let Some(path) = named {
        return Place { path, named: true };
    }
    let path = set(xdg).map_or_else(|| DEFAULT_PATH.into(), |folder| folder.join(BELOW_XDG));
    Place { path, named: false }
}

/// Reads the file. If it was not named and does not exist, the defaults count. A link that leads
/// nowhere is a mistake.
pub fn load(path: &Path, named: bool) -> Loaded {
    if !named && rustix::fs::lstat(path).err() == Some(Errno::NOENT) {
        return Loaded::default();
    }
    let shown = path.display();
    match read(path) {
        Ok(file) => judge(path, &file),
        Err(Errno::INVAL) => Loaded::broken(Error::usage(format!("{shown} is not a regular file"))),
        Err(Errno::NOENT) => Loaded::broken(
            Error::usage(format!("can't read {shown}: there is no such file"))
                .resolve(format!("make it: nvidia-ctk config default --output {shown}")),
        ),
        Err(error) => Loaded::broken(cannot_read(path, error)),
    }
}

fn judge(path: &Path, file: &File) -> Loaded {
    let shown = path.display();
    if let Some(distrust) = &file.distrust {
        let problem = Error::usage(format!("{shown} does not count: {distrust}"));
        return Loaded::broken(problem.resolve(distrust.resolution()));
    }
    let read = Reading::of(&file.text);
    let mut problem = None;
    if let Some(whole) = &file.problem {
        problem = Some(Error::usage(format!("{shown} {whole}")).resolve(correct(path)));
    } else if !read.mistakes.is_empty() {
        let message = format!("{shown}: {}", read.mistakes.join("; "));
        problem = Some(Error::usage(message).resolve(correct(path)));
    }
    let warnings = read.warnings.iter().map(|text| format!("{shown}: {text}"));
    Loaded { config: read.config, problem, warnings: warnings.collect(), idle: read.idle }
}

/// What to do about a file with mistakes.
fn correct(path: &Path) -> String {
    let option = if path == Path::new(DEFAULT_PATH) {
        String::new()
    } else {
        format!(" --config-file {}", path.display())
    };
    format!("correct the file, then check it: nvidia-ctk info{option}")
}

/// Every mistake in the text of such a file, each with its key.
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
            Ok(table) => reading.table("", &table),
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
            self.mistakes.push(format!("{key}: expected a table, found {found}"));
            return;
        }
        match keys::set(&mut self.config, key, value) {
            None => self.warnings.push(format!("{key}: unknown key, which changes nothing")),
            Some(Err(problem)) => self.mistakes.push(format!("{key}: {problem}")),
            Some(Ok(warning)) => {
                let warning = warning.map(|text| format!("{key}: {text}"));
                self.warnings.extend(warning);
                if keys::without_meaning(key).is_some() {
                    self.idle.push(key.to_owned());
                }
            }
        }
    }
}

/// The number of the line that a byte of a text is on.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
