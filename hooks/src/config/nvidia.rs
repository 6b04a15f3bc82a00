//! NVIDIA's `config.toml`, which NVIDIA's runtime, hook and `nvidia-ctk` share.

mod keys;

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use toml_edit::{InlineTable, Value};

use crate::config::settings::{cannot_read, one_line, parse_toml, read, sorted, type_of, File};
use crate::error::Error;

pub use keys::{is_known, without_meaning};

/// The keys of the file that have a meaning here. The other keys are accepted.
// Each is a key of the file.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvidiaConfig {
    /// `disable-require`
    pub disable_require: bool,
    /// `swarm-resource`: names of variables, first to last.
    pub swarm_resources: Vec<String>,
    /// `accept-nvidia-visible-devices-envvar-when-unprivileged`
    pub environment_when_unprivileged: bool,
    /// `accept-nvidia-visible-devices-as-volume-mounts`
    pub volume_mounts: bool,
    /// `supported-driver-capabilities`, with `all` resolved.
    pub capabilities: Vec<String>,
    /// `nvidia-container-cli.no-cgroups`
    pub no_cgroups: bool,
    /// `nvidia-container-runtime.debug`
    pub log_file: Option<PathBuf>,
    /// `nvidia-container-runtime.log-level`. `None`: ours counts.
    pub log_level: Option<crate::log::Level>,
    /// `nvidia-container-runtime.runtimes`. `None`: ours count.
    pub runtimes: Option<Vec<String>>,
    /// `nvidia-container-runtime.mode`
    pub mode: RuntimeMode,
    /// `….modes.csv.mount-spec-path`
    pub csv_folder: PathBuf,
    /// `….modes.cdi.default-kind`
    pub cdi_kind: String,
    /// `….modes.cdi.annotation-prefixes`
    pub cdi_prefixes: Vec<String>,
    /// `….modes.cdi.spec-dirs`
    pub cdi_folders: Vec<PathBuf>,
    /// `….modes.jit-cdi.nvcdi-disable-hooks`: names, or `all`.
    pub disabled_hooks: Vec<String>,
    /// `….modes.legacy.cuda-compat-mode`
    pub compat: Compat,
    /// `features.ignore-imex-channel-requests`
    pub ignore_imex: bool,
    /// `features.no-additional-gids-for-device-nodes`
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
    /// By the files of `csv_folder`.
    Csv,
    /// By existing CDI specifications.
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
            cdi_folders: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
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
    /// Every mistake of the file.
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

fn judge(path: &Path, file: &File) -> LoadedConfig {
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
                Value::InlineTable(inner) if keys::is_table(&key) => self.table(&key, inner),
                value => self.value(&key, value),
            }
        }
    }

    fn value(&mut self, key: &str, value: &Value) {
        if keys::is_table(key) {
            let found = type_of(value);
            self.mistakes.push(format!("{key}: expected a table, found {found}"));
            return;
        }
        match keys::set(&mut self.config, key, value) {
            None => self.warnings.push(format!("{key}: unknown key, which changes nothing")),
            Some(Err(problem)) => self.mistakes.push(format!("{key}: {problem}")),
            Some(Ok(warning)) => {
                let warning = warning.map(|text| format!("{key}: {text}"));
                self.warnings.extend(warning);
                if keys::without_meaning(key).is_some() {
                    self.idle.push(key.to_owned());
                }
            }
        }
    }
}

/// The number of the line that a byte of a text is on.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
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
}
