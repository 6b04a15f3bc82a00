//! The options of runc, crun and youki, and their commands that make a container.

/// What an option means to this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    Bundle,
    Config,
    Log,
    LogFormat,
    /// Takes a value that doesn't matter.
    Value,
    /// Takes no value.
    Flag,
}

use Meaning::{Bundle, Config, Flag, Log, LogFormat, Value};

/// Names of one letter are short options, all others long ones.
pub type Names = [(&'static str, Meaning)];

/// Options before the command.
pub const GLOBAL: &Names = &[
    ("log", Log),
    ("l", Log),
    ("log-format", LogFormat),
    ("log-level", Value),
    ("root", Value),
    ("r", Value),
    ("criu", Value),
    ("rootless", Value),
    ("cgroup-manager", Value),
    ("debug", Flag),
    ("systemd-cgroup", Flag),
    ("help", Flag),
    ("h", Flag),
    ("?", Flag),
    ("usage", Flag),
    ("version", Flag),
    ("v", Flag),
    ("V", Flag),
];

/// Options of `create`, `run` and `restore`.
pub const CREATE: &Names = &[
    ("bundle", Bundle),
    ("b", Bundle),
    ("config", Config),
    ("f", Config),
    ("console-socket", Value),
    ("c", Value),
    ("pid-file", Value),
    ("p", Value),
    ("pidfd-socket", Value),
    ("preserve-fds", Value),
    ("image-path", Value),
    ("work-path", Value),
    ("parent-path", Value),
    ("manage-cgroups-mode", Value),
    ("empty-ns", Value),
    ("lsm-profile", Value),
    ("lsm-mount-context", Value),
    ("detach", Flag),
    ("d", Flag),
    ("keep", Flag),
    ("no-pivot", Flag),
    ("no-subreaper", Flag),
    ("no-new-keyring", Flag),
    ("tcp-established", Flag),
    ("ext-unix-sk", Flag),
    ("shell-job", Flag),
    ("file-locks", Flag),
    ("auto-dedup", Flag),
    ("lazy-pages", Flag),
    ("help", Flag),
    ("h", Flag),
    ("?", Flag),
    ("usage", Flag),
];

/// Commands that make a container.
pub const CREATING: [&str; 3] = ["create", "run", "restore"];
