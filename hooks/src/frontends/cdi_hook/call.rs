//! The command line of `nvidia-cdi-hook`, as CDI specifications have it.

use std::ffi::OsString;

use crate::error::Result;
use crate::model::edits::{Compat, Link};
use crate::spec::options::{flag, value, Opt, ParsedArgs};

/// The commands, for error messages.
pub const VERBS: [&str; 7] = [
    "create-symlinks",
    DIRECTORIES,
    "update-ldcache",
    "enable-cuda-compat",
    "disable-device-node-modification",
    "chmod",
    PROFILE,
];
/// New in version 1.20 of NVIDIA's toolkit. It writes settings for one of the driver's own
/// programs.
const PROFILE: &str = "update-application-profile";
/// Not a command of NVIDIA's. Our own specifications have it for directories that no mount makes.
const DIRECTORIES: &str = "create-directories";
/// The folder of newer libraries in NVIDIA's images.
const COMPAT_FOLDER: &str = "/usr/local/cuda/compat";

/// A command with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    CreateSymlinks(Vec<Link>),
    CreateDirectories(Vec<String>),
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

/// Makes a command of its options. Errors: a value is wrong.
type Make = fn(&ParsedArgs) -> Result<Verb>;

/// The options of every command.
const COMMON: [Opt; 3] = [value(&["container-spec"]), flag(&["debug"]), flag(&["quiet"])];

/// The command, and a file with the state. Errors: an unknown option of a known command, or an
/// invalid value.
pub fn parse(words: &[OsString]) -> Result<(Verb, Option<String>)> {
    let hint = || format!("known commands are {}", VERBS.join(", "));
    read(words).map_err(|error| error.resolve(hint()))
}

fn read(line: &[OsString]) -> Result<(Verb, Option<String>)> {
    // Options before the command change nothing here.
    let is_verb = |word: &&OsString| !word.as_encoded_bytes().starts_with(b"-");
    let verb = line.iter().find(is_verb).map(|word| word.to_string_lossy());
    let verb = verb.unwrap_or_default();
    let (own, make): (&[Opt], Make) = match &*verb {
        "create-symlinks" => (&[value(&["link"])], |it| links(it).map(Verb::CreateSymlinks)),
        DIRECTORIES => (&[value(&["path"])], |it| Ok(Verb::CreateDirectories(it.list("path")))),
        // The cache is merged here: no program of the host or the image is run for it.
        "update-ldcache" => (&[value(&["folder"]), value(&["ldconfig-path"])], |it| {
            folders(it).map(Verb::UpdateLdcache)
        }),
        "enable-cuda-compat" => (COMPAT, |it| compat(it).map(Verb::EnableCudaCompat)),
        "chmod" => (&[value(&["mode"]), value(&["path"])], |it| {
            Ok(Verb::Chmod { mode: mode(it)?, paths: it.list("path") })
        }),
        "disable-device-node-modification" => (&[], |_| Ok(Verb::DisableDeviceNodeModification)),
        // These do nothing, with any options.
        PROFILE => return Ok((Verb::UpdateApplicationProfile, None)),
        "" => return Ok((Verb::Unsupported(None), None)),
        other => return Ok((Verb::Unsupported(Some(other.to_owned())), None)),
    };
    let at = line.iter().position(|word| **word == *verb).unwrap_or_default();
    let words = ParsedArgs::of(&verb, ["nvidia-cdi-hook", ""]);
    let options = [&COMMON[..], own].concat();
    let words = words.all(&line[at + 1..], &options)?;
    words.no_operands()?;
    let state = words.value("container-spec").filter(|file| !matches!(*file, "" | "-"));
    Ok((make(&words)?, state.map(str::to_owned)))
}

const COMPAT: &[Opt] = &[
    value(&["host-driver-version"]),
    value(&["host-cuda-version"]),
    value(&["cuda-compat-container-root"]),
];

fn compat(words: &ParsedArgs) -> Result<Compat> {
    Ok(Compat {
        folder: words.value("cuda-compat-container-root").unwrap_or(COMPAT_FOLDER).to_owned(),
        driver: version(words, "host-driver-version")?,
        cuda: version(words, "host-cuda-version")?,
    })
}

/// Reads numbers with dots between them. An empty version is unknown.
fn version(words: &ParsedArgs, option: &str) -> Result<Option<String>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match words.value(option) {
        None | Some("") => Ok(None),
        Some(text) if text.split('.').all(is_number) => Ok(Some(text.to_owned())),
        Some(text) => Err(words.wrong(&format!("--{option} {text:?} is not a version"))),
    }
}

fn mode(words: &ParsedArgs) -> Result<u32> {
    let text = words.value("mode").ok_or_else(|| words.wrong("--mode is missing"))?;
    let number = u32::from_str_radix(text.trim_start_matches("0o"), 8).ok();
    let number = number.filter(|mode| *mode <= 0o777);
    number.ok_or_else(|| words.wrong(&format!("--mode {text:?} is not a mode")))
}

/// Reads folders of the container. A relative folder would have no meaning.
fn folders(words: &ParsedArgs) -> Result<Vec<String>> {
    let is_empty = |value: &str| value.split(',').all(str::is_empty);
    if words.each("folder").any(|given| is_empty(&given.value)) {
        return Err(words.wrong("--folder is empty"));
    }
    let found = words.list("folder");
    match found.iter().find(|folder| !folder.starts_with('/')) {
        Some(folder) => Err(words.wrong(&format!("--folder {folder:?} is not an absolute path"))),
        None => Ok(found),
    }
}

/// Reads each `TARGET::LINK`.
fn links(words: &ParsedArgs) -> Result<Vec<Link>> {
    let link = |text: &String| {
        let parts: Vec<&str> = text.split("::").collect();
        match parts.as_slice() {
            [target, path] if !target.is_empty() && !path.is_empty() => {
                Ok(Link { path: (*path).to_owned(), target: (*target).to_owned() })
            }
            _ => Err(words.wrong(&format!("--link {text:?}: expected TARGET::LINK"))),
        }
    };
    words.each("link").map(|given| link(&given.value)).collect()
}
