//! The options of `nvidia-ctk cdi`, and the variables that can replace them. An option overrides
//! its variable, and an empty variable does not count.
//!
//! Source: <https://github.com/NVIDIA/nvidia-container-toolkit/tree/main/cmd/nvidia-ctk/cdi>

use std::path::{Path, PathBuf};

use lexopt::Arg::{Long, Short};
use lexopt::ValueExt;

use super::usage;
use crate::apply::cdi::gpu::modes::Mode;
use crate::apply::cdi::gpu::Naming;
use crate::cli::go_flags::truth;
use crate::config::cdi::Syntax;
use crate::config::settings::{self, Settings};
use crate::error::Result;

/// An option: its names, with the usual one first, and its variable.
type Known = (&'static [&'static str], Option<&'static str>);

const GENERATE: &[Known] = &[
    (&["output"], Some("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH")),
    (&["format"], Some("NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT")),
    (
        &["mode", "discovery-mode"],
        Some("NVIDIA_CTK_CDI_GENERATE_MODE"),
    ),
    (
        &["device-name-strategy"],
        Some("NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES"),
    ),
    (
        &["vendor", "cdi-vendor"],
        Some("NVIDIA_CTK_CDI_GENERATE_VENDOR"),
    ),
    (
        &["class", "cdi-class"],
        Some("NVIDIA_CTK_CDI_GENERATE_CLASS"),
    ),
    (
        &["disable-hook", "disable-hooks"],
        Some("NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"),
    ),
    (
        &["enable-hook", "enable-hooks"],
        Some("NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS"),
    ),
    (
        &["no-all-device"],
        Some("NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE"),
    ),
    (
        &["device-id", "device-ids", "device", "devices"],
        Some("NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS"),
    ),
    // Options that NVIDIA's program does not have.
    (&["root"], None),
    (&["config-dir"], None),
    // Options that change nothing here, see `UNUSED`.
    (
        &["config-search-path"],
        Some("NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS"),
    ),
    (
        &["csv.compat-container-root"],
        Some("NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT"),
    ),
    (&["csv.file"], Some("NVIDIA_CTK_CDI_GENERATE_CSV_FILES")),
    (
        &["csv.ignore-pattern"],
        Some("NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS"),
    ),
    (&["dev-root"], Some("NVIDIA_CTK_DEV_ROOT")),
    (&["driver-root"], Some("NVIDIA_CTK_DRIVER_ROOT")),
    (
        &["feature-flag", "feature-flags"],
        Some("NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS"),
    ),
    (
        &["ldconfig-path"],
        Some("NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH"),
    ),
    (
        &["library-search-path"],
        Some("NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS"),
    ),
    (
        &["nvidia-cdi-hook-path", "nvidia-ctk-path"],
        Some("NVIDIA_CTK_CDI_HOOK_PATH"),
    ),
];
/// Options that are read and change nothing: the vendor file has the paths of the driver.
const UNUSED: [&str; 10] = [
    "config-search-path",
    "csv.compat-container-root",
    "csv.file",
    "csv.ignore-pattern",
    "dev-root",
    "driver-root",
    "feature-flag",
    "ldconfig-path",
    "library-search-path",
    "nvidia-cdi-hook-path",
];
const LIST: &[Known] = &[
    (&["spec-dir"], Some("NVIDIA_CTK_CDI_SPEC_DIRS")),
    (&["json"], None),
    (&["root"], None),
    (&["config-dir"], None),
];
const TRANSFORM: &[Known] = &[
    (&["from"], None),
    (&["to"], None),
    (&["relative-to"], None),
    (&["input"], None),
    (&["output"], None),
    (&["format"], None),
];
/// Options that may stand without a value.
const FLAGS: [&str; 2] = ["json", "no-all-device"];
/// Options that elsewhere stand before the command. They change nothing here.
const IGNORED: [&str; 2] = ["debug", "quiet"];

/// The command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Generate,
    List,
    Transform,
}

impl Verb {
    pub fn words(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::List => "list",
            Self::Transform => "transform root",
        }
    }

    fn known(self) -> &'static [Known] {
        match self {
            Self::Generate => GENERATE,
            Self::List => LIST,
            Self::Transform => TRANSFORM,
        }
    }
}

// Each is an option of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Default)]
pub struct Options {
    root: Option<PathBuf>,
    config_dir: Option<PathBuf>,
    pub output: Option<PathBuf>,
    pub input: Option<PathBuf>,
    format: Option<Syntax>,
    pub mode: Option<Mode>,
    pub namings: Vec<Naming>,
    pub vendor: Option<String>,
    pub class: Option<String>,
    pub ids: Vec<String>,
    pub without_all: bool,
    pub disabled_hooks: Vec<String>,
    pub enabled_hooks: Vec<String>,
    pub folders: Vec<PathBuf>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub in_container: bool,
    pub json: bool,
    pub help: bool,
    /// Options and variables that change nothing, as the user wrote them.
    pub unused: Vec<String>,
}

impl Options {
    /// Reads the words after a command; `get` reads a variable. Errors: an unknown option, or an
    /// invalid value, with the name of its option or variable.
    pub fn parse(
        verb: Verb,
        mut parser: lexopt::Parser,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let mut options = Self::default();
        let mut given = Vec::new();
        while let Some(argument) = parser.next().map_err(|e| usage(&e))? {
            let name = match argument {
                Short('h') | Long("help") => {
                    options.help = true;
                    continue;
                }
                Long(name) if IGNORED.contains(&name) => continue,
                Long(name) => name.to_owned(),
                other => return Err(usage(&other.unexpected())),
            };
            let known = verb.known().iter().find(|(n, _)| n.contains(&&*name));
            let Some((names, _)) = known else {
                return Err(usage(&format!("unknown option --{name}")));
            };
            let value = if FLAGS.contains(&names[0]) {
                parser.optional_value().unwrap_or_else(|| "true".into())
            } else {
                parser.value().map_err(|e| usage(&e))?
            };
            let value = value.string().map_err(|e| usage(&e))?;
            options.take(names[0], &format!("--{name}"), &value)?;
            given.push(names[0]);
        }
        for (names, variable) in verb.known() {
            let Some(variable) = variable.filter(|_| !given.contains(&names[0])) else {
                continue;
            };
            if let Some(value) = get(variable).filter(|value| !value.is_empty()) {
                options.take(names[0], variable, &value)?;
            }
        }
        Ok(options)
    }

    /// Takes a value. `by` is the option or variable, as the user wrote it.
    fn take(&mut self, name: &'static str, by: &str, value: &str) -> Result<()> {
        let wrong = |known: &str| usage(&format!("{by} {value:?}: known are {known}"));
        // An empty path would be the working folder.
        let path = |value: &str| match value {
            "" => Err(usage(&format!("{by} is empty"))),
            value => Ok(Some(PathBuf::from(value))),
        };
        let list = || words(value).map(str::to_owned);
        match name {
            // Mounts begin with it, and engines resolve these somewhere else.
            "root" => {
                let root = path(value)?.map(std::path::absolute).transpose();
                self.root = root.map_err(|e| usage(&format!("{by}: {e}")))?;
            }
            "config-dir" => self.config_dir = path(value)?,
            "output" if matches!(value, "" | "-") => self.output = None,
            "output" => self.output = path(value)?,
            "input" if value == "-" => self.input = None,
            "input" => self.input = path(value)?,
            "spec-dir" => {
                for folder in value.split(',') {
                    self.folders.extend(path(folder.trim())?);
                }
            }
            "format" if value.is_empty() => self.format = None,
            "format" => {
                let syntax = format(value).ok_or_else(|| wrong("yaml and json"))?;
                self.format = Some(syntax);
            }
            "device-name-strategy" => {
                let namings: Option<Vec<_>> = words(value).map(Naming::parse).collect();
                let namings = namings.ok_or_else(|| wrong("index, uuid and type-index"))?;
                self.namings.extend(namings);
            }
            "mode" => self.mode = Some(Mode::parse(value).ok_or_else(|| wrong(Mode::WORDS))?),
            "vendor" => self.vendor = Some(value.to_owned()),
            "class" => self.class = Some(value.to_owned()),
            "device-id" => self.ids.extend(list()),
            "no-all-device" => {
                self.without_all = truth(value).ok_or_else(|| wrong("true, false"))?;
            }
            "json" => self.json = truth(value).ok_or_else(|| wrong("true, false"))?,
            "disable-hook" => self.disabled_hooks.extend(list()),
            "enable-hook" if words(value).any(|hook| hook == "all") => {
                return Err(usage(&format!("{by} all: name each hook")));
            }
            "enable-hook" => self.enabled_hooks.extend(list()),
            "from" => self.from = Some(value.to_owned()),
            "to" => self.to = Some(value.to_owned()),
            "relative-to" => match value {
                "host" => self.in_container = false,
                "container" => self.in_container = true,
                _ => return Err(wrong("host and container")),
            },
            unused if UNUSED.contains(&unused) => self.unused.push(by.to_owned()),
            _ => return Err(usage(&format!("unknown option {by}"))),
        }
        Ok(())
    }

    pub fn settings(&self) -> Result<Settings> {
        let mut settings = settings::load(None).sound()?;
        if let Some(root) = &self.root {
            settings.root.clone_from(root);
            settings.config_dir = settings::beneath(root, settings::DEFAULT_CONFIG_DIR);
        }
        if let Some(folder) = &self.config_dir {
            settings.config_dir.clone_from(folder);
        }
        Ok(settings)
    }

    /// The requested syntax, else that of the output's name, else YAML.
    pub fn syntax(&self) -> Syntax {
        let name = self.output.as_deref().and_then(Path::to_str);
        self.format
            .or_else(|| name.and_then(Syntax::of))
            .unwrap_or(Syntax::Yaml)
    }
}

/// The usual name of every option.
#[cfg(test)]
pub fn usual_names() -> impl Iterator<Item = &'static str> {
    let all = [GENERATE, LIST, TRANSFORM].into_iter().flatten();
    all.map(|(names, _)| names[0])
}

/// The syntax that a word stands for. `None`: the word is unknown.
fn format(word: &str) -> Option<Syntax> {
    match word.to_ascii_lowercase().as_str() {
        "yaml" => Some(Syntax::Yaml),
        "json" => Some(Syntax::Json),
        _ => None,
    }
}

fn words(value: &str) -> impl Iterator<Item = &str> {
    value
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests;
