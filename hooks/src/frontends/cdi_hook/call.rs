//! The command line of `nvidia-cdi-hook`, as CDI specifications have it.

use std::ffi::OsString;

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt;

use crate::error::{Error, Result};
use crate::model::edits::{Compat, Link};

/// The commands, for error messages.
pub const VERBS: [&str; 6] = [
    "create-symlinks",
    "update-ldcache",
    "enable-cuda-compat",
    "disable-device-node-modification",
    "chmod",
    PROFILE,
];
/// New in version 1.20 of NVIDIA's toolkit. It writes settings for one of the driver's own
/// programs.
const PROFILE: &str = "update-application-profile";
/// The folder of newer libraries in NVIDIA's images.
const COMPAT_FOLDER: &str = "/usr/local/cuda/compat";

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub verb: Verb,
    /// A file with the state. `None`: standard input.
    pub state: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    CreateSymlinks(Vec<Link>),
    UpdateLdcache(Vec<String>),
    EnableCudaCompat(Compat),
    DisableDeviceNodeModification,
    Chmod {
        mode: u32,
        paths: Vec<String>,
    },
    UpdateApplicationProfile,
    /// No command, or one that this version does not know.
    Unsupported(Option<String>),
}

/// The options of a command.
#[derive(Default)]
struct Options {
    state: Option<String>,
    links: Vec<Link>,
    folders: Vec<String>,
    compat: Option<Compat>,
    mode: Option<u32>,
    paths: Vec<String>,
}

impl Call {
    /// Reads the words after the program's name. Errors: an unknown option of a known command, or
    /// an invalid value.
    pub fn parse(words: Vec<OsString>) -> Result<Self> {
        let mut parser = lexopt::Parser::from_args(words);
        let verb = match verb(&mut parser) {
            Some(verb) if VERBS.contains(&verb.as_str()) && verb != PROFILE => verb,
            // These do nothing, with any options.
            other => {
                let verb = match other {
                    Some(verb) if verb == PROFILE => Verb::UpdateApplicationProfile,
                    other => Verb::Unsupported(other),
                };
                return Ok(Self { verb, state: None });
            }
        };
        let options = Options::parse(parser, &verb)?;
        let missing = |option: &str| usage(&format!("{verb}: {option} is missing"));
        let parsed = match verb.as_str() {
            "create-symlinks" => Verb::CreateSymlinks(options.links),
            "update-ldcache" => Verb::UpdateLdcache(options.folders),
            "enable-cuda-compat" => {
                Verb::EnableCudaCompat(options.compat.unwrap_or_else(empty_compat))
            }
            "chmod" => Verb::Chmod {
                mode: options.mode.ok_or_else(|| missing("--mode"))?,
                paths: options.paths,
            },
            _ => Verb::DisableDeviceNodeModification,
        };
        Ok(Self {
            verb: parsed,
            state: options
                .state
                .filter(|file| !matches!(file.as_str(), "" | "-")),
        })
    }
}

fn verb(parser: &mut lexopt::Parser) -> Option<String> {
    loop {
        match parser.next() {
            // Options before the command change nothing here.
            Ok(Some(Long(_) | Short(_))) => _ = parser.optional_value(),
            Ok(Some(Value(verb))) => return Some(verb.to_string_lossy().into_owned()),
            Ok(None) => return None,
            // The value of an unknown option, which was just taken.
            Err(_) => {}
        }
    }
}

fn empty_compat() -> Compat {
    Compat {
        folder: COMPAT_FOLDER.to_owned(),
        driver: None,
        cuda: None,
    }
}

impl Options {
    fn parse(mut parser: lexopt::Parser, verb: &str) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next().map_err(|e| usage(&e))? {
            let Long(name) = argument else {
                return Err(usage(&format!("{verb}: {}", argument.unexpected())));
            };
            let name = name.to_owned();
            options.take(verb, &name, &mut parser)?;
        }
        Ok(options)
    }

    fn take(&mut self, verb: &str, name: &str, parser: &mut lexopt::Parser) -> Result<()> {
        let mut text = || -> Result<String> {
            let value = parser.value().map_err(|e| usage(&e))?;
            value.string().map_err(|e| usage(&e))
        };
        match (verb, name) {
            (_, "container-spec") => self.state = Some(text()?),
            (_, "debug" | "quiet") => {}
            ("create-symlinks", "link") => self.links.push(link(&text()?)?),
            ("update-ldcache", "folder") => self.folders.extend(folders(&text()?)?),
            // The cache is merged here: no program of the host or the image is run for it.
            ("update-ldcache", "ldconfig-path") => _ = text()?,
            ("enable-cuda-compat", "host-driver-version") => {
                self.compat().driver = version(name, text()?)?;
            }
            ("enable-cuda-compat", "host-cuda-version") => {
                self.compat().cuda = version(name, text()?)?;
            }
            ("enable-cuda-compat", "cuda-compat-container-root") => self.compat().folder = text()?,
            ("chmod", "mode") => {
                let mode = text()?;
                let number = u32::from_str_radix(mode.trim_start_matches("0o"), 8).ok();
                let number = number.filter(|mode| *mode <= 0o777);
                let known =
                    number.ok_or_else(|| usage(&format!("--mode {mode:?} is not a mode")))?;
                self.mode = Some(known);
            }
            ("chmod", "path") => self.paths.extend(list(&text()?)),
            _ => return Err(usage(&format!("{verb}: unknown option --{name}"))),
        }
        Ok(())
    }

    fn compat(&mut self) -> &mut Compat {
        self.compat.get_or_insert_with(empty_compat)
    }
}

/// Reads numbers with dots between them. An empty version is unknown.
fn version(option: &str, text: String) -> Result<Option<String>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if text.is_empty() || text.split('.').all(is_number) {
        return Ok(Some(text).filter(|text| !text.is_empty()));
    }
    Err(usage(&format!("--{option} {text:?} is not a version")))
}

/// Reads folders of the container. A relative folder would have no meaning.
fn folders(text: &str) -> Result<Vec<String>> {
    let found = list(text);
    if found.is_empty() {
        return Err(usage(&"--folder is empty"));
    }
    match found.iter().find(|folder| !folder.starts_with('/')) {
        Some(folder) => Err(usage(&format!(
            "--folder {folder:?} is not an absolute path"
        ))),
        None => Ok(found),
    }
}

/// Splits the values of an option at commas.
fn list(text: &str) -> Vec<String> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// Reads `TARGET::LINK`.
fn link(text: &str) -> Result<Link> {
    let mut parts = text.split("::");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(target), Some(path), None) if !target.is_empty() && !path.is_empty() => Ok(Link {
            path: path.to_owned(),
            target: target.to_owned(),
        }),
        _ => Err(usage(&format!("--link {text:?}: expected TARGET::LINK"))),
    }
}

fn usage(problem: &dyn std::fmt::Display) -> Error {
    Error::usage(problem.to_string()).resolve(format!("known commands are {}", VERBS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Verb> {
        let words = words.split_whitespace().map(Into::into).collect();
        Call::parse(words).map(|call| call.verb)
    }

    #[test]
    fn verbs_and_their_options() {
        let link = |target: &str, path: &str| Link {
            path: path.to_owned(),
            target: target.to_owned(),
        };
        let links = Verb::CreateSymlinks(vec![link("../x", "/a"), link("y", "/b")]);
        assert_eq!(
            parse("create-symlinks --link ../x::/a --link=y::/b"),
            Ok(links)
        );
        let folders = vec!["/a".to_owned(), "/b".to_owned(), "/c".to_owned()];
        let words = "update-ldcache --ldconfig-path @/sbin/ldconfig --folder /a --folder /b,/c";
        assert_eq!(parse(words), Ok(Verb::UpdateLdcache(folders)));
        let compat = Compat {
            driver: Some("535.1".to_owned()),
            ..empty_compat()
        };
        let words = "--debug enable-cuda-compat --host-driver-version=535.1 --host-cuda-version=";
        assert_eq!(parse(words), Ok(Verb::EnableCudaCompat(compat)));
        let chmod = Verb::Chmod {
            mode: 0o755,
            paths: vec!["/dev/dri".to_owned()],
        };
        assert_eq!(parse("chmod --mode 755 --path /dev/dri"), Ok(chmod));
        assert!(parse("disable-device-node-modification --container-spec -").is_ok());
    }

    #[test]
    fn options_that_every_verb_has() {
        let call = |words: &str| {
            let words = words.split_whitespace().map(Into::into).collect();
            let call = Call::parse(words).unwrap();
            (call.verb, call.state)
        };
        let none = Verb::DisableDeviceNodeModification;
        for (words, state) in [
            ("", None),
            ("--container-spec=", None),
            ("--container-spec -", None),
            ("--container-spec /a/state.json", Some("/a/state.json")),
            ("--quiet --debug --container-spec=-a", Some("-a")),
        ] {
            let words = format!("--quiet disable-device-node-modification {words}");
            assert_eq!(call(&words), (none.clone(), state.map(str::to_owned)));
        }
        // Any options are accepted after it.
        let profile = (Verb::UpdateApplicationProfile, None);
        assert_eq!(call("update-application-profile"), profile);
        assert_eq!(call("update-application-profile --folder x y"), profile);
    }

    /// A specification that a newer NVIDIA program wrote starts its containers.
    #[test]
    fn what_is_not_known_is_no_mistake() {
        for (words, expected) in [
            ("", None),
            ("--debug", None),
            ("--fly", None),
            ("fly", Some("fly")),
            ("fly --link a x", Some("fly")),
            ("-q --fly=x fly --container-spec /nowhere", Some("fly")),
        ] {
            let verb = Verb::Unsupported(expected.map(str::to_owned));
            assert_eq!(parse(words), Ok(verb), "{words}");
        }
    }

    #[test]
    fn modes_and_versions_up_to_their_limits() {
        for (mode, number) in [("0", 0), ("777", 0o777), ("0o644", 0o644), ("0755", 0o755)] {
            let chmod = Verb::Chmod {
                mode: number,
                paths: vec!["/a".to_owned(), "/b".to_owned()],
            };
            assert_eq!(
                parse(&format!("chmod --mode {mode} --path /a,/b,")),
                Ok(chmod)
            );
        }
        assert!(parse("chmod --mode 1000 --path /a").is_err());
        let compat = Compat {
            folder: "/opt/c".to_owned(),
            driver: None,
            cuda: Some("12.4".to_owned()),
        };
        let words = "enable-cuda-compat --host-driver-version= --host-cuda-version 12.4 --cuda-compat-container-root /opt/c";
        assert_eq!(parse(words), Ok(Verb::EnableCudaCompat(compat)));
        let usual = Verb::EnableCudaCompat(Compat {
            folder: "/usr/local/cuda/compat".to_owned(),
            driver: None,
            cuda: None,
        });
        assert_eq!(parse("enable-cuda-compat"), Ok(usual));
        assert_eq!(parse("update-ldcache"), Ok(Verb::UpdateLdcache(vec![])));
    }

    #[test]
    fn what_is_refused_names_the_known() {
        for (words, part) in [
            ("create-symlinks --link a", "expected TARGET::LINK"),
            ("create-symlinks --link a::b::c", "expected TARGET::LINK"),
            ("create-symlinks --link ::b", "expected TARGET::LINK"),
            ("create-symlinks --folder /a", "unknown option --folder"),
            ("create-symlinks x", "unexpected argument"),
            ("chmod --path /x", "--mode is missing"),
            ("chmod --mode 999", "is not a mode"),
            ("chmod --mode 4755", "is not a mode"),
            ("update-ldcache --folder", "missing argument"),
            ("update-ldcache --folder=", "--folder is empty"),
            ("update-ldcache --folder=,", "--folder is empty"),
            (
                "update-ldcache --folder /a,b/c",
                "\"b/c\" is not an absolute path",
            ),
            (
                "enable-cuda-compat --host-driver-version abc",
                "\"abc\" is not a version",
            ),
            (
                "enable-cuda-compat --host-driver-version=1..2",
                "\"1..2\" is not a version",
            ),
            (
                "enable-cuda-compat --host-cuda-version=12x",
                "\"12x\" is not a version",
            ),
        ] {
            let error = parse(words).unwrap_err().to_string();
            assert!(error.contains(part), "{words}: {error}");
            assert!(
                error.contains("known commands are create-symlinks, "),
                "{error}"
            );
        }
    }
}
