//! The program's own settings, `config.toml`.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::Value;

use crate::error::{Error, Result};
use crate::level::Level;

/// Where the settings are when nothing else is said.
pub const DEFAULT_PATH: &str = "/etc/oci-decorator/config.toml";
/// Where the vendor files are, on the host.
pub const DEFAULT_CONFIG_DIR: &str = "/etc/oci-decorator/oci-decorator.d";
/// Environment variable that names another settings file, for the runtime only.
pub const VARIABLE: &str = "OCI_DECORATOR_CONFIG";
/// Every key of the file.
pub const KEYS: [&str; 5] = ["config-dir", "root", "runtimes", "log-level", "log-file"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub config_dir: PathBuf,
    pub root: PathBuf,
    /// Low-level runtimes, best first: names to look up in `PATH`, or absolute paths.
    pub runtimes: Vec<String>,
    pub log_level: Level,
    pub log_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config_dir: DEFAULT_CONFIG_DIR.into(),
            root: "/".into(),
            runtimes: vec!["runc".to_owned(), "crun".to_owned()],
            log_level: Level::Info,
            log_file: None,
        }
    }
}

/// Reads the file that the variable names, else the usual one if it is there.
/// Errors: every mistake of the file; a file that is named but missing.
pub fn load(variable: Option<&OsStr>) -> Result<Settings> {
    let named = variable.filter(|v| !v.is_empty());
    let path = Path::new(named.unwrap_or(OsStr::new(DEFAULT_PATH)));
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map_err(|mistakes| {
            Error::usage(format!("{}: {}", path.display(), mistakes.join("; ")))
        }),
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
            Ok(Settings::default())
        }
        Err(error) => {
            let error = Error::usage(format!("can't read {}: {error}", path.display()));
            Err(match named {
                Some(_) => error.resolve(format!("mend or unset {VARIABLE}")),
                None => error,
            })
        }
    }
}

fn parse(text: &str) -> std::result::Result<Settings, Vec<String>> {
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| vec![format!("not valid TOML: {}", one_line(&e))])?;
    let mut settings = Settings::default();
    let mut mistakes = Vec::new();
    for (key, value) in &table {
        if let Err(problem) = set(&mut settings, key, value) {
            mistakes.push(format!("{key}: {problem}"));
        }
    }
    if !table.contains_key("config-dir") {
        settings.config_dir = beneath(&settings.root, DEFAULT_CONFIG_DIR);
    }
    if mistakes.is_empty() {
        Ok(settings)
    } else {
        Err(mistakes)
    }
}

/// An absolute path under another root.
pub fn beneath(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', "; ")
}

fn set(settings: &mut Settings, key: &str, value: &Value) -> std::result::Result<(), String> {
    match key {
        "config-dir" => settings.config_dir = path(value)?,
        "root" => settings.root = path(value)?,
        "runtimes" => settings.runtimes = runtimes(value)?,
        "log-level" => settings.log_level = level(value)?,
        "log-file" => settings.log_file = Some(path(value)?),
        _ => return Err(format!("unknown key; known are {}", KEYS.join(", "))),
    }
    Ok(())
}

fn string(value: &Value) -> std::result::Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("expected a string, found {}", value.type_str()))
}

fn path(value: &Value) -> std::result::Result<PathBuf, String> {
    let path = PathBuf::from(string(value)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("{:?} is not an absolute path", path.display()))
    }
}

fn level(value: &Value) -> std::result::Result<Level, String> {
    let word = string(value)?;
    Level::from_word(word).ok_or_else(|| {
        let known: Vec<_> = Level::words().collect();
        format!("unknown level {word:?}; known are {}", known.join(", "))
    })
}

fn runtimes(value: &Value) -> std::result::Result<Vec<String>, String> {
    let items = value
        .as_array()
        .ok_or_else(|| format!("expected a list of strings, found {}", value.type_str()))?;
    let names: Vec<String> = items
        .iter()
        .map(|item| string(item).map(str::to_owned))
        .collect::<std::result::Result<_, _>>()?;
    if names.is_empty() {
        return Err("expected at least one runtime".to_owned());
    }
    match names
        .iter()
        .find(|n| n.is_empty() || n.contains('/') && !n.starts_with('/'))
    {
        Some(name) => Err(format!("{name:?} is neither a name nor an absolute path")),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commented_example_is_the_default() {
        let text = include_str!("../config/config.toml");
        assert_eq!(parse(text).unwrap(), Settings::default());
        let live: String = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let settings = parse(&live).unwrap();
        assert_eq!(settings.log_file, Some("/var/log/oci-decorator.log".into()));
        for key in KEYS {
            assert!(live.contains(&format!("\n{key} = ")), "{key}");
        }
    }

    #[test]
    fn every_mistake_is_named() {
        let mistakes = parse(
            "config-dir = 3\nlog-level = \"loud\"\nruntimes = [\"a/b\"]\ncolour = 1\nroot = \"x\"",
        )
        .unwrap_err();
        assert_eq!(mistakes.len(), 5, "{mistakes:?}");
        assert!(mistakes[0].starts_with("colour: unknown key; known are config-dir"));
        assert!(parse("runtimes = []").is_err());
        assert!(parse("x = [").unwrap_err()[0].starts_with("not valid TOML"));
    }

    #[test]
    fn another_root_moves_the_default_folder() {
        let settings = parse("root = \"/sysroot\"").unwrap();
        assert_eq!(
            settings.config_dir,
            Path::new("/sysroot/etc/oci-decorator/oci-decorator.d")
        );
    }

    #[test]
    fn a_named_file_must_be_there() {
        let error = load(Some(OsStr::new("/nowhere/x.toml"))).unwrap_err();
        assert!(error.to_string().contains(VARIABLE));
    }
}
