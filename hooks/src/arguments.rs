//! Finds what matters in the command line of an OCI runtime.
//!
//! The command lines of runc and crun differ from version to version, and ours
//! is passed on untouched; only the verb, the bundle and the log are looked for.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Options before the verb whose value is a word of its own (runc, crun, youki).
const GLOBAL_WITH_VALUE: [&str; 8] = [
    "root",
    "log",
    "log-format",
    "log-level",
    "criu",
    "rootless",
    "cgroup-manager",
    "config-dir",
];
/// The same after the verb `create` or `run`.
const CREATE_WITH_VALUE: [&str; 8] = [
    "bundle",
    "b",
    "config",
    "f",
    "console-socket",
    "pid-file",
    "pidfd-socket",
    "preserve-fds",
];

/// How the engine wants its log.
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
    /// Set when a container is to be made.
    pub create: Option<Create>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// Empty: the current folder.
    pub bundle: PathBuf,
    /// crun's `--config`: another name for `config.json`.
    pub config: Option<PathBuf>,
    pub container: String,
}

impl Arguments {
    /// Reads a command line, without the program's name.
    pub fn parse(words: &[OsString]) -> Self {
        let mut arguments = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(option) = Opt::parse(word) else {
                if word == "create" || word == "run" {
                    arguments.create = Some(Create::parse(words.as_slice()));
                }
                break;
            };
            let value = option.value(&GLOBAL_WITH_VALUE, &mut words);
            match (option.name, value) {
                (b"log", Some(value)) => arguments.log = Some(value.into()),
                (b"log-format", Some(value)) if value == "json" => {
                    arguments.log_format = LogFormat::Json;
                }
                _ => {}
            }
        }
        arguments
    }
}

impl Create {
    fn parse(words: &[OsString]) -> Self {
        let mut create = Self::default();
        let mut words = words.iter();
        let mut only_words = false;
        while let Some(word) = words.next() {
            let Some(option) = Opt::parse(word).filter(|_| !only_words) else {
                create.container = word.to_string_lossy().into_owned();
                continue;
            };
            only_words = option.name.is_empty();
            let value = option.value(&CREATE_WITH_VALUE, &mut words);
            match (option.name, value) {
                (b"bundle" | b"b", Some(value)) => create.bundle = value.into(),
                (b"config" | b"f", Some(value)) => create.config = Some(value.into()),
                _ => {}
            }
        }
        create
    }
}

/// `--name`, `--name=value` or `-n`. The word `--` has an empty name.
struct Opt<'a> {
    name: &'a [u8],
    value: Option<&'a OsStr>,
}

impl<'a> Opt<'a> {
    fn parse(word: &'a OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let name = bytes.strip_prefix(b"-")?;
        if name.is_empty() {
            return None; // A lone dash is a word.
        }
        let name = name.strip_prefix(b"-").unwrap_or(name);
        let equals = name.iter().position(|&b| b == b'=');
        Some(Self {
            name: equals.map_or(name, |at| &name[..at]),
            value: equals.map(|at| OsStr::from_bytes(&name[at + 1..])),
        })
    }

    fn value(
        &self,
        with_value: &[&str],
        words: &mut std::slice::Iter<'a, OsString>,
    ) -> Option<&'a OsStr> {
        let takes_one = with_value.iter().any(|n| n.as_bytes() == self.name);
        self.value.or_else(|| {
            if takes_one {
                words.next().map(OsString::as_os_str)
            } else {
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Arguments {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        Arguments::parse(&words)
    }

    fn bundle(line: &str) -> Option<String> {
        parse(line)
            .create
            .map(|c| format!("{} {}", c.bundle.display(), c.container))
    }

    #[test]
    fn bundles() {
        for line in [
            "create --bundle /b id",
            "create --bundle=/b id",
            "create -b /b id",
            "create -b=/b id",
            "create -bundle /b id",
            "create id --bundle /b",
            "run -d --pid-file /p -b /b --no-pivot id",
            "--root create --log run --log-format json --systemd-cgroup create --bundle /b --console-socket /s id",
            "--root=/r --debug create --pid-file run --bundle /b -- id",
            "--cgroup-manager cgroupfs --log=/l create -b /b id",
        ] {
            assert_eq!(bundle(line).as_deref(), Some("/b id"), "{line}");
        }
        assert_eq!(bundle("create id").as_deref(), Some(" id"));
        assert_eq!(bundle("create -b /b -- -b").as_deref(), Some("/b -b"));
    }

    #[test]
    fn other_verbs_are_not_ours() {
        for line in [
            "",
            "--version",
            "state create",
            "delete --force run",
            "--root create state x",
            "features",
            "exec id create",
        ] {
            assert_eq!(parse(line).create, None, "{line}");
        }
    }

    #[test]
    fn log_options() {
        let arguments = parse("--log /l --log-format json create x");
        assert_eq!(arguments.log, Some("/l".into()));
        assert_eq!(arguments.log_format, LogFormat::Json);
        assert_eq!(
            parse("--log-format=text create x").log_format,
            LogFormat::Text
        );
        assert_eq!(parse("--log").log, None);
    }
}
