//! The keys of NVIDIA's `config.toml`, in one table: what each changes, or why it changes nothing.
//! Source: NVIDIA's container toolkit, `api/config/v1/config.go`.

use toml_edit::Value;
use Key::{Gated, Idle, Sets};

use crate::config::cdi::is_kind;
use crate::config::nvidia::{Compat, NvidiaConfig, RuntimeMode, CAPABILITIES};
use crate::config::settings::{boolean, list, path, runtimes, string, text};
use crate::host::gated_devices::GATED;
use crate::log::Level;
use crate::model::request::by_word;

/// What a value does. Errors: it has the wrong type, or is a word that NVIDIA's program does not
/// know either. `Some`: a warning, because it has another effect than in NVIDIA's program.
type Taken = Result<Option<String>, String>;

#[derive(Clone, Copy)]
enum Key {
    Sets(fn(&mut NvidiaConfig, &Value) -> Taken),
    /// The type that NVIDIA's program expects, and why the value changes nothing here.
    Idle(fn(&Value) -> Result<(), String>, &'static str),
    /// Changes nothing either: this variable gives a container the nodes.
    Gated(&'static str),
}

const FLAG: fn(&Value) -> Result<(), String> = |v| boolean(v).map(drop);
const TEXT: fn(&Value) -> Result<(), String> = |v| string(v).map(drop);
const TEXTS: fn(&Value) -> Result<(), String> = |v| list(v, text).map(drop);

#[rustfmt::skip]
const KEYS: &[(&str, Key)] = &[
    ("disable-require", Sets(|c, v| put(&mut c.disable_require, boolean(v)))),
    ("swarm-resource", Sets(|c, v| put(&mut c.swarm_resources, string(v).map(words)))),
    ("accept-nvidia-visible-devices-envvar-when-unprivileged", Sets(|c, v| put(&mut c.environment_when_unprivileged, boolean(v)))),
    ("accept-nvidia-visible-devices-as-volume-mounts", Sets(|c, v| put(&mut c.volume_mounts, boolean(v)))),
    ("supported-driver-capabilities", Sets(|c, v| put(&mut c.capabilities, string(v).and_then(capabilities)))),
    ("nvidia-container-cli.no-cgroups", Sets(|c, v| put(&mut c.no_cgroups, boolean(v)))),
    ("nvidia-container-runtime.debug", Sets(|c, v| put(&mut c.log_file, string(v).and_then(log_file)))),
    ("nvidia-container-runtime.log-level", Sets(|c, v| string(v).map(|word| log_level(c, word)))),
    ("nvidia-container-runtime.runtimes", Sets(|c, v| put(&mut c.runtimes, runtimes(v).map(Some)))),
    ("nvidia-container-runtime.mode", Sets(|c, v| put(&mut c.mode, string(v).and_then(mode)))),
    ("nvidia-container-runtime.modes.csv.mount-spec-path", Sets(|c, v| put(&mut c.csv_folder, path(v)))),
    ("nvidia-container-runtime.modes.cdi.default-kind", Sets(|c, v| put(&mut c.cdi_kind, string(v).and_then(kind)))),
    ("nvidia-container-runtime.modes.cdi.annotation-prefixes", Sets(|c, v| put(&mut c.cdi_prefixes, list(v, text)))),
    ("nvidia-container-runtime.modes.cdi.spec-dirs", Sets(|c, v| put(&mut c.cdi_folders, list(v, path)))),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks", Sets(|c, v| put(&mut c.disabled_hooks, list(v, text)))),
    ("nvidia-container-runtime.modes.legacy.cuda-compat-mode", Sets(|c, v| compat(c, string(v)?))),
    ("nvidia-container-runtime-hook.path", Idle(TEXT, "the runtime edits the container's configuration itself, and adds no hook")),
    ("nvidia-container-runtime-hook.skip-mode-detection", Idle(FLAG, "the hook acts in every mode")),
    ("features.disable-cuda-compat-lib-hook", Sets(|c, v| { if boolean(v)? { c.compat = Compat::Disabled; } Ok(None) })),
    ("features.ignore-imex-channel-requests", Sets(|c, v| put(&mut c.ignore_imex, boolean(v)))),
    ("features.no-additional-gids-for-device-nodes", Sets(|c, v| put(&mut c.no_groups, boolean(v)))),
    ("nvidia-container-cli.root", Idle(TEXT, "the settings of oci-decorator name the driver's folder (`root`)")),
    ("nvidia-container-cli.path", Idle(TEXT, "nvidia-container-cli is not started")),
    ("nvidia-container-cli.environment", Idle(TEXTS, "nvidia-container-cli is not started")),
    ("nvidia-container-cli.debug", Idle(TEXT, "nvidia-container-cli is not started")),
    ("nvidia-container-cli.ldcache", Idle(TEXT, "libraries are found by the vendor file")),
    ("nvidia-container-cli.load-kmods", Idle(FLAG, "provision loads the modules before an engine starts")),
    ("nvidia-container-cli.no-pivot", Idle(FLAG, "no program is started in the container's root")),
    ("nvidia-container-cli.user", Idle(TEXT, "no program is started as another user")),
    ("nvidia-container-cli.ldconfig", Idle(TEXT, "the library cache is written without ldconfig")),
    ("nvidia-container-runtime.modes.csv.compat-container-root", Idle(TEXT, "compatibility libraries come into the library cache, not by a mount")),
    ("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags", Idle(TEXTS, "devices are described by the vendor file")),
    ("nvidia-container-runtime.modes.jit-cdi.load-kernel-modules", Idle(TEXTS, "provision loads the modules before an engine starts")),
    ("nvidia-ctk.path", Idle(TEXT, "hooks name this program by its own path")),
    ("features.allow-cuda-compat-libs-from-container", Idle(FLAG, "an image's libraries are never mounted")),
    ("features.allow-ldconfig-from-container", Idle(FLAG, "no ldconfig is started, an image's least of all")),
    ("features.allow-unknown-oci-spec-fields", Idle(FLAG, "unknown fields are always kept")),
    ("features.disable-imex-channel-creation", Idle(FLAG, "channels are never made, only passed on")),
];

fn find(key: &str) -> Option<Key> {
    let gated = || {
        let word = key.strip_prefix("features.")?;
        GATED.iter().find(|it| it.word == word)?.variable.map(Gated)
    };
    by_word(KEYS, key).or_else(gated)
}

/// Why a key of the file changes nothing here. `None`: the key has a meaning, or is unknown.
pub fn without_meaning(key: &str) -> Option<String> {
    match find(key)? {
        Idle(_, why) => Some(why.to_owned()),
        Gated(by) => Some(format!("a container asks for these nodes: {by}=enabled")),
        Sets(_) => None,
    }
}

/// True for a key of NVIDIA's file, and for a table of such keys.
pub fn is_known(key: &str) -> bool {
    find(key).is_some() || is_table(key)
}

/// True if this key is a table.
pub(super) fn is_table(key: &str) -> bool {
    let below = |name: &str| name.strip_prefix(key)?.strip_prefix('.').map(drop);
    KEYS.iter().any(|(name, _)| below(name).is_some())
}

/// Takes one value over. `None`: there is no such key.
pub(super) fn set(config: &mut NvidiaConfig, key: &str, value: &Value) -> Option<Taken> {
    Some(match find(key)? {
        Sets(set) => set(config, value),
        Idle(check, _) => check(value).map(|()| None),
        Gated(_) => FLAG(value).map(|()| None),
    })
}

fn put<T>(place: &mut T, value: Result<T, String>) -> Taken {
    *place = value?;
    Ok(None)
}

/// Splits a list at commas.
fn words(text: &str) -> Vec<String> {
    let words = text.split(',').map(str::trim);
    words.filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

fn capabilities(text: &str) -> Result<Vec<String>, String> {
    let words = words(text);
    if words.iter().any(|word| word == "all") {
        return Ok(CAPABILITIES.map(str::to_owned).into());
    }
    let unknown = words.iter().find(|w| !CAPABILITIES.contains(&w.as_str()));
    match unknown {
        Some(word) => {
            Err(format!("unknown capability {word:?}; known are all, {}", CAPABILITIES.join(", ")))
        }
        None => Ok(words),
    }
}

fn log_file(name: &str) -> Result<Option<std::path::PathBuf>, String> {
    // NVIDIA's default is /dev/null.
    let named = Some(name).filter(|name| !matches!(*name, "" | "/dev/null"));
    named.map(|name| path(&Value::from(name))).transpose()
}

/// Reads a level of Go's logrus, in upper or lower case.
fn log_level(config: &mut NvidiaConfig, word: &str) -> Option<String> {
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
    let warning = || {
        format!(
        "unknown level {word:?}, info counts; known are panic, fatal, error, warning, info, debug, trace"
    )
    };
    known.is_none().then(warning)
}

fn mode(word: &str) -> Result<RuntimeMode, String> {
    match word {
        "auto" | "" => Ok(RuntimeMode::Auto),
        "legacy" => Ok(RuntimeMode::Legacy),
        "csv" => Ok(RuntimeMode::Csv),
        "cdi" => Ok(RuntimeMode::Cdi),
        "jit-cdi" => Ok(RuntimeMode::JitCdi),
        _ => Err(format!("invalid mode {word:?}; known are auto, legacy, csv, cdi, jit-cdi")),
    }
}

fn kind(text: &str) -> Result<String, String> {
    if is_kind(text) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a kind of CDI, like nvidia.com/gpu"))
}

fn compat(config: &mut NvidiaConfig, word: &str) -> Taken {
    let chosen = match word {
        "ldconfig" | "hook" | "mount" | "" => Compat::LibraryCache,
        "disabled" => Compat::Disabled,
        _ => {
            return Err(format!("unknown word {word:?}; known are ldconfig, mount, disabled, hook"))
        }
    };
    // `features.disable-cuda-compat-lib-hook` overrides this key.
    if config.compat != Compat::Disabled {
        config.compat = chosen;
    }
    let warning = "an image's files are never mounted: its compatibility libraries come into the library cache, as with \"ldconfig\"";
    Ok((word == "mount").then(|| warning.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const PAGE: &str = "../docs/reference/nvidia.md";

    /// The rows of the page's table of keys: the keys of each, and whether they have a meaning.
    fn rows(page: &str) -> Vec<(Vec<&str>, bool)> {
        let (_, rest) = page.split_once("config.toml`\n").unwrap();
        let (table, _) = rest.split_once("\n## ").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            let keys = cells[0].split('`').skip(1).step_by(2);
            (keys.collect(), cells[1] != "not done")
        })
        .collect()
    }

    /// The page lists every key, and no other.
    #[test]
    fn the_reference_has_every_key() {
        let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
        let rows = rows(&page);
        let mut said: Vec<&str> = rows.iter().flat_map(|(keys, _)| keys.clone()).collect();
        let gated = GATED.iter().filter(|it| it.variable.is_some());
        let gated: Vec<_> = gated.map(|it| format!("features.{}", it.word)).collect();
        let mut known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
        known.extend(gated.iter().map(String::as_str));
        said.sort_unstable();
        known.sort_unstable();
        assert_eq!(said, known);
        // These two are always on, so they have no switch.
        let always =
            ["features.allow-unknown-oci-spec-fields", "features.disable-imex-channel-creation"];
        for (keys, has_meaning) in rows {
            for key in keys {
                let expected = without_meaning(key).is_none() || always.contains(&key);
                assert_eq!(has_meaning, expected, "{key}");
            }
        }
    }
}
