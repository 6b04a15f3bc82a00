//! Adds an OCI runtime of ours to the configuration of container engines, beside the entries of
//! other programs, and removes it again.
//!
//! The module of each engine turns a text into a text, without files. [`plan`] decides what a file
//! becomes, with the help of a [`record`], and writes it.

pub mod containerd;
pub mod crio;
pub mod docker;
pub mod hooks_d;
pub mod json_text;
pub mod links;
pub mod plan;
pub mod podman;
pub mod record;
pub mod toml_text;

use std::path::PathBuf;

/// Errors say what is wrong with a text. The caller adds the file.
pub type Result<T> = std::result::Result<T, String>;

type With = fn(&str, &RuntimeEntry, &FileHistory) -> Result<String>;
type Without = fn(&str, &str, &FileHistory) -> Result<String>;
type Program = fn(&str, &str) -> Result<Option<String>>;

/// An engine that can be configured.
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
        let mut all = Self::ALL.iter();
        all.find(|(name, _)| *name == word).map(|(_, engine)| *engine)
    }

    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// The default file.
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
    pub fn with(self, text: &str, runtime: &RuntimeEntry, history: &FileHistory) -> Result<String> {
        (self.edits().0)(text, runtime, history)
    }

    /// The text without the runtime, and with the earlier settings. Errors: the text can't be read.
    pub fn without(self, text: &str, name: &str, history: &FileHistory) -> Result<String> {
        (self.edits().1)(text, name, history)
    }

    /// The program of a runtime. Errors: the text can't be read.
    pub fn program(self, text: &str, name: &str) -> Result<Option<String>> {
        (self.edits().2)(text, name)
    }

    fn edits(self) -> (With, Without, Program) {
        match self {
            Self::Docker => (docker::with, docker::without, docker::program),
            Self::Containerd => (containerd::with, containerd::without, containerd::program),
            Self::Crio => (crio::with, crio::without, crio::program),
            Self::Podman => (podman::with, podman::without, podman::program),
        }
    }

    /// True for a text without settings and comments.
    pub fn is_empty(self, text: &str) -> bool {
        match self {
            Self::Docker => json_text::parse(text).is_ok_and(|root| root == serde_json::json!({})),
            _ => toml_text::is_empty(text),
        }
    }
}

/// The runtime to add to an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEntry {
    /// Its name in the engine.
    pub name: String,
    /// An absolute path, or a name that the engine looks up.
    pub program: String,
    /// Whether it is the default runtime. `None`: this does not change.
    pub is_default: Option<bool>,
    /// Whether the engine reads CDI specifications. `None`: this does not change.
    pub cdi: Option<bool>,
}

/// Other texts that the edit of a file needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileHistory<'a> {
    /// The file before we first wrote it.
    pub original: Option<&'a str>,
    /// The file as we wrote it last.
    pub written: Option<&'a str>,
    /// Other files of the engine. A later one overrides an earlier one.
    pub others: &'a [String],
}
