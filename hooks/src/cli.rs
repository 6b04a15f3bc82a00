//! The command line of `oci-decorator`.

pub mod check;
mod configure;
pub mod nvidia_container_cli;
pub mod nvidia_ctk;
pub mod nvidia_hook;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use crate::apply::cdi;
use crate::cli::check::SampleContainer;
use crate::config::nvidia;
use crate::config::settings::{self, root_of, settings_of, LoadedSettings};
use crate::error::{exit, Error, Result};
use crate::frontends::cdi::{read, Registry, DEFAULT_FOLDERS};
use crate::frontends::{hook, read_input, runtime};
use crate::host::Host;
use crate::log::printable;
use crate::model::request::ANNOTATION_PREFIX;
use crate::spec::config::MAX_CONFIG;
use crate::spec::options::{
    command, complain, flag, print, value, Opt, ParsedArgs, Program, Style, Takes,
};

/// The settings; `configure` has another `--config`.
const CONFIG: Opt = value(&["config"]).keyed("settings");
const CONFIG_DIR: Opt = value(&["config-dir"]);
const ROOT: Opt = value(&["root"]);
const JSON: Opt = flag(&["json"]);

const HOST: &[Opt] = &[CONFIG, CONFIG_DIR, ROOT];
const CHECK: &[Opt] = &[
    CONFIG,
    CONFIG_DIR,
    ROOT,
    JSON,
    value(&["env"]),
    value(&["annotation"]),
    flag(&["privileged"]),
];
const GENERATE: &[Opt] = &[
    CONFIG,
    CONFIG_DIR,
    ROOT,
    value(&["vendor"]),
    value(&["output"]),
    value(&["output-dir"]),
    flag(&["remove"]),
];

/// The commands that engines start: they show the last line of an error, or its first bytes.
const OF_ENGINES: [&str; 7] = [
    "precreate",
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

static PROGRAM: Program = Program {
    name: "oci-decorator",
    version: concat!("oci-decorator ", env!("CARGO_PKG_VERSION"), "\n"),
    style: Style::Go,
    options: &[CONFIG, flag(&["version", "V"])],
    helps: &[("", include_str!("cli/help.txt")), ("configure", include_str!("cli/configure.txt"))],
    commands: &[
        command("check", CHECK, check),
        command("precreate", HOST, filter),
        command("cdi generate", GENERATE, generate),
        command("cdi list", &[CONFIG, CONFIG_DIR, ROOT, JSON], list),
        command("configure", configure::OPTIONS, configure::run).takes(Takes::One),
        command("install-links", configure::LINK_OPTIONS, configure::run_links).takes(Takes::One),
        command("prestart", HOST, run_hook),
        command("createRuntime", HOST, run_hook),
        command("createContainer", HOST, idle),
        command("startContainer", HOST, idle),
        command("poststart", HOST, idle),
        command("poststop", HOST, idle),
    ],
};

/// Runs a command line, without the program's name.
pub fn run(line: &[OsString]) -> u8 {
    let done = PROGRAM.run(line).and_then(|done| {
        done.ok_or_else(|| {
            let hint = "see its commands and options: oci-decorator --help";
            Error::usage("no command given").resolve(hint)
        })
    });
    done.unwrap_or_else(|error| {
        let is_engines = line.iter().any(|word| OF_ENGINES.iter().any(|name| word == name));
        let error = if is_engines { error.on_one_line() } else { error };
        complain(PROGRAM.name, &error)
    })
}

fn check(words: &ParsedArgs) -> Result<u8> {
    let loaded = settings_of(words)?;
    let config_dir = &loaded.settings.config_dir;
    if words.value("config-dir").is_some() && !config_dir.is_dir() {
        let shown = config_dir.display();
        return Err(
            Error::not_found(format!("{shown} is not a folder")).resolve(format!(
                "make it, and put vendor files there: mkdir -p {shown}; or check those of this host: oci-decorator check"
            )),
        );
    }
    let path = match root_of(words)? {
        Some(root) => settings::beneath(&root, nvidia::DEFAULT_PATH),
        None => nvidia::DEFAULT_PATH.into(),
    };
    let environment = words.each("env").map(|given| given.value.clone()).collect();
    let annotations = words.each("annotation").map(|given| annotation(words, &given.value));
    let container = SampleContainer {
        environment,
        annotations: annotations.collect::<Result<_>>()?,
        privileged: words.is_set("privileged"),
    };
    report(words, &container, &loaded, &nvidia::ConfigPath { path, named: false })
}

/// Prints the report of a check. Returns its exit code.
fn report(
    words: &ParsedArgs,
    container: &SampleContainer,
    loaded: &LoadedSettings,
    nvidia: &nvidia::ConfigPath,
) -> Result<u8> {
    let report = check::run(container, loaded, nvidia)?;
    print(&if words.is_set("json") {
        format!("{:#}\n", serde_json::json!(report))
    } else {
        report.text()
    })?;
    Ok(report.code())
}

/// Reads `oci-decorator.d/FLAG=VALUE` or `cdi.k8s.io/NAME=DEVICE`. Errors: another annotation.
fn annotation(words: &ParsedArgs, word: &str) -> Result<(String, String)> {
    let is_known = |key: &str| key.starts_with(ANNOTATION_PREFIX) || key.starts_with("cdi.k8s.io/");
    match word.split_once('=') {
        Some((key, value)) if is_known(key) => Ok((key.to_owned(), value.to_owned())),
        _ => Err(words.wrong(&format!(
            "--annotation {word:?}: expected {ANNOTATION_PREFIX}FLAG=VALUE or cdi.k8s.io/NAME=DEVICE"
        ))),
    }
}

fn filter(words: &ParsedArgs) -> Result<u8> {
    let settings = settings_of(words)?;
    let config = read_input("the spec", MAX_CONFIG)?;
    match runtime::filter(&settings, &config)? {
        Some(edited) => print(&edited),
        None => print(&config),
    }
}

/// Runs the hook at a stage at which a container's mount namespace can be joined.
fn run_hook(words: &ParsedArgs) -> Result<u8> {
    let settings = settings_of(words)?;
    hook::run(&settings, None, &hook::read_state(None)?)?;
    Ok(exit::DONE)
}

/// Does nothing, at a stage at which nothing is left to do, or the hook runs inside the container. The
/// input is not read.
// The signature is that of the other commands.
#[allow(clippy::unnecessary_wraps)]
fn idle(_words: &ParsedArgs) -> Result<u8> {
    Ok(exit::DONE)
}

/// Lists the devices of every specification on this host.
fn list(words: &ParsedArgs) -> Result<u8> {
    let settings = settings_of(words)?.sound()?;
    let folders = DEFAULT_FOLDERS.map(PathBuf::from);
    let listing = Listing::read(&settings.root, &folders)?;
    if !words.is_set("json") {
        listing.complain(PROGRAM.name);
    }
    listing.print(words.is_set("json"))
}

fn generate(words: &ParsedArgs) -> Result<u8> {
    let (output, folder) = (words.path("output")?, words.path("output-dir")?);
    let vendor = words.value("vendor");
    if folder.is_some() && (output.is_some() || vendor.is_some()) {
        return Err(words.wrong("--output-dir is for all vendors, without --output and --vendor"));
    }
    if words.is_set("remove") {
        let Some(folder) = &folder else {
            return Err(words.wrong("--remove needs the folder of the files: --output-dir DIR"));
        };
        for path in cdi::remove_each(folder)? {
            print(format!("removed {}\n", printable(&path.display().to_string())))?;
        }
        return Ok(exit::DONE);
    }
    let settings = settings_of(words)?.sound()?;
    let generator = cdi::Generator::read(&settings)?;
    if let Some(folder) = &folder {
        for note in cdi::write_each(folder, &generator)? {
            let _ = writeln!(std::io::stderr(), "note: {}", printable(&note));
        }
        return Ok(exit::DONE);
    }
    let spec = generator.specification(vendor)?;
    match &output {
        None => print(&spec),
        Some(file) => cdi::write(file, &spec).map(|()| exit::DONE),
    }
}

/// The devices in the folders of a host.
#[derive(Debug)]
pub struct Listing {
    devices: Vec<Value>,
    /// Files that can't be used, one for each line.
    problems: Vec<String>,
}

impl Listing {
    /// Reads the folders. Errors: the host's root or one of them can't be read.
    pub fn read(root: &Path, folders: &[PathBuf]) -> Result<Self> {
        let host = Host::open(root)?;
        let files = read(folders, &host)?;
        let (mut devices, mut problems) = (Vec::new(), Vec::new());
        for file in &files {
            if let Err(broken) = &file.content {
                let mistakes: Vec<_> = broken.mistakes.iter().map(ToString::to_string).collect();
                problems.push(format!("{}: {}", file.path.display(), mistakes.join("; ")));
            }
        }
        for (name, mut has) in Registry::new(&files, folders).list() {
            let conflicts = has.split_off(1);
            let file = has.concat();
            if !conflicts.is_empty() {
                let others = conflicts.join(", ");
                problems.push(format!("{name}: {file} has it and so has {others}: neither counts"));
            }
            devices.push(json!({"name": name, "file": file, "conflicts": conflicts}));
        }
        Ok(Self { devices, problems })
    }

    /// Prints the devices, and returns the exit code: a file that can't be used is wrong
    /// configuration.
    pub fn print(&self, is_json: bool) -> Result<u8> {
        print(&if is_json {
            let document = json!({"devices": self.devices, "problems": self.problems});
            format!("{document:#}\n")
        } else {
            let usable = self.devices.iter().filter(|device| device["conflicts"] == json!([]));
            let names = usable.filter_map(|device| device["name"].as_str());
            names.flat_map(|name| [name, "\n"]).collect()
        })?;
        Ok(if self.problems.is_empty() { exit::DONE } else { exit::USAGE })
    }

    /// Prints the files that can't be used, and what to do about them.
    pub fn complain(&self, program: &str) {
        let mut errors = std::io::stderr().lock();
        for problem in &self.problems {
            let _ = writeln!(errors, "{program}: {}", printable(problem));
        }
        if !self.problems.is_empty() {
            let _ = writeln!(
                errors,
                "What to do: correct or remove each of these files, then look again: {program} cdi list"
            );
        }
    }
}
