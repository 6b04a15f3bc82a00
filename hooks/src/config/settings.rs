//! This program's settings, `config.toml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use toml_edit::{DocumentMut, InlineTable, TomlError, Value};

use crate::config::reader::{text_of, FileText};
use crate::error::{Error, Result};
use crate::host::rootfs::{open_regular, open_trusted};
use crate::log::Level;
use crate::model::policy::{Allowed, OnRefusal, Policy, Who, Writer};
use crate::model::request::{by_word, Interface};
use crate::spec::options::ParsedArgs;

pub const DEFAULT_PATH: &str = "/etc/oci-decorator/config.toml";
/// The default folder of the vendor files, on the host.
pub const DEFAULT_CONFIG_DIR: &str = "/etc/oci-decorator/oci-decorator.d";
/// Environment variable that names another settings file, for the runtime only.
pub const VARIABLE: &str = "OCI_DECORATOR_CONFIG";
/// What takes the value of a key over. Errors: the value is wrong.
type Take<T> = fn(&mut T, &Value) -> Result<(), String>;

const KEYS: [(&str, Take<Settings>); 8] = [
    ("config-dir", |s, v| path(v).map(|v| s.config_dir = v)),
    ("root", |s, v| path(v).map(|v| s.root = v)),
    ("runtimes", |s, v| runtimes(v).map(|v| s.runtimes = v)),
    ("log-level", |s, v| level(v).map(|v| s.log_level = v)),
    ("log-file", |s, v| path(v).map(|v| s.log_file = Some(v))),
    // A table of its own.
    ("policy", |_, _| Ok(())),
    ("interfaces", |s, v| interfaces(v).map(|v| s.interfaces = v)),
    ("scheduler", |s, v| boolean(v).map(|v| s.scheduler = v)),
];
const POLICY_KEYS: [(&str, Take<Policy>); 7] = [
    ("environment", |p, v| word(v, &Who::WORDS).map(|v| p.environment = v)),
    ("annotations", |p, v| word(v, &Who::WORDS).map(|v| p.annotations = v)),
    ("annotations-from", |p, v| word(v, &Writer::WORDS).map(|v| p.annotations_from = v)),
    ("mounts", |p, v| word(v, &Who::WORDS).map(|v| p.mounts = v)),
    ("cdi", |p, v| word(v, &Who::WORDS).map(|v| p.cdi = v)),
    ("on-refusal", |p, v| word(v, &OnRefusal::WORDS).map(|v| p.on_refusal = v)),
    ("allow", |p, v| allow(v).map(|v| p.allow = Some(v))),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub config_dir: PathBuf,
    pub root: PathBuf,
    /// Low-level runtimes in order of preference: names to look up in `PATH`, or absolute paths.
    pub runtimes: Vec<String>,
    pub log_level: Level,
    pub log_file: Option<PathBuf>,
    pub policy: Policy,
    /// Other programs' interfaces that are also answered under this program's own names.
    pub interfaces: Vec<Interface>,
    /// The variables with which a scheduler gives devices to a job, in this program's own
    /// environment, alone decide who gets which devices.
    pub scheduler: bool,
}

#[derive(Debug, Default)]
pub struct LoadedSettings {
    /// The values of the file, with defaults where there are mistakes. Only defaults if a user
    /// other than root may change the file.
    pub settings: Settings,
    /// Every mistake of the file. With mistakes, a container that asks for something is refused.
    pub problem: Option<Error>,
    /// More folders whose vendor files say which variables ask for something, because the folder of
    /// the settings may not be the intended one.
    pub suspected: Vec<PathBuf>,
}

impl LoadedSettings {
    /// The settings, for commands that must not run with wrong ones. Errors: any mistake.
    pub fn sound(self) -> Result<Settings> {
        self.problem.map_or(Ok(self.settings), Err)
    }

    fn broken(settings: Settings, problem: Error) -> Self {
        let mut suspected = vec![PathBuf::from(DEFAULT_CONFIG_DIR)];
        suspected.retain(|folder| *folder != settings.config_dir);
        Self { settings, problem: Some(problem), suspected }
    }

    /// A file whose text may be right, but which a user other than root may write.
    fn untrusted(written: Settings, problem: Error) -> Self {
        let mut loaded = Self::broken(Settings::default(), problem);
        loaded.suspected.push(written.config_dir);
        loaded
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config_dir: DEFAULT_CONFIG_DIR.into(),
            root: "/".into(),
            runtimes: vec!["runc".to_owned(), "crun".to_owned()],
            log_level: Level::Info,
            log_file: None,
            policy: Policy::default(),
            interfaces: Vec::new(),
            scheduler: false,
        }
    }
}

/// `--root`. Mounts begin with it, and engines resolve these somewhere else.
pub fn root_of(words: &ParsedArgs) -> Result<Option<PathBuf>> {
    let root = words.path("root")?.map(std::path::absolute).transpose();
    root.map_err(|e| words.wrong(&format!("--root: {e}")))
}

/// The settings, with the values of the command line. `OCI_DECORATOR_CONFIG` is not read,
/// because the environment may be the container's.
pub fn settings_of(words: &ParsedArgs) -> Result<LoadedSettings> {
    let mut loaded = load(words.value("settings").map(Path::new));
    if let Some(root) = root_of(words)? {
        loaded.settings.config_dir = beneath(&root, DEFAULT_CONFIG_DIR);
        loaded.settings.root = root;
    }
    if let Some(folder) = words.path("config-dir")? {
        loaded.settings.config_dir = folder;
        loaded.suspected.clear();
    }
    Ok(loaded)
}

/// Reads the named file, else the default one if it exists. A link that leads nowhere is an error,
/// because its target should have settings and a policy.
pub fn load(named: Option<&Path>) -> LoadedSettings {
    let default = Path::new(DEFAULT_PATH);
    if named.is_none() && rustix::fs::lstat(default).err() == Some(Errno::NOENT) {
        return LoadedSettings::default();
    }
    load_from(named.unwrap_or(default))
}

fn load_from(path: &Path) -> LoadedSettings {
    let shown = path.display();
    let file = match read(path) {
        Ok(file) => file,
        Err(Errno::INVAL) => {
            let problem = Error::usage(format!("{shown} is not a regular file"))
                .resolve(format!("put a file in its place; see what it is: ls -ld {shown}"));
            return LoadedSettings::broken(Settings::default(), problem);
        }
        Err(error) => return LoadedSettings::broken(Settings::default(), cannot_read(path, error)),
    };
    let (settings, mistakes) = parse(&file.text);
    let option = (path != Path::new(DEFAULT_PATH)).then(|| format!(" --config {shown}"));
    let check = format!("oci-decorator check{}", option.unwrap_or_default());
    match file.problem(path, &mistakes, &check) {
        None => LoadedSettings { settings, ..LoadedSettings::default() },
        Some(problem) if file.distrust.is_some() => LoadedSettings::untrusted(settings, problem),
        Some(problem) => LoadedSettings::broken(settings, problem),
    }
}

/// The error for a file that can't be read. For most reasons, there is no evident way out.
pub(super) fn cannot_read(path: &Path, error: Errno) -> Error {
    let shown = path.display();
    let problem = Error::usage(format!("can't read {shown}: {error}"));
    match error {
        Errno::NOENT => {
            let folder = path.parent().unwrap_or(Path::new("/")).display();
            problem.resolve(format!("name a file that exists; see what is there: ls -l {folder}"))
        }
        Errno::ACCESS => problem.resolve(format!(
            "let every user read the file: chmod a+r {shown}; or run the command as root (sudo)"
        )),
        _ => problem,
    }
}

/// The file that the runtime's own variable names. `None`: it is empty or not set.
pub fn named_by_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from)
}

impl FileText {
    /// Why it can't be used: who may have written it, what could not be read, or the mistakes of
    /// its text. A command checks it after a correction.
    pub(super) fn problem(&self, path: &Path, mistakes: &[String], check: &str) -> Option<Error> {
        let shown = path.display();
        if let Some(distrust) = &self.distrust {
            let problem = Error::usage(format!("{shown} does not count: {distrust}"));
            return Some(problem.resolve(distrust.resolution()));
        }
        let message = match &self.damage {
            Some(damage) => format!("{shown} is {damage}"),
            None if mistakes.is_empty() => return None,
            None => format!("{shown}: {}", mistakes.join("; ")),
        };
        Some(Error::usage(message).resolve(format!("correct the file, then check it: {check}")))
    }
}

/// Errors: `INVAL` if it is not a regular file.
pub(super) fn read(path: &Path) -> rustix::io::Result<FileText> {
    let found = open_trusted(path)?;
    let (fd, stat) = open_regular(found.fd)?;
    text_of(&fd, stat, found.problem)
}

/// The values of a text. Errors: it is not TOML.
pub(super) fn parse_toml(text: &str) -> Result<InlineTable, TomlError> {
    text.parse::<DocumentMut>().map(|document| document.as_table().clone().into_inline_table())
}

/// In the order in which mistakes are reported.
pub(super) fn sorted(table: &InlineTable) -> BTreeMap<&str, &Value> {
    table.iter().collect()
}

/// The name of a value's type, for messages.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value.type_name() {
        "inline table" => "table",
        name => name,
    }
}

fn parse(text: &str) -> (Settings, Vec<String>) {
    let mut mistakes = Vec::new();
    let table = parse_toml(text).unwrap_or_else(|error| {
        mistakes.push(format!("not valid TOML: {}", one_line(&error)));
        salvage(text)
    });
    let mut settings = Settings::default();
    for (key, value) in sorted(&table) {
        if key == "policy" {
            settings.policy = read_policy(value, &mut mistakes);
        } else if let Err(problem) = set(&mut settings, &KEYS, key, value) {
            mistakes.push(format!("{key}: {problem}"));
        }
    }
    let named = table.get("config-dir");
    if named.is_none_or(|value| path(value).is_err()) {
        settings.config_dir = beneath(&settings.root, DEFAULT_CONFIG_DIR);
    }
    (settings, mistakes)
}

/// Reads the lines before the first table that are valid settings. The folders of vendor files and
/// logs should not depend on a comma elsewhere in the file.
fn salvage(text: &str) -> InlineTable {
    let lines = text.lines();
    lines
        .take_while(|line| !line.trim_start().starts_with('['))
        .filter_map(|line| parse_toml(line).ok())
        .flatten()
        .collect()
}

/// An absolute path below another root.
pub fn beneath(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

pub(super) fn one_line(error: &TomlError) -> String {
    error.message().replace('\n', "; ")
}

/// Takes a value over by a table of keys.
fn set<T>(to: &mut T, keys: &[(&str, Take<T>)], key: &str, value: &Value) -> Result<(), String> {
    let take = by_word(keys, key).ok_or_else(|| {
        let known: Vec<_> = keys.iter().map(|(key, _)| *key).collect();
        format!("unknown key; known are {}", known.join(", "))
    })?;
    take(to, value)
}

pub(super) fn boolean(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("expected true or false, found {}", type_of(value)))
}

pub(super) fn string(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a string, found {}", type_of(value)))
}

pub(super) fn text(value: &Value) -> Result<String, String> {
    string(value).map(str::to_owned)
}

pub(super) fn list<T>(
    value: &Value,
    item: fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let items = value.as_array();
    let items =
        items.ok_or_else(|| format!("expected a list of strings, found {}", type_of(value)))?;
    items.iter().map(item).collect()
}

pub(super) fn path(value: &Value) -> Result<PathBuf, String> {
    let path = PathBuf::from(string(value)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("{:?} is not an absolute path", path.display()))
    }
}

fn level(value: &Value) -> Result<Level, String> {
    let word = string(value)?;
    Level::from_word(word).ok_or_else(|| {
        let known: Vec<_> = Level::words().collect();
        format!("unknown level {word:?}; known are {}", known.join(", "))
    })
}

fn interfaces(value: &Value) -> Result<Vec<Interface>, String> {
    let items = value.as_array().ok_or_else(|| {
        let (known, found) = (Interface::WORDS.map(|(word, _)| word), type_of(value));
        format!("expected a list of {}, found {found}", known.join(", "))
    })?;
    items.iter().map(|item| Interface::from_word(string(item)?)).collect()
}

pub(super) fn runtimes(value: &Value) -> Result<Vec<String>, String> {
    let names = list(value, text)?;
    if names.is_empty() {
        return Err("expected at least one runtime".to_owned());
    }
    match names.iter().find(|n| n.is_empty() || n.contains('/') && !n.starts_with('/')) {
        Some(name) => Err(format!("{name:?} is neither a name nor an absolute path")),
        None => Ok(names),
    }
}

/// Reads the table. A wrong value leaves the default, and adds `policy.KEY: PROBLEM` to the
/// mistakes.
pub fn read_policy(value: &Value, mistakes: &mut Vec<String>) -> Policy {
    let mut policy = Policy::default();
    let Some(table) = value.as_inline_table() else {
        let found = type_of(value);
        mistakes.push(format!("policy: expected a table, found {found}"));
        return policy;
    };
    for (key, value) in sorted(table) {
        if let Err(problem) = set(&mut policy, &POLICY_KEYS, key, value) {
            mistakes.push(format!("policy.{key}: {problem}"));
        }
    }
    policy
}

fn word<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, String> {
    let known = || {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        known.join(", ")
    };
    let found = value.as_str().ok_or_else(|| {
        let found = type_of(value);
        format!("expected one of {}, found {found}", known())
    })?;
    by_word(words, found).ok_or_else(|| format!("unknown word {found:?}; known are {}", known()))
}

fn allow(value: &Value) -> Result<Vec<(String, Allowed)>, String> {
    let table = value.as_inline_table().ok_or_else(|| {
        let found = type_of(value);
        format!("expected a table of vendors, found {found}")
    })?;
    let vendors = sorted(table).into_iter().map(|(vendor, value)| {
        let allowed = allowed(value).map_err(|problem| format!("{vendor}: {problem}"))?;
        Ok((vendor.to_owned(), allowed))
    });
    vendors.collect()
}

fn allowed(value: &Value) -> Result<Allowed, String> {
    let wrong = || {
        let found = type_of(value);
        format!("expected \"all\" or a list of features, found {found}")
    };
    match value {
        Value::String(word) => match word.value().as_str() {
            "all" => Ok(Allowed::All),
            word => {
                Err(format!("{word:?} is not a list of features; write [{word:?}], or \"all\""))
            }
        },
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(str::to_owned));
            let names = names.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
            Ok(Allowed::Features(names))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::Who;

    /// A file without mistakes.
    fn sound(text: &str) -> Settings {
        let (settings, mistakes) = parse(text);
        assert_eq!(mistakes, Vec::<String>::new());
        settings
    }

    #[test]
    fn the_commented_example_is_the_default() {
        let text = include_str!("../../config/config.toml");
        assert_eq!(sound(text), Settings::default());
        let live: String = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let settings = sound(&live);
        assert_eq!(settings.log_file, Some("/var/log/oci-decorator.log".into()));
        let expected = Settings {
            log_file: settings.log_file.clone(),
            policy: Policy { allow: settings.policy.allow.clone(), ..Policy::default() },
            ..Settings::default()
        };
        assert_eq!(settings, expected);
        assert_eq!(settings.policy.allow.map(|vendors| vendors.len()), Some(2));
        let keys = KEYS.iter().map(|(key, _)| *key).chain(POLICY_KEYS.iter().map(|(key, _)| *key));
        for key in keys {
            let table = ["policy", "allow"].contains(&key);
            let as_value = live.contains(&format!("\n{key} = "));
            assert!(table || as_value, "{key}");
        }
    }

    #[test]
    fn the_examples_of_the_reference_have_no_mistake() {
        let page = include_str!("../../../docs/reference/oci-decorator.md");
        let examples: Vec<_> = page
            .split("```toml\n")
            .skip(1)
            .map(|rest| sound(rest.split("```").next().unwrap()).policy)
            .collect();
        let whom: Vec<_> = examples.iter().map(|p| (p.environment, p.annotations)).collect();
        assert_eq!(whom, [(Who::All, Who::All), (Who::None, Who::All), (Who::All, Who::None)]);
    }
}
