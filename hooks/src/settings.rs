//! The program's own settings, `config.toml`.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use toml::Value;

use crate::error::{Error, Result};
use crate::inroot::read_regular;
use crate::level::Level;
use crate::trust::{self, untrusted};

/// Where the settings are when nothing else is said.
pub const DEFAULT_PATH: &str = "/etc/oci-decorator/config.toml";
/// Where the vendor files are, on the host.
pub const DEFAULT_CONFIG_DIR: &str = "/etc/oci-decorator/oci-decorator.d";
/// Environment variable that names another settings file, for the runtime only.
pub const VARIABLE: &str = "OCI_DECORATOR_CONFIG";
/// Every key of the file.
pub const KEYS: [&str; 5] = ["config-dir", "root", "runtimes", "log-level", "log-file"];

const MAX_SIZE: u64 = 1 << 20;

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

/// Reads the file that is named, else the usual one if it is there.
/// Errors: every mistake of the file; a file that is named but missing.
pub fn load(named: Option<&Path>) -> Result<Settings> {
    let path = named.unwrap_or(Path::new(DEFAULT_PATH));
    let shown = path.display();
    let text = match read(path) {
        Ok(text) => text,
        Err(Errno::NOENT) if named.is_none() => return Ok(Settings::default()),
        Err(Errno::INVAL) => return Err(Error::usage(format!("{shown} is not a regular file"))),
        Err(Errno::FBIG) => {
            return Err(Error::usage(format!(
                "{shown} is larger than {MAX_SIZE} bytes"
            )));
        }
        Err(Errno::ILSEQ) => return Err(Error::usage(format!("{shown} is not valid UTF-8"))),
        Err(Errno::PERM) => {
            let problem = format!("{shown} must belong to root, and nobody else may write to it");
            return Err(Error::usage(problem).resolve(trust::RESOLUTION));
        }
        Err(error) => return Err(Error::usage(format!("can't read {shown}: {error}"))),
    };
    parse(&text).map_err(|mistakes| Error::usage(format!("{shown}: {}", mistakes.join("; "))))
}

/// The runtime's own variable, where it is set to something.
pub fn named_by_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE)
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
}

/// Errors: `PERM` for a file that others than root may change, `ILSEQ` for one that is no text.
fn read(path: &Path) -> rustix::io::Result<String> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let (bytes, stat) = read_regular(found, MAX_SIZE)?;
    if untrusted(&stat).is_some() {
        return Err(Errno::PERM);
    }
    String::from_utf8(bytes).map_err(|_| Errno::ILSEQ)
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
    fn files_that_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let problem = || load(Some(&path)).unwrap_err().to_string();
        assert!(problem().contains("No such file"));
        std::fs::create_dir(&path).unwrap();
        assert!(problem().ends_with("is not a regular file"));
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, b"log-level = \"\xff\"").unwrap();
        assert!(problem().ends_with("is not valid UTF-8"));
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(100 << 20).unwrap();
        assert!(problem().ends_with("is larger than 1048576 bytes"));
        std::fs::write(&path, "").unwrap();
        assert!(load(Some(&path)).is_ok());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(problem().contains("must belong to root"));
        std::fs::write(&path, "x=[".repeat(100_000)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(problem().contains("not valid TOML"));
    }
}
