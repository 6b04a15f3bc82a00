//! `nvidia-ctk cdi`. An empty variable does not count, and an option overrides its variable.
//!
//! Source: <https://github.com/NVIDIA/nvidia-container-toolkit/tree/main/cmd/nvidia-ctk/cdi>

use std::path::{Path, PathBuf};

use crate::apply::cdi::nvidia::{self, Naming, SpecMode, KIND};
use crate::apply::cdi::{text, write};
use crate::cli::nvidia_ctk::warn;
use crate::cli::{print, settings_of, Listing, CONFIG_DIR, JSON, ROOT};
use crate::config::cdi::{Syntax, DEFAULT_FOLDERS};
use crate::error::{exit, Result};
use crate::spec::options::{flag, value, Opt, ParsedArgs};

pub const HELP: &str = include_str!("cdi.txt");

// They may stand after the command too, and change nothing then.
const DEBUG: Opt = flag(&["debug"]);
const QUIET: Opt = flag(&["quiet"]);

pub const GENERATE: &[Opt] = &[
    DEBUG,
    QUIET,
    value(&["output"]).or(&["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"]),
    value(&["format"]).or(&["NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT"]),
    value(&["mode", "discovery-mode"]).or(&["NVIDIA_CTK_CDI_GENERATE_MODE"]),
    value(&["device-name-strategy"]).or(&["NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES"]),
    value(&["vendor", "cdi-vendor"]).or(&["NVIDIA_CTK_CDI_GENERATE_VENDOR"]),
    value(&["class", "cdi-class"]).or(&["NVIDIA_CTK_CDI_GENERATE_CLASS"]),
    value(&["disable-hook", "disable-hooks"]).or(&["NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"]),
    value(&["enable-hook", "enable-hooks"]).or(&["NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS"]),
    flag(&["no-all-device"]).or(&["NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE"]),
    value(&["device-id", "device-ids", "device", "devices"])
        .or(&["NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS"]),
    // NVIDIA's program does not have these two.
    ROOT,
    CONFIG_DIR,
    // These change nothing, because the vendor file has the paths of the driver.
    unused(&["config-search-path"], &["NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS"]),
    unused(&["csv.compat-container-root"], &["NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT"]),
    unused(&["csv.file"], &["NVIDIA_CTK_CDI_GENERATE_CSV_FILES"]),
    unused(&["csv.ignore-pattern"], &["NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS"]),
    unused(&["dev-root"], &["NVIDIA_CTK_DEV_ROOT"]),
    unused(&["driver-root"], &["NVIDIA_CTK_DRIVER_ROOT"]),
    unused(&["feature-flag", "feature-flags"], &["NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS"]),
    unused(&["ldconfig-path"], &["NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH"]),
    unused(&["library-search-path"], &["NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS"]),
    unused(&["nvidia-cdi-hook-path", "nvidia-ctk-path"], &["NVIDIA_CTK_CDI_HOOK_PATH"]),
];

const UNUSED: &str = "unused";

const fn unused(names: &'static [&'static str], variables: &'static [&'static str]) -> Opt {
    value(names).keyed(UNUSED).or(variables)
}

pub const LIST: &[Opt] =
    &[DEBUG, QUIET, value(&["spec-dir"]).or(&["NVIDIA_CTK_CDI_SPEC_DIRS"]), JSON, ROOT, CONFIG_DIR];

pub fn generate(args: &ParsedArgs) -> Result<u8> {
    let settings = settings_of(args)?.sound()?;
    let namings =
        args.list_of("device-name-strategy", Naming::parse, "index, uuid and type-index")?;
    let enabled_hooks = args.list("enable-hook");
    if enabled_hooks.iter().any(|hook| hook == "all") {
        return Err(args.wrong("--enable-hook all: name each hook"));
    }
    let mode = args.one_of("mode", SpecMode::parse, &SpecMode::words())?;
    let syntax = syntax(args)?;
    let options = nvidia::Options {
        vendor: args.value("vendor").unwrap_or(KIND.0),
        class: args.value("class").unwrap_or(KIND.1),
        namings: if namings.is_empty() { &nvidia::USUAL } else { &namings },
        ids: &args.list("device-id"),
        without_all: args.is_set("no-all-device"),
        disabled_hooks: &args.list("disable-hook"),
        enabled_hooks: &enabled_hooks,
    };
    let document = nvidia::generate(&settings, mode.unwrap_or(SpecMode::Devices), &options)?;
    for name in args.each(UNUSED).map(|given| &given.by) {
        warn(
            args,
            &format!("{name} has no meaning here: the vendor file names the driver's folder"),
        );
    }
    let text = text(&document, syntax);
    match output(args) {
        None => print(&text),
        Some(path) => write(path, &text).map(|()| exit::DONE),
    }
}

pub fn list(args: &ParsedArgs) -> Result<u8> {
    let settings = settings_of(args)?.sound()?;
    let mut folders = Vec::new();
    for given in args.each("spec-dir") {
        for folder in given.value.split(',').map(str::trim) {
            if folder.is_empty() {
                return Err(args.wrong(&format!("{} is empty: give it a path", given.by)));
            }
            folders.push(PathBuf::from(folder));
        }
    }
    if folders.is_empty() {
        folders = DEFAULT_FOLDERS.map(PathBuf::from).into();
    }
    let listing = Listing::read(&settings.root, &folders)?;
    if !args.is_set("json") {
        listing.complain("nvidia-ctk");
    }
    listing.print(args.is_set("json"))
}

/// The file to write. `None`: standard output.
fn output(args: &ParsedArgs) -> Option<&Path> {
    let named = args.value("output").filter(|path| !matches!(*path, "" | "-"));
    named.map(Path::new)
}

/// The requested syntax, else that of the output's name, else YAML.
fn syntax(args: &ParsedArgs) -> Result<Syntax> {
    let read = |word: &str| match word.to_ascii_lowercase().as_str() {
        "" => Some(None),
        "yaml" => Some(Some(Syntax::Yaml)),
        "json" => Some(Some(Syntax::Json)),
        _ => None,
    };
    let named = args.one_of("format", read, "yaml and json")?.flatten();
    let by_name = || output(args)?.to_str().and_then(Syntax::of);
    Ok(named.or_else(by_name).unwrap_or(Syntax::Yaml))
}
