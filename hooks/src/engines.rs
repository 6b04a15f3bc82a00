//! Adds an OCI runtime of ours to the configuration of container engines, beside the entries of
//! other programs, and removes it again.
//!
//! The module of each engine turns a text into a text, without files. [`Job`] decides what a file
//! becomes, and writes it.

pub mod containerd;
pub mod docker;
pub mod drop_ins;
pub mod links;
pub mod toml_text;

use std::path::{Path, PathBuf};

use crate::engines::drop_ins::{
    crio_with, podman_with, CRIO_DEFAULT, CRIO_RUNTIMES, PODMAN_DEFAULT, PODMAN_RUNTIMES,
};
use crate::error::{self, Error};
use crate::host::files;
use crate::model::request::by_word;

/// Errors say what is wrong with a text. The caller adds the file.
pub type Result<T> = std::result::Result<T, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Docker,
    Containerd,
    Crio,
    Podman,
}

impl Engine {
    pub const ALL: [(&'static str, Self); 4] = [
        ("docker", Self::Docker),
        ("containerd", Self::Containerd),
        ("crio", Self::Crio),
        ("podman", Self::Podman),
    ];

    pub fn from_word(word: &str) -> Option<Self> {
        by_word(&Self::ALL, word)
    }

    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    pub fn file(self, runtime: &str) -> PathBuf {
        match self {
            Self::Docker => "/etc/docker/daemon.json".into(),
            Self::Containerd => "/etc/containerd/config.toml".into(),
            Self::Crio => format!("/etc/crio/crio.conf.d/99-{runtime}.toml").into(),
            Self::Podman => format!("/etc/containers/containers.conf.d/50-{runtime}.conf").into(),
        }
    }

    /// The command after which the engine uses its changed file. `None`: the engine reads the file
    /// at every start of a container.
    pub fn reread(self, before: Option<&str>, after: Option<&str>) -> Option<&'static str> {
        match self {
            // Docker only reads the setting for CDI when it starts.
            Self::Docker if docker::reads_cdi(before) != docker::reads_cdi(after) => {
                Some("systemctl restart docker")
            }
            Self::Docker => Some("systemctl reload docker"),
            Self::Containerd => Some("systemctl restart containerd"),
            Self::Crio => Some("systemctl restart crio"),
            Self::Podman => None,
        }
    }

    /// The text with the runtime. Errors: the text can't be changed.
    fn with(self, text: &str, runtime: &RuntimeEntry, others: &[String]) -> Result<String> {
        match self {
            Self::Docker => docker::with(text, runtime),
            Self::Containerd => containerd::with(text, runtime, others),
            Self::Crio => crio_with(text, runtime, others),
            Self::Podman => podman_with(text, runtime),
        }
    }

    /// The text without the runtime. Errors: the text can't be read.
    pub fn without(self, text: &str, name: &str, is_drop_in: bool) -> Result<String> {
        match self {
            Self::Docker => docker::without(text, name),
            Self::Containerd => containerd::without(text, name, is_drop_in),
            Self::Crio => without_toml(text, CRIO_DEFAULT, CRIO_RUNTIMES, name),
            Self::Podman => without_toml(text, PODMAN_DEFAULT, PODMAN_RUNTIMES, name),
        }
    }

    pub fn is_default(self, text: &str, name: &str) -> bool {
        let path = match self {
            Self::Containerd => return containerd::is_default(text, name),
            Self::Crio => CRIO_DEFAULT,
            Self::Docker | Self::Podman => return false,
        };
        toml_text::parse(text).is_ok_and(|text| toml_text::get_text(&text, path) == Some(name))
    }

    /// The program of a runtime. Errors: the text can't be read.
    pub fn program(self, text: &str, name: &str) -> Result<Option<String>> {
        match self {
            Self::Docker => docker::program(text, name),
            Self::Containerd => containerd::program(text, name),
            Self::Crio => drop_ins::program(text, CRIO_RUNTIMES, name, |item| {
                item.get("runtime_path")?.as_str()
            }),
            Self::Podman => drop_ins::program(text, PODMAN_RUNTIMES, name, |item| {
                item.as_array()?.get(0)?.as_str()
            }),
        }
    }
}

/// A text without the runtime, nor its being the default.
fn without_toml(text: &str, default: &[&str], runtimes: &[&str], name: &str) -> Result<String> {
    let mut document = toml_text::parse(text)?;
    toml_text::remove_default(&mut document, default, name);
    toml_text::remove(&mut document, &[runtimes, &[name]].concat());
    Ok(toml_text::text_of(&document))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEntry {
    pub name: String,
    /// An absolute path, or a name that the engine looks up.
    pub program: String,
    /// Whether it is the default runtime. `None`: this does not change.
    pub is_default: Option<bool>,
    /// Whether the engine reads CDI specifications. `None`: this does not change.
    pub cdi: Option<bool>,
}

#[derive(Debug)]
pub struct Job {
    pub engine: Engine,
    pub file: PathBuf,
    /// Texts of other files that the engine reads. A later one overrides an earlier one.
    pub others: Vec<String>,
    /// Only report what would be done.
    pub is_dry: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub file: PathBuf,
    /// The old text. `None`: there was no file.
    pub before: Option<String>,
    /// The new text. `None`: the file is removed.
    pub after: Option<String>,
}

impl Done {
    pub fn is_change(&self) -> bool {
        self.before != self.after
    }
}

impl Job {
    pub fn add(&self, runtime: &RuntimeEntry) -> error::Result<Done> {
        self.change(|text| {
            let text = text.unwrap_or_default();
            let program = self.engine.program(text, &runtime.name)?;
            refuse_foreign(runtime, program.as_deref())?;
            self.engine.with(text, runtime, &self.others).map(Some)
        })
    }

    /// Takes our entries out. What they replaced, such as another default runtime, does not come
    /// back.
    pub fn remove(&self, runtime: &RuntimeEntry) -> error::Result<Done> {
        self.change(|text| {
            // A file that can't be read does not matter if it has nothing of ours.
            let Some(text) = text.filter(|text| text.contains(&runtime.name)) else {
                return Ok(text.map(str::to_owned));
            };
            let program = self.engine.program(text, &runtime.name)?;
            refuse_foreign(runtime, program.as_deref())?;
            let is_drop_in =
                matches!(self.engine, Engine::Crio | Engine::Podman) || !self.others.is_empty();
            let left = self.engine.without(text, &runtime.name, is_drop_in)?;
            Ok(Some(left).filter(|left| !(is_drop_in && left.trim().is_empty())))
        })
    }

    fn change(
        &self,
        decide: impl FnOnce(Option<&str>) -> Result<Option<String>>,
    ) -> error::Result<Done> {
        change(&self.file, self.is_dry, |text| {
            decide(text).map_err(|problem| {
                let shown = self.file.display();
                Error::failed(format!("{shown} can't be changed: {problem}. The file is unchanged"))
                    .resolve(by_hand(&self.file))
            })
        })
    }
}

/// Reads a file, decides with its text, and writes or removes it, while other processes wait.
fn change(
    file: &Path,
    is_dry: bool,
    decide: impl FnOnce(Option<&str>) -> error::Result<Option<String>>,
) -> error::Result<Done> {
    let _held = (!is_dry).then(files::lock).transpose()?;
    let before = files::read(file)?;
    let after = decide(before.as_deref())?;
    let done = Done { file: file.to_owned(), before, after };
    match &done.after {
        _ if is_dry || !done.is_change() => {}
        Some(text) => files::write(file, text, None)?,
        None => files::remove(file)?,
    }
    Ok(done)
}

/// What to do about a file that the program can't change.
pub fn by_hand(file: &Path) -> String {
    format!("correct the file, and run the command again: editor {}", file.display())
}

/// Errors: the runtime of that name runs a program that is not ours.
fn refuse_foreign(runtime: &RuntimeEntry, program: Option<&str>) -> Result<()> {
    match program.filter(|p| *p != runtime.program && !links::is_name_of_ours(p)) {
        None => Ok(()),
        Some(program) => Err(format!(
            "it has a runtime {:?} that is not ours ({program:?}); choose another name with --runtime-name",
            runtime.name
        )),
    }
}

#[cfg(test)]
mod tests;
