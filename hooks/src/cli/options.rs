//! The options of `oci-decorator`'s commands.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt;

use super::usage;
use crate::config::settings::{self, Loaded};
use crate::error::{Error, Result};
use crate::frontends::hook;
use crate::model::request::ANNOTATION_PREFIX;

/// The options of a command line.
#[derive(Default)]
pub struct Options {
    pub config: Option<PathBuf>,
    pub config_dir: Option<PathBuf>,
    pub root: Option<PathBuf>,
    pub environment: Vec<String>,
    /// Keys and values.
    pub annotations: Vec<(String, String)>,
    pub privileged: bool,
    pub json: bool,
    pub help: bool,
    pub vendor: Option<String>,
    pub output: Option<PathBuf>,
    pub output_dir: Option<PathBuf>,
    /// The command of `cdi`: `generate` or `list`.
    pub task: Option<&'static str>,
    pub library_cache: Vec<String>,
}

/// The prefixes of annotations that ask.
const PREFIXES: [&str; 2] = [ANNOTATION_PREFIX, "cdi.k8s.io/"];

/// Turns `-config` into `--config`, because other programs take `-config FILE`, and hook files for
/// them use it.
pub fn normal(words: Vec<OsString>) -> Vec<OsString> {
    let double = |word: OsString| {
        let bytes = word.as_bytes();
        if bytes == b"-config" || bytes.starts_with(b"-config=") {
            let mut long = OsString::from("-");
            long.push(word);
            long
        } else {
            word
        }
    };
    words.into_iter().map(double).collect()
}

pub fn value(parser: &mut lexopt::Parser) -> Result<OsString> {
    parser.value().map_err(|e| usage(&e))
}

/// Reads a path. Errors: it is empty, which would mean the working folder.
fn path(parser: &mut lexopt::Parser, option: &str) -> Result<PathBuf> {
    let value = value(parser)?;
    if value.is_empty() {
        return Err(usage(&format!("{option} is empty: give it a path")));
    }
    Ok(value.into())
}

fn cdi_task(word: &OsStr) -> Option<&'static str> {
    ["generate", "list"].into_iter().find(|task| word == *task)
}

fn text(parser: &mut lexopt::Parser) -> Result<String> {
    value(parser)?.string().map_err(|e| usage(&e))
}

/// Reads `oci-decorator.d/FLAG=VALUE` or `cdi.k8s.io/NAME=DEVICE`. Errors: another annotation.
fn annotation(word: &str) -> Result<(String, String)> {
    let pair = word
        .split_once('=')
        .filter(|(key, _)| PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
    let (key, value) = pair.ok_or_else(|| {
        usage(&format!(
            "--annotation {word:?}: expected {ANNOTATION_PREFIX}FLAG=VALUE or cdi.k8s.io/NAME=DEVICE"
        ))
    })?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Options {
    /// Reads the words after a command. Errors: an option that the command does not have.
    pub fn parse(mut parser: lexopt::Parser, verb: &str, config: Option<PathBuf>) -> Result<Self> {
        let mut options = Self {
            config,
            ..Self::default()
        };
        let is_hook = hook::is_stage(verb);
        while let Some(argument) = parser.next().map_err(|e| usage(&e))? {
            match argument {
                Short('h') | Long("help") => options.help = true,
                Long("config") => options.config = Some(value(&mut parser)?.into()),
                Long("config-dir") => options.config_dir = Some(value(&mut parser)?.into()),
                Long("root") => {
                    // Mounts begin with it, and engines resolve these somewhere else.
                    let root = std::path::absolute(path(&mut parser, "--root")?);
                    options.root = Some(root.map_err(|e| usage(&format!("--root: {e}")))?);
                }
                Long("env") if verb == "check" => options.environment.push(text(&mut parser)?),
                Long("annotation") if verb == "check" => {
                    options.annotations.push(annotation(&text(&mut parser)?)?);
                }
                Long("privileged") if verb == "check" => options.privileged = true,
                Long("json") if matches!(verb, "check" | "cdi") => options.json = true,
                Long("vendor") if verb == "cdi" => options.vendor = Some(text(&mut parser)?),
                Long("output") if verb == "cdi" => {
                    options.output = Some(path(&mut parser, "--output")?);
                }
                Long("output-dir") if verb == "cdi" => {
                    options.output_dir = Some(path(&mut parser, "--output-dir")?);
                }
                Long("library-cache") if is_hook => {
                    options.library_cache.push(text(&mut parser)?);
                }
                Value(word)
                    if verb == "cdi" && options.task.is_none() && cdi_task(&word).is_some() =>
                {
                    options.task = cdi_task(&word);
                }
                other => return Err(usage(&format!("{verb}: {}", other.unexpected()))),
            }
        }
        if verb == "cdi" {
            options.check_cdi()?;
        }
        Ok(options)
    }

    /// The command, as the help names it.
    pub fn command(&self, verb: &str) -> String {
        match (verb, self.task) {
            // All stages of hooks have one entry.
            (stage, _) if hook::is_stage(stage) => "prestart".to_owned(),
            (verb, None) => verb.to_owned(),
            (verb, Some(task)) => format!("{verb} {task}"),
        }
    }

    /// Checks the options of `cdi`. Errors: they do not go together.
    fn check_cdi(&self) -> Result<()> {
        if self.task.is_none() && !self.help {
            return Err(usage(
                &"cdi: the command is missing; known are generate and list",
            ));
        }
        let writes = self.output.is_some() || self.output_dir.is_some();
        if self.task == Some("list") && (writes || self.vendor.is_some()) {
            return Err(usage(
                &"cdi list: --output, --output-dir and --vendor are for cdi generate",
            ));
        }
        if self.output_dir.is_some() && (self.output.is_some() || self.vendor.is_some()) {
            return Err(usage(
                &"cdi: --output-dir is for all vendors, without --output and --vendor",
            ));
        }
        Ok(())
    }

    /// The settings, with the values of the command line. `OCI_DECORATOR_CONFIG` is not read,
    /// because the environment may be the container's.
    pub fn settings(&self) -> Loaded {
        let mut loaded = settings::load(self.config.as_deref());
        if let Some(root) = &self.root {
            loaded.settings.root.clone_from(root);
            loaded.settings.config_dir = settings::beneath(root, settings::DEFAULT_CONFIG_DIR);
        }
        if let Some(config_dir) = &self.config_dir {
            loaded.settings.config_dir.clone_from(config_dir);
            loaded.suspected.clear();
        }
        loaded
    }

    /// The options with which a hook uses the same host and vendor files.
    /// Errors: the working folder is needed and unknown.
    pub fn words_for_hook(&self) -> Result<Vec<String>> {
        let mut words = Vec::new();
        for (name, path) in [
            ("--config", &self.config),
            ("--config-dir", &self.config_dir),
            ("--root", &self.root),
        ] {
            if let Some(path) = path {
                words.extend([name.to_owned(), absolute(path)?]);
            }
        }
        Ok(words)
    }
}

fn absolute(path: &Path) -> Result<String> {
    let fail = |problem: &str| Error::failed(format!("{}: {problem}", path.display()));
    let path = std::path::absolute(path).map_err(|e| fail(&e.to_string()))?;
    path.into_os_string()
        .into_string()
        .map_err(|_| fail("not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(verb: &str, words: &[&str]) -> Result<Options> {
        let words = normal(words.iter().map(Into::into).collect());
        Options::parse(lexopt::Parser::from_args(words), verb, None)
    }

    #[test]
    fn one_dash_is_enough_for_config() {
        for words in [
            &["-config", "/c"][..],
            &["-config=/c"],
            &["--config", "/c"],
            &["--config=/c"],
        ] {
            let options = parse("prestart", words).ok().unwrap();
            assert_eq!(options.config.as_deref(), Some(Path::new("/c")));
        }
        assert!(parse("prestart", &["-configuration=/c"]).is_err());
    }

    #[test]
    fn an_annotation_is_a_key_of_ours_and_a_value() {
        let words = ["--annotation", "oci-decorator.d/X=a=b", "--privileged"];
        let options = parse("check", &words).ok().unwrap();
        let pair = ("oci-decorator.d/X".to_owned(), "a=b".to_owned());
        assert_eq!(options.annotations, [pair]);
        assert!(options.privileged);
        for word in ["X=a", "oci-decorator.d/X", "oci-decorator/X=a"] {
            let error = parse("check", &["--annotation", word]).err().unwrap();
            assert!(error
                .message
                .contains("expected oci-decorator.d/FLAG=VALUE"));
        }
        assert!(parse("precreate", &words).is_err());
    }

    #[test]
    fn the_command_line_says_where_the_host_is() {
        let folder = |words: &[&str]| {
            let loaded = parse("check", words).ok().unwrap().settings();
            (loaded.settings.config_dir, loaded.suspected.len())
        };
        let missing = ["--config", "/nowhere/config.toml"];
        assert_eq!(folder(&missing), (settings::DEFAULT_CONFIG_DIR.into(), 0));
        let rooted = [&missing[..], &["--root", "/sysroot"]].concat();
        let usual = "/sysroot/etc/oci-decorator/oci-decorator.d";
        assert_eq!(folder(&rooted), (usual.into(), 0));
        let named = [&rooted[..], &["--config-dir", "/conf.d"]].concat();
        assert_eq!(folder(&named), ("/conf.d".into(), 0));
    }
}
