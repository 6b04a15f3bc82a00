//! The command line of `nvidia-ctk cdi`.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use lexopt::Arg::{Long, Value};
use lexopt::ValueExt;

use crate::apply::cdi::gpu::{self, Naming, KIND};
use crate::apply::cdi::transform::Transform;
use crate::apply::cdi::{write, yaml};
use crate::cli::cdi_list::Listing;
use crate::cli::print;
use crate::config::cdi::folder::{DEFAULT, MAX_SIZE};
use crate::config::cdi::Syntax;
use crate::config::settings::{self, Settings};
use crate::error::{exit, Error, Result};
use crate::frontends::{read_file, read_input};

const VERBS: &str = "generate, list and transform root";
/// What NVIDIA's modes may be. Which it is, the vendor file says.
const MODES: [&str; 9] = [
    "auto",
    "nvml",
    "wsl",
    "csv",
    "management",
    "gds",
    "mofed",
    "imex",
    "nvswitch",
];
/// Options that are read and have no meaning here: the vendor file says where the driver lies.
const UNUSED: [&str; 14] = [
    "config-search-path",
    "csv.compat-container-root",
    "csv.file",
    "csv.ignore-pattern",
    "dev-root",
    "driver-root",
    "feature-flag",
    "feature-flags",
    "ldconfig-path",
    "library-search-path",
    "nvidia-cdi-hook-path",
    "nvidia-ctk-path",
    "device-id",
    "enable-hook",
];

/// Runs the words that follow `nvidia-ctk cdi`.
/// Errors: wrong usage; nothing to generate; a file that can't be read or written.
pub fn run(words: &[OsString]) -> Result<u8> {
    let mut parser = lexopt::Parser::from_args(words.iter().cloned());
    let verb = match parser.next().map_err(|e| usage(&e))? {
        Some(Value(verb)) => verb.to_string_lossy().into_owned(),
        Some(Long("help")) => {
            return print(&format!(
                "usage: nvidia-ctk cdi COMMAND; known are {VERBS}\n"
            ))
        }
        Some(other) => return Err(usage(&other.unexpected())),
        None => return Err(usage(&"no command given")),
    };
    match verb.as_str() {
        "generate" => generate(&Options::parse(parser)?),
        "list" => list(&Options::parse(parser)?),
        "transform" => match parser.next().map_err(|e| usage(&e))? {
            Some(Value(what)) if what == "root" => transform(&Options::parse(parser)?),
            _ => Err(usage(&"transform: known is root")),
        },
        other => Err(usage(&format!("unknown command {other:?}"))),
    }
}

fn usage(problem: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("cdi: {problem}")).resolve(format!(
        "known commands are {VERBS}, as in `nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml`"
    ))
}

#[derive(Default)]
struct Options {
    root: Option<PathBuf>,
    config_dir: Option<PathBuf>,
    output: Option<PathBuf>,
    input: Option<PathBuf>,
    format: Option<Syntax>,
    namings: Vec<Naming>,
    vendor: Option<String>,
    class: Option<String>,
    disabled_hooks: Vec<String>,
    folders: Vec<PathBuf>,
    from: Option<String>,
    to: Option<String>,
    in_container: bool,
    json: bool,
    unused: Vec<String>,
}

impl Options {
    fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next().map_err(|e| usage(&e))? {
            let Long(name) = argument else {
                return Err(usage(&argument.unexpected()));
            };
            let name = name.to_owned();
            match name.as_str() {
                "json" => options.json = true,
                "no-all-device" | "debug" | "quiet" => options.unused.push(name),
                _ => {
                    let value = parser.value().map_err(|e| usage(&e))?;
                    let value = value.string().map_err(|e| usage(&e))?;
                    options.take(name, value)?;
                }
            }
        }
        Ok(options)
    }

    fn take(&mut self, name: String, value: String) -> Result<()> {
        let wrong = |known: &str| usage(&format!("--{name} {value:?}: known are {known}"));
        // An empty path would be the working folder.
        let path = |value: &str| match value {
            "" => Err(usage(&format!("--{name} is empty"))),
            value => Ok(Some(PathBuf::from(value))),
        };
        match name.as_str() {
            "root" => self.root = path(&value)?,
            "config-dir" => self.config_dir = path(&value)?,
            "output" if matches!(value.as_str(), "" | "-") => self.output = None,
            "output" => self.output = path(&value)?,
            "input" if value == "-" => self.input = None,
            "input" => self.input = path(&value)?,
            "spec-dir" => self.folders.extend(path(&value)?),
            "format" => {
                self.format = match value.as_str() {
                    "yaml" => Some(Syntax::Yaml),
                    "json" => Some(Syntax::Json),
                    "" => None,
                    _ => return Err(wrong("yaml and json")),
                }
            }
            "device-name-strategy" => {
                for word in value.split(',') {
                    let naming = Naming::parse(word);
                    let naming = naming.ok_or_else(|| wrong("index, uuid and type-index"))?;
                    self.namings.push(naming);
                }
            }
            "mode" if MODES.contains(&value.as_str()) => self.unused.push(name),
            "mode" => return Err(wrong(&MODES.join(", "))),
            "vendor" => self.vendor = Some(value),
            "class" => self.class = Some(value),
            "disable-hook" => self
                .disabled_hooks
                .extend(value.split(',').map(str::to_owned)),
            "from" => self.from = Some(value),
            "to" => self.to = Some(value),
            "relative-to" => match value.as_str() {
                "host" => self.in_container = false,
                "container" => self.in_container = true,
                _ => return Err(wrong("host and container")),
            },
            unused if UNUSED.contains(&unused) => self.unused.push(name),
            _ => return Err(usage(&format!("unknown option --{name}"))),
        }
        Ok(())
    }

    fn settings(&self) -> Result<Settings> {
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

    /// As asked for, else by the name of the output, else YAML.
    fn syntax(&self) -> Syntax {
        let name = self.output.as_deref().and_then(Path::to_str);
        self.format
            .or_else(|| name.and_then(Syntax::of))
            .unwrap_or(Syntax::Yaml)
    }

    fn put(&self, document: &serde_json::Value) -> Result<u8> {
        let text = match self.syntax() {
            Syntax::Json => format!("{document:#}\n"),
            Syntax::Yaml => yaml::text(document),
        };
        match &self.output {
            None => print(&text),
            Some(path) => write(path, &text).map(|()| exit::DONE),
        }
    }
}

fn generate(options: &Options) -> Result<u8> {
    let settings = options.settings()?;
    // What NVIDIA's own tool does where no option says otherwise.
    let usual = [Naming::Index, Naming::Uuid];
    let namings = if options.namings.is_empty() {
        &usual[..]
    } else {
        &options.namings
    };
    let document = gpu::generate(&gpu::Request {
        settings: &settings,
        vendor: options.vendor.as_deref().unwrap_or(KIND.0),
        class: options.class.as_deref().unwrap_or(KIND.1),
        namings,
        disabled_hooks: &options.disabled_hooks,
    })?;
    for name in options
        .unused
        .iter()
        .filter(|name| UNUSED.contains(&name.as_str()))
    {
        say(&format!(
            "--{name} has no meaning here: the vendor file says where the driver lies"
        ));
    }
    options.put(&document)
}

fn list(options: &Options) -> Result<u8> {
    let settings = options.settings()?;
    let usual = DEFAULT.map(PathBuf::from);
    let folders = if options.folders.is_empty() {
        &usual[..]
    } else {
        &options.folders
    };
    let listing = Listing::read(&settings.root, folders)?;
    if options.json {
        print(listing.json())?;
    } else {
        listing.problems.iter().for_each(|problem| say(problem));
        print(listing.text())?;
    }
    Ok(listing.code())
}

fn transform(options: &Options) -> Result<u8> {
    let (Some(from), Some(to)) = (&options.from, &options.to) else {
        return Err(usage(&"transform root: --from and --to are needed"));
    };
    let text = read(options.input.as_deref())?;
    let is_json = text.trim_start().starts_with('{');
    let syntax = if is_json { Syntax::Json } else { Syntax::Yaml };
    let transform = Transform {
        from: from.clone(),
        to: to.clone(),
        in_container: options.in_container,
    };
    options.put(&transform.apply(&text, syntax)?)
}

fn read(path: Option<&Path>) -> Result<String> {
    match path {
        None => is_text("standard input", read_input("the specification", MAX_SIZE)?),
        Some(path) => is_text(&path.display().to_string(), read_file(path, MAX_SIZE)?),
    }
}

fn is_text(shown: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::failed(format!("{shown} is not UTF-8")))
}

fn say(problem: &str) {
    let line = crate::log::printable(problem);
    let _ = writeln!(std::io::stderr(), "nvidia-ctk: {line}");
}
