//! Reads the values of NVIDIA's `config.toml`, key by key.

use toml::Value;

use super::tables::{Kind, WITHOUT_MEANING, WITH_MEANING};
use super::{Compat, Config, Mode, CAPABILITIES};
use crate::config::cdi::name::is_kind;
use crate::config::settings::{path, runtimes, string};
use crate::log::level::Level;

/// Why a key of the file changes nothing here. `None`: the key has a meaning, or is unknown.
pub fn without_meaning(key: &str) -> Option<&'static str> {
    let mut keys = WITHOUT_MEANING.iter();
    keys.find(|(name, ..)| *name == key).map(|(.., why)| *why)
}

/// True for a key of NVIDIA's file, and for a table of such keys.
pub fn is_known(key: &str) -> bool {
    WITH_MEANING.contains(&key) || without_meaning(key).is_some() || is_table(key)
}

/// True if this key is a table.
pub(super) fn is_table(key: &str) -> bool {
    let below = |name: &&str| {
        let rest = name.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    let all = WITHOUT_MEANING.iter().map(|(name, ..)| *name);
    all.chain(WITH_MEANING).any(|name| below(&name))
}

/// The result of one key.
pub(super) enum Taken {
    Done,
    /// The value has another effect than in NVIDIA's program.
    Warning(String),
    Unknown,
}

/// Takes one value over. Errors: it has the wrong type, or is a word that NVIDIA's program does not
/// know either.
pub(super) fn set(config: &mut Config, key: &str, value: &Value) -> Result<Taken, String> {
    match key {
        "disable-require" => config.disable_require = flag(value)?,
        "swarm-resource" => config.swarm_resources = words(string(value)?),
        "accept-nvidia-visible-devices-envvar-when-unprivileged" => {
            config.environment_when_unprivileged = flag(value)?;
        }
        "accept-nvidia-visible-devices-as-volume-mounts" => config.volume_mounts = flag(value)?,
        "supported-driver-capabilities" => config.capabilities = capabilities(string(value)?)?,
        "nvidia-container-cli.no-cgroups" => config.no_cgroups = flag(value)?,
        "nvidia-container-runtime-hook.path" => name(string(value)?, &mut config.hook),
        "nvidia-container-runtime-hook.skip-mode-detection" => {
            config.hook_acts_always = flag(value)?;
        }
        "features.disable-cuda-compat-lib-hook" => {
            if flag(value)? {
                config.compat = Compat::Disabled;
            }
        }
        "features.ignore-imex-channel-requests" => config.ignore_imex = flag(value)?,
        "features.no-additional-gids-for-device-nodes" => config.no_groups = flag(value)?,
        _ => match key.strip_prefix("nvidia-container-runtime.") {
            Some(rest) if WITH_MEANING.contains(&key) => return set_runtime(config, rest, value),
            _ => return check_idle(key, value),
        },
    }
    Ok(Taken::Done)
}

fn set_runtime(config: &mut Config, key: &str, value: &Value) -> Result<Taken, String> {
    match key {
        "debug" => return debug(config, string(value)?),
        "log-level" => return Ok(log_level(config, string(value)?)),
        "runtimes" => config.runtimes = Some(runtimes(value)?),
        "mode" => config.mode = mode(string(value)?)?,
        // These two keys select a mode together, see `reader`.
        "experimental" => _ = flag(value)?,
        "discover-mode" => _ = discover_mode(string(value)?)?,
        "modes.csv.mount-spec-path" => config.csv_folder = path(value)?,
        "modes.cdi.default-kind" => config.cdi_kind = kind(string(value)?)?,
        "modes.cdi.annotation-prefixes" => config.cdi_prefixes = texts(value)?,
        "modes.cdi.spec-dirs" => {
            let folders = value
                .as_array()
                .ok_or_else(|| expected("a list of strings", value))?;
            config.cdi_folders = folders.iter().map(path).collect::<Result<_, _>>()?;
        }
        "modes.jit-cdi.nvcdi-disable-hooks" => config.disabled_hooks = texts(value)?,
        "modes.legacy.cuda-compat-mode" => return compat(config, string(value)?),
        _ => return Ok(Taken::Unknown),
    }
    Ok(Taken::Done)
}

/// Checks a key that changes nothing. It must have the type that NVIDIA's program expects.
fn check_idle(key: &str, value: &Value) -> Result<Taken, String> {
    let Some((_, kind, _)) = WITHOUT_MEANING.iter().find(|(name, ..)| *name == key) else {
        return Ok(Taken::Unknown);
    };
    match kind {
        Kind::Flag => _ = flag(value)?,
        Kind::Text => _ = string(value)?,
        Kind::Texts => _ = texts(value)?,
    }
    Ok(Taken::Done)
}

pub(super) fn flag(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| expected("true or false", value))
}

fn texts(value: &Value) -> Result<Vec<String>, String> {
    let items = value
        .as_array()
        .ok_or_else(|| expected("a list of strings", value))?;
    items
        .iter()
        .map(|item| string(item).map(str::to_owned))
        .collect()
}

fn expected(what: &str, value: &Value) -> String {
    format!("expected {what}, found {}", value.type_str())
}

/// Splits a list at commas.
fn words(text: &str) -> Vec<String> {
    let words = text.split(',').map(str::trim);
    words.filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// An empty name leaves the default.
fn name(text: &str, name: &mut String) {
    if !text.is_empty() {
        text.clone_into(name);
    }
}

fn capabilities(text: &str) -> Result<Vec<String>, String> {
    let words = words(text);
    if words.iter().any(|word| word == "all") {
        return Ok(CAPABILITIES.map(str::to_owned).into());
    }
    let unknown = words.iter().find(|w| !CAPABILITIES.contains(&w.as_str()));
    match unknown {
        Some(word) => Err(format!(
            "unknown capability {word:?}; known are all, {}",
            CAPABILITIES.join(", ")
        )),
        None => Ok(words),
    }
}

fn debug(config: &mut Config, text: &str) -> Result<Taken, String> {
    // NVIDIA's default is /dev/null.
    if text.is_empty() || text == "/dev/null" {
        config.log_file = None;
        return Ok(Taken::Done);
    }
    config.log_file = Some(path(&Value::String(text.to_owned()))?);
    Ok(Taken::Done)
}

/// Reads a level of Go's logrus, in upper or lower case.
fn log_level(config: &mut Config, word: &str) -> Taken {
    let known = match word.to_ascii_lowercase().as_str() {
        "panic" => Some(Level::Emergency),
        "fatal" => Some(Level::Critical),
        "error" => Some(Level::Error),
        "warn" | "warning" => Some(Level::Warning),
        "info" => Some(Level::Info),
        "debug" | "trace" => Some(Level::Debug),
        _ => None,
    };
    config.log_level = Some(known.unwrap_or(Level::Info));
    if known.is_some() {
        return Taken::Done;
    }
    Taken::Warning(format!(
        "unknown level {word:?}, info counts; known are panic, fatal, error, warning, info, debug, trace"
    ))
}

fn mode(word: &str) -> Result<Mode, String> {
    match word {
        "auto" | "" => Ok(Mode::Auto),
        "legacy" => Ok(Mode::Legacy),
        "csv" => Ok(Mode::Csv),
        "cdi" => Ok(Mode::Cdi),
        "jit-cdi" => Ok(Mode::JitCdi),
        _ => Err(format!(
            "invalid mode {word:?}; known are auto, legacy, csv, cdi, jit-cdi"
        )),
    }
}

/// Reads a discover mode, of which there were three.
pub(super) fn discover_mode(word: &str) -> Result<Mode, String> {
    match word {
        "auto" | "legacy" | "csv" => mode(word),
        _ => Err(format!(
            "invalid discover mode {word:?}; known are auto, legacy, csv"
        )),
    }
}

fn kind(text: &str) -> Result<String, String> {
    if is_kind(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a kind of CDI, like nvidia.com/gpu"
    ))
}

fn compat(config: &mut Config, word: &str) -> Result<Taken, String> {
    let chosen = match word {
        "ldconfig" | "hook" | "mount" | "" => Compat::LibraryCache,
        "disabled" => Compat::Disabled,
        _ => {
            return Err(format!(
                "unknown word {word:?}; known are ldconfig, mount, disabled, hook"
            ))
        }
    };
    // `features.disable-cuda-compat-lib-hook` overrides this key.
    if config.compat != Compat::Disabled {
        config.compat = chosen;
    }
    if word != "mount" {
        return Ok(Taken::Done);
    }
    Ok(Taken::Warning(
        "an image's files are never mounted: its compatibility libraries come into the library cache, as with \"ldconfig\"".to_owned(),
    ))
}
