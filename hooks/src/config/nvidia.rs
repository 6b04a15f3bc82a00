//! NVIDIA's `config.toml`, which NVIDIA's runtime, hook and `nvidia-ctk` share.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use toml_edit::{InlineTable, Value};
use Key::{Gated, Idle, Sets};

use crate::config::cdi::DEFAULT_FOLDERS;
use crate::config::reader::is_kind;
use crate::config::reader::FileText;
use crate::config::settings::{
    boolean, cannot_read, list, one_line, parse_toml, path, read, runtimes, sorted, string, text,
    type_of,
};
use crate::error::Error;
use crate::host::nodes::GATED;
use crate::log::Level;
use crate::model::request::by_word;

/// The keys of the file that have a meaning here, by [`KEYS`]. The other keys are accepted.
// Each is a key of the file.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvidiaConfig {
    pub disable_require: bool,
    /// `swarm-resource`: names of variables, first to last.
    pub swarm_resources: Vec<String>,
    pub environment_when_unprivileged: bool,
    pub volume_mounts: bool,
    /// `supported-driver-capabilities`, with `all` resolved.
    pub capabilities: Vec<String>,
    pub no_cgroups: bool,
    pub log_file: Option<PathBuf>,
    /// `nvidia-container-runtime.log-level`. `None`: ours counts.
    pub log_level: Option<crate::log::Level>,
    /// `nvidia-container-runtime.runtimes`. `None`: ours count.
    pub runtimes: Option<Vec<String>>,
    pub mode: RuntimeMode,
    pub csv_folder: PathBuf,
    pub cdi_kind: String,
    pub cdi_prefixes: Vec<String>,
    pub cdi_folders: Vec<PathBuf>,
    /// `….modes.jit-cdi.nvcdi-disable-hooks`: names, or `all`.
    pub disabled_hooks: Vec<String>,
    pub compat: Compat,
    pub ignore_imex: bool,
    pub no_groups: bool,
}

/// How a container gets what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuntimeMode {
    /// `cdi` if every device is requested by its CDI name, `csv` on Tegra, else `jit-cdi`.
    #[default]
    Auto,
    /// As `jit-cdi`, with what NVIDIA's hook reads: capabilities and requirements.
    Legacy,
    Csv,
    Cdi,
    /// By the vendor file, as edits of the spec.
    JitCdi,
}

/// How CUDA's forward compatibility libraries of an image come before the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Through the library cache, if the image's libraries are newer than the driver.
    #[default]
    LibraryCache,
    Disabled,
}

impl Default for NvidiaConfig {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self {
            disable_require: false,
            swarm_resources: Vec::new(),
            environment_when_unprivileged: true,
            volume_mounts: false,
            capabilities: words(&CAPABILITIES),
            no_cgroups: false,
            log_file: None,
            log_level: None,
            runtimes: None,
            mode: RuntimeMode::default(),
            csv_folder: "/etc/nvidia-container-runtime/host-files-for-container.d".into(),
            cdi_kind: "nvidia.com/gpu".to_owned(),
            cdi_prefixes: words(&["cdi.k8s.io/"]),
            cdi_folders: DEFAULT_FOLDERS.map(PathBuf::from).to_vec(),
            disabled_hooks: Vec::new(),
            compat: Compat::default(),
            ignore_imex: false,
            no_groups: false,
        }
    }
}

pub const CAPABILITIES: [&str; 7] =
    ["compat32", "compute", "display", "graphics", "ngx", "utility", "video"];

pub const DEFAULT_PATH: &str = "/etc/nvidia-container-runtime/config.toml";
/// Environment variable that names another file. Only the runtime and `nvidia-ctk` read it, because
/// a hook's environment may be the container's.
const VARIABLE: &str = "NVIDIA_CTK_CONFIG_FILE_PATH";
/// Environment variable with the folder of a user's settings; the same programs read it.
const XDG_VARIABLE: &str = "XDG_CONFIG_HOME";

const BELOW_XDG: &str = "nvidia-container-runtime/config.toml";

/// The file that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPath {
    pub path: PathBuf,
    /// The user named this file, so it has to exist.
    pub named: bool,
}

/// The file as far as it could be read.
#[derive(Debug, Clone, Default)]
pub struct LoadedConfig {
    /// `None`: it is from no file.
    pub path: Option<PathBuf>,
    /// The values of the file, with defaults where there are mistakes. Only defaults if a user
    /// other than root may change the file.
    pub config: NvidiaConfig,
    pub problem: Option<Error>,
    /// Values with another effect than in NVIDIA's program, each with file and key.
    pub warnings: Vec<String>,
    /// Keys of the file that change nothing here; [`without_meaning`] says why.
    pub idle: Vec<String>,
}

impl LoadedConfig {
    /// The warnings, and why keys of the file change nothing here.
    pub fn notes(&self) -> Vec<String> {
        let why = |key: &String| {
            let why = without_meaning(key).unwrap_or_default();
            format!("{key} has no effect here: {why}")
        };
        self.warnings.iter().cloned().chain(self.idle.iter().map(why)).collect()
    }
}

/// Finds the file: the one that the command line names, else the one of the first variable that is
/// set, else the default. Empty variables do not count. A hook's environment may be the container's,
/// and is not read.
pub fn place(option: Option<&Path>, reads_environment: bool) -> ConfigPath {
    let set = |name: &str| {
        let value = reads_environment.then(|| std::env::var_os(name)).flatten();
        value.filter(|value| !value.is_empty()).map(PathBuf::from)
    };
    if let Some(path) = option.map(PathBuf::from).or_else(|| set(VARIABLE)) {
        return ConfigPath { path, named: true };
    }
    let below = |folder: PathBuf| folder.join(BELOW_XDG);
    let path = set(XDG_VARIABLE).map_or_else(|| DEFAULT_PATH.into(), below);
    ConfigPath { path, named: false }
}

/// Reads the file. If it was not named and does not exist, the defaults count. A link that leads
/// nowhere is a mistake.
pub fn load(ConfigPath { path, named }: ConfigPath) -> LoadedConfig {
    let loaded = if !named && rustix::fs::lstat(&path).err() == Some(Errno::NOENT) {
        LoadedConfig::default()
    } else {
        match read(&path) {
            Ok(file) => judge(&path, &file),
            Err(error) => {
                LoadedConfig { problem: Some(unread(&path, error)), ..LoadedConfig::default() }
            }
        }
    };
    LoadedConfig { path: Some(path), ..loaded }
}

fn unread(path: &Path, error: Errno) -> Error {
    let shown = path.display();
    match error {
        Errno::INVAL => Error::usage(format!("{shown} is not a regular file")),
        Errno::NOENT => Error::usage(format!("can't read {shown}: there is no such file"))
            .resolve(format!("make it: nvidia-ctk config default --output {shown}")),
        error => cannot_read(path, error),
    }
}

fn judge(path: &Path, file: &FileText) -> LoadedConfig {
    let shown = path.display();
    let read = Reading::of(&file.text);
    let option = (path != Path::new(DEFAULT_PATH)).then(|| format!(" --config-file {shown}"));
    let check = format!("nvidia-ctk info{}", option.unwrap_or_default());
    let problem = file.problem(path, &read.mistakes, &check);
    if file.distrust.is_some() {
        return LoadedConfig { problem, ..LoadedConfig::default() };
    }
    let warnings = read.warnings.iter().map(|text| format!("{shown}: {text}")).collect();
    LoadedConfig { path: None, config: read.config, problem, warnings, idle: read.idle }
}

/// Every mistake in the text of such a file, each with its key.
pub fn mistakes(text: &str) -> Vec<String> {
    Reading::of(text).mistakes
}

#[derive(Default)]
struct Reading {
    config: NvidiaConfig,
    mistakes: Vec<String>,
    warnings: Vec<String>,
    idle: Vec<String>,
}

impl Reading {
    fn of(text: &str) -> Self {
        let mut reading = Self::default();
        match parse_toml(text) {
            Ok(table) => reading.table("", &table),
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(text, span.start));
                let problem = format!("line {line}: not valid TOML: {}", one_line(&error));
                reading.mistakes.push(problem);
            }
        }
        reading
    }

    fn table(&mut self, above: &str, table: &InlineTable) {
        for (key, value) in sorted(table) {
            let key = match above {
                "" => key.to_owned(),
                above => format!("{above}.{key}"),
            };
            match value {
                Value::InlineTable(inner) if is_table(&key) => self.table(&key, inner),
                value => self.value(&key, value),
            }
        }
    }

    fn value(&mut self, key: &str, value: &Value) {
        if is_table(key) {
            let found = type_of(value);
            self.mistakes.push(format!("{key}: expected a table, found {found}"));
            return;
        }
        match set(&mut self.config, key, value) {
            None => self.warnings.push(format!("{key}: unknown key, which changes nothing")),
            Some(Err(problem)) => self.mistakes.push(format!("{key}: {problem}")),
            Some(Ok(warning)) => {
                let warning = warning.map(|text| format!("{key}: {text}"));
                self.warnings.extend(warning);
                if without_meaning(key).is_some() {
                    self.idle.push(key.to_owned());
                }
            }
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

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

/// What each key changes, or why it changes nothing. Source: NVIDIA's container toolkit,
/// `api/config/v1/config.go`.
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

    fn sound(text: &str) -> NvidiaConfig {
        let reading = Reading::of(text);
        assert_eq!(reading.mistakes, Vec::<String>::new(), "{text}");
        reading.config
    }

    /// Words and lists of each key, and what the configuration has then.
    #[rustfmt::skip]
    #[test]
    fn every_key_sets_its_part_of_the_configuration() {
    let runtime = "nvidia-container-runtime";
    for (key, value, expected) in [
        ("disable-require".to_owned(), "true", "disable_require: true"),
        ("swarm-resource".to_owned(), "'A, B,,'", r#"swarm_resources: ["A", "B"]"#),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged".to_owned(), "false", "environment_when_unprivileged: false"),
        ("accept-nvidia-visible-devices-as-volume-mounts".to_owned(), "true", "volume_mounts: true"),
        ("supported-driver-capabilities".to_owned(), "'utility, compute'", r#"capabilities: ["utility", "compute"]"#),
        ("supported-driver-capabilities".to_owned(), "''", "capabilities: []"),
        ("nvidia-container-cli.no-cgroups".to_owned(), "true", "no_cgroups: true"),
        (format!("{runtime}.debug"), "'/var/log/n.log'", r#"log_file: Some("/var/log/n.log")"#),
        (format!("{runtime}.debug"), "'/dev/null'", "log_file: None"),
        (format!("{runtime}.log-level"), "'WARN'", "log_level: Some(Warning)"),
        (format!("{runtime}.runtimes"), "['crun', '/r']", r#"runtimes: Some(["crun", "/r"])"#),
        (format!("{runtime}.mode"), "'legacy'", "mode: Legacy"),
        (format!("{runtime}.mode"), "'csv'", "mode: Csv"),
        (format!("{runtime}.mode"), "'cdi'", "mode: Cdi"),
        (format!("{runtime}.mode"), "'jit-cdi'", "mode: JitCdi"),
        (format!("{runtime}.modes.csv.mount-spec-path"), "'/csv'", r#"csv_folder: "/csv""#),
        (format!("{runtime}.modes.cdi.default-kind"), "'a.b/c'", r#"cdi_kind: "a.b/c""#),
        (format!("{runtime}.modes.cdi.annotation-prefixes"), "['p/']", r#"cdi_prefixes: ["p/"]"#),
        (format!("{runtime}.modes.cdi.spec-dirs"), "['/d']", r#"cdi_folders: ["/d"]"#),
        (format!("{runtime}.modes.jit-cdi.nvcdi-disable-hooks"), "['all']", r#"disabled_hooks: ["all"]"#),
        (format!("{runtime}.modes.legacy.cuda-compat-mode"), "'disabled'", "compat: Disabled"),
        ("features.disable-cuda-compat-lib-hook".to_owned(), "true", "compat: Disabled"),
        ("features.ignore-imex-channel-requests".to_owned(), "true", "ignore_imex: true"),
        ("features.no-additional-gids-for-device-nodes".to_owned(), "true", "no_groups: true"),
    ] {
        let found = format!("{:?}", sound(&format!("{key} = {value}")));
        assert!(found.contains(expected), "{key}: {found}");
    }
    assert_eq!(sound(""), NvidiaConfig::default());
    // The feature overrides the mode.
    let off = "[features]\ndisable-cuda-compat-lib-hook = true\n[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = \"ldconfig\"";
    assert_eq!(sound(off).compat, Compat::Disabled);
    }

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
