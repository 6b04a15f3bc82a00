//! The parts of an OCI runtime's command line that matter here: whether it makes a container, and
//! from which bundle.
//!
//! The line is passed on unchanged to runc, crun, youki, or a runtime that is newer than this
//! program. The forms that engines write are read alike by all of them: `--name VALUE`,
//! `--name=VALUE`, `-n VALUE`, and flags, with known names. In any other line that may make a
//! container, the bundle is ambiguous: the front end refuses it if a container that it may make has
//! a request.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const UNKNOWN: &str = "it has an option that is unknown, cut off or joined with its value";
const NAME: &str = "runc, crun and youki want exactly one name for a container";
const ORDER: &str = "crun restores without the options behind the container's name";

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
    /// The bundles from which a runtime may make a container, the likeliest first. Empty without an
    /// ambiguity: this line makes no container.
    pub creates: Vec<Create>,
    /// Why runtimes may read the line differently. Without bundles, nobody knows what they take.
    pub ambiguity: Option<&'static str>,
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
        let mut arguments = Self::default();
        let mut names = GLOBAL;
        let (mut bundle, mut config): (&OsStr, Option<&OsStr>) = (OsStr::new(""), None);
        let mut operands: Vec<&OsStr> = Vec::new();
        let (mut is_known, mut is_restore, mut is_in_order) = (true, false, true);
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if word == "--" && names == CREATE {
                operands.extend(rest.by_ref().map(OsString::as_os_str));
            } else if !is_option(word) {
                if names == CREATE {
                    operands.push(word);
                } else if is_creating(word) {
                    names = CREATE;
                    is_restore = word == "restore";
                } else {
                    break;
                }
            } else if let Some((meaning, value)) = option(names, word) {
                is_in_order &= operands.is_empty();
                let value = match meaning {
                    Meaning::Flag => continue,
                    _ => value.or_else(|| rest.next().map(OsString::as_os_str)),
                };
                match (meaning, value) {
                    (_, None) => is_known = false,
                    (Meaning::Bundle, Some(value)) => bundle = value,
                    (Meaning::Config, _) => config = value,
                    (Meaning::Log, Some(value)) => arguments.log = Some(value.into()),
                    (Meaning::Format, Some(value)) => {
                        let is_json = value == "json";
                        arguments.log_format =
                            if is_json { LogFormat::Json } else { LogFormat::Text };
                    }
                    _ => {}
                }
            } else {
                is_known = false;
            }
        }
        if names != CREATE && (is_known || !words.iter().any(|word| is_creating(word))) {
            return arguments;
        }
        let container = operands.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let why = [
            (!is_known, UNKNOWN),
            (operands.len() != 1, NAME),
            (is_restore && !is_in_order, ORDER),
        ];
        arguments.ambiguity = why.iter().find(|(holds, _)| *holds).map(|(_, why)| *why);
        if arguments.ambiguity.is_none() {
            arguments.creates = creates(bundle, config, &container);
        } else {
            for bundle in candidates(words) {
                arguments.creates.extend(creates(bundle, None, &container));
            }
        }
        arguments
    }
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes().starts_with(b"-")
}

fn is_creating(word: &OsStr) -> bool {
    CREATING.iter().any(|name| word == *name)
}

/// The meaning of a known option, and its value if it is in the same word.
fn option<'a>(names: &Names, word: &'a OsStr) -> Option<(Meaning, Option<&'a OsStr>)> {
    let bytes = word.as_bytes();
    let (name, value) = match bytes.strip_prefix(b"--") {
        Some(long) if long.len() > 1 => match long.iter().position(|byte| *byte == b'=') {
            Some(at) => (&long[..at], Some(OsStr::from_bytes(&long[at + 1..]))),
            None => (long, None),
        },
        _ if bytes.len() == 2 => (&bytes[1..], None),
        _ => return None,
    };
    let has_name = |known: &str| known.split(' ').any(|known| known.as_bytes() == name);
    let (meaning, _) = names.iter().find(|(_, known)| has_name(known))?;
    (value.is_none() || *meaning != Meaning::Flag).then_some((*meaning, value))
}

/// The configs of a bundle that a runtime may take. `config` is the value of crun's `--config`.
fn creates(bundle: &OsStr, config: Option<&OsStr>, container: &str) -> Vec<Create> {
    let bundle = PathBuf::from(bundle);
    let own = OsStr::new("config.json");
    let configs = match config {
        // crun starts from the current folder. A runtime that enters the bundle first doesn't.
        Some(name) if name != own => vec![PathBuf::from(name), bundle.join(name)],
        _ => vec![bundle.join(own)],
    };
    let of = |config| Create { bundle: bundle.clone(), config, container: container.to_owned() };
    configs.into_iter().map(of).collect()
}

/// Every bundle that an ambiguous line may name, the current folder last. None: an option of it
/// could be another form of `--bundle` or `--config`.
fn candidates(words: &[OsString]) -> Vec<&OsStr> {
    let mut found = vec![OsStr::new("")];
    for (at, word) in words.iter().enumerate().filter(|(_, word)| is_option(word)) {
        let name = word.as_bytes().strip_prefix(b"--").unwrap_or_default();
        let known = option(CREATE, word).or_else(|| option(GLOBAL, word));
        match known {
            Some((Meaning::Bundle, value)) => {
                let next = words.get(at + 1).map(OsString::as_os_str);
                found.extend(value.or(next));
            }
            Some((Meaning::Config, _)) => return Vec::new(),
            None if word != "--" && may_name_a_file(name) => return Vec::new(),
            _ => {}
        }
    }
    found.reverse();
    found
}

/// True for letters behind one dash, and for names that crun or runc take for a longer one.
fn may_name_a_file(name: &[u8]) -> bool {
    let name = name.split(|byte| *byte == b'=').next().unwrap_or_default();
    ["bundle", "config", "f"].iter().any(|known| known.as_bytes().starts_with(name))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Bundle,
    Config,
    Log,
    Format,
    /// Takes a value that doesn't matter.
    Value,
    Flag,
}

/// Names with blanks between them, and their meaning. Those of one letter are short options, all
/// others long ones.
type Names = [(Meaning, &'static str)];

/// Options before the command.
const GLOBAL: &Names = &[
    (Meaning::Log, "log l"),
    (Meaning::Format, "log-format"),
    (Meaning::Value, "log-level root r criu rootless cgroup-manager"),
    (Meaning::Flag, "debug systemd-cgroup help h ? usage version v V"),
];

/// Options of `create`, `run` and `restore`.
const CREATE: &Names = &[
    (Meaning::Bundle, "bundle b"),
    (Meaning::Config, "config f"),
    (Meaning::Value, "console-socket c pid-file p pidfd-socket preserve-fds image-path work-path"),
    (Meaning::Value, "parent-path manage-cgroups-mode empty-ns lsm-profile lsm-mount-context"),
    (Meaning::Flag, "detach d keep no-pivot no-subreaper no-new-keyring tcp-established"),
    (Meaning::Flag, "ext-unix-sk shell-job file-locks auto-dedup lazy-pages help h ? usage"),
];

const CREATING: [&str; 3] = ["create", "run", "restore"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Arguments {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        Arguments::parse(&words)
    }

    /// The bundles of a line, as `CONFIG CONTAINER`; "?" where they are ambiguous.
    fn made(line: &str) -> Vec<String> {
        let arguments = parse(line);
        let ambiguity = arguments.ambiguity.map(|_| "?".to_owned());
        let creates = arguments.creates.iter();
        let creates = creates.map(|c| format!("{} {}", c.config.display(), c.container));
        creates.chain(ambiguity).collect()
    }

    #[test]
    fn a_line_has_its_bundles_or_none_or_is_ambiguous() {
        let b = &["/b/config.json id"][..];
        for (line, expected) in [
        ("create --bundle /b id", b),
        ("create --bundle=/b id", b),
        ("create id --bundle /b", b),
        ("create --bundle /a --bundle /b id", b),
        ("restore --image-path=/i --manage-cgroups-mode soft --empty-ns network --bundle=/b id", b),
        ("run -d --pid-file /p -b /b --no-pivot id", b),
        ("--root create --log run --log-format json --systemd-cgroup create -b /b id", b),
        ("--root=/r --debug create --pid-file run --bundle /b -- id", b),
        ("-l /l -r /r create -b /b id", b), // youki
        ("create id", &["config.json id"]),
        ("create --bundle= id", &["config.json id"]),
        ("create -b /b -- -b", &["/b/config.json -b"]),
        ("run -b /b -f c.json id", &["c.json id", "/b/c.json id"]),
        ("run -b /b --config config.json id", b),
        // Commands that make no container, whatever follows.
        ("", &[]),
        ("--version", &[]),
        ("state create", &[]),
        ("--root create state x", &[]),
        ("exec id create", &[]),
        ("--log", &[]),
        ("--new state x", &[]),
        ("unheard-of --bundle /b create", &[]),
        // Unknown options: what the line may name.
        ("create --new --bundle /b id", &["/b/config.json id", "config.json id", "?"]),
        ("create --new=value --bundle=/b id", &["/b/config.json id", "config.json id", "?"]),
        ("--new value create --bundle /b id", &["/b/config.json ", "config.json ", "?"]),
        ("--new create state x", &["config.json state", "?"]),
        ("create", &["config.json ", "?"]),
        ("create --bundle /b one two", &["/b/config.json one", "config.json one", "?"]),
        ("restore id --bundle=/b", &["/b/config.json id", "config.json id", "?"]),
        ("restore id --detach", &["config.json id", "?"]),
        // What hides a bundle.
        ("create -b/b id", &["?"]),
        ("create -b=/b id", &["?"]),
        ("create -bundle /b id", &["?"]),
        ("create --bund=/b id", &["?"]),
        ("run -db/b id", &["?"]),
        ("run --new --config /c id", &["?"]),
        ("-x create --bundle /b id", &["?"]),
    ] {
        assert_eq!(made(line), expected, "{line}");
    }
    }

    #[test]
    fn log_options() {
        for line in [
            "--log /l --log-format json create x",
            "-l /l --log-format=json create",
            "--log /k --log /l --log-format=json state x",
        ] {
            let arguments = parse(line);
            assert_eq!(arguments.log, Some("/l".into()), "{line}");
            assert_eq!(arguments.log_format, LogFormat::Json, "{line}");
        }
        let text = parse("--log-format json --log-format=text create x");
        assert_eq!(text.log_format, LogFormat::Text);
        assert_eq!(parse("--log").log, None);
    }
}
