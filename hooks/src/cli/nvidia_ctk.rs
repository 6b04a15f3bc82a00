//! The command line of `nvidia-ctk`.

mod system;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use toml_edit::{Array, Value};

use crate::apply::cdi::{generate as specification, write, Naming, Options, SpecMode, KIND, USUAL};
use crate::cli::check::SampleContainer;
use crate::cli::configure::{beside_us, engine_of, is_hook_mode, Order, REPLACE};
use crate::cli::nvidia_hook::run_cdi;
use crate::cli::{report, Listing, CONFIG_DIR, JSON, ROOT};
use crate::config::cdi::{Syntax, DEFAULT_FOLDERS};
use crate::config::nvidia::{self, ConfigPath};
use crate::config::settings::{self, settings_of};
use crate::engines::drop_ins::Hook;
use crate::engines::{toml_text, Engine};
use crate::error::{exit, Error, Result};
use crate::host::files;
use crate::log::printable;
use crate::spec::options::{
    command, complain, flag, print, truth, value, Opt, ParsedArgs, Program, Style, Takes,
};

const HELP: &str = include_str!("nvidia_ctk/help.txt");

static PROGRAM: Program = Program {
    name: "nvidia-ctk",
    version: concat!(
        // Of the toolkit whose decisions are made here, as other programs compare it.
        "NVIDIA Container Toolkit CLI version 1.20.2\ncommit: oci-decorator-",
        env!("CARGO_PKG_VERSION"),
        "\n"
    ),
    style: Style::Go,
    options: &[
        flag(&["debug", "d"]).or(&["NVIDIA_CTK_DEBUG"]),
        flag(&["quiet"]).or(&["NVIDIA_CTK_QUIET"]),
        value(&["config"]).keyed("settings").or(&["NVIDIA_CTK_CONFIG"]),
        flag(&["version", "v"]),
    ],
    helps: &[("", HELP), ("cdi", CDI_HELP)],
    commands: &[
        command("runtime configure", RUNTIME_OPTIONS, configure_runtime),
        command("config", CONFIG_OPTIONS, edit_config),
        command("config default", CONFIG_OPTIONS, default_config),
        command("info", INFO, info),
        command("system create-dev-char-symlinks", system::LINK_OPTIONS, system::links),
        command("system create-device-nodes", system::NODE_OPTIONS, system::nodes),
        command("cdi generate", CDI_GENERATE, generate),
        command("cdi list", CDI_LIST, list),
        command("hook", &[], hook).takes(Takes::Line),
    ],
};

const INFO: &[Opt] = &[JSON, value(&["config-file", "config"])];

/// Checks as `oci-decorator check` does, with these settings of NVIDIA's.
fn info(words: &ParsedArgs) -> Result<u8> {
    let own = settings::load(settings::named_by_environment().as_deref());
    report(words, &SampleContainer::default(), &own, &place_of(words))
}

/// Runs a hook, which reports its own errors.
#[allow(clippy::unnecessary_wraps)]
fn hook(words: &ParsedArgs) -> Result<u8> {
    Ok(run_cdi(&words.operands))
}

/// Runs a command line, without the program's name.
pub fn run(line: &[OsString]) -> u8 {
    let done = PROGRAM.run(line).and_then(|done| done.map_or_else(|| print(HELP), Ok));
    done.unwrap_or_else(|error| complain(PROGRAM.name, &error))
}

fn debug(words: &ParsedArgs, line: &str) {
    if words.is_set("debug") {
        warn(words, line);
    }
}

fn warn(words: &ParsedArgs, line: &str) {
    if !words.is_set("quiet") {
        let _ = writeln!(std::io::stderr(), "{}: {}", PROGRAM.name, printable(line));
    }
}

fn place_of(words: &ParsedArgs) -> ConfigPath {
    let named = words.value("config-file").or(words.value("settings"));
    nvidia::place(named.filter(|path| !path.is_empty()).map(Path::new), true)
}

pub const RUNTIME_OPTIONS: &[Opt] = &[
    value(&["runtime"]),
    value(&["config"]),
    value(&["drop-in-config"]),
    flag(&["set-as-default", "nvidia-set-as-default"]),
    value(&["nvidia-runtime-name", "runtime-name"]).keyed("runtime-name"),
    value(&["nvidia-runtime-path", "runtime-path"]).keyed("runtime-path"),
    value(&["nvidia-runtime-hook-path"]),
    flag(&["cdi.enabled", "cdi.enable", "enable-cdi"]).keyed("cdi"),
    value(&["config-mode"]),
    value(&["hook-file-path", "oci-hook-path"]),
    flag(&["dry-run"]),
    REPLACE,
    // With these, NVIDIA's program asks the engine itself. Here the files are read.
    value(&["config-source"]),
    value(&["executable-path"]),
];

const RUNTIME: &str = "nvidia-container-runtime";
const HOOK_PROGRAM: &str = "nvidia-container-runtime-hook";

pub fn configure_runtime(args: &ParsedArgs) -> Result<u8> {
    let hint =
        "name docker, containerd, crio or podman: nvidia-ctk runtime configure --runtime=docker";
    let engine = engine_of(args, args.value("runtime").unwrap_or("docker"), hint)?;
    let name = args.value("runtime-name").unwrap_or("nvidia");
    let program = match args.value("runtime-path") {
        Some(path) => path.to_owned(),
        // Docker looks names up itself, and NVIDIA's tool writes a name for it.
        None if engine == Engine::Docker => RUNTIME.to_owned(),
        None => installed(RUNTIME)?,
    };
    // As with NVIDIA's tool, the file of a hook is no engine's, and is printed unless it has a path.
    let is_hook = is_hook_mode(args, Engine::Podman)?;
    let hook_file = args.path("hook-file-path")?;
    if hook_file.is_some() && !is_hook {
        return Err(args.wrong("--hook-file-path needs --config-mode=oci-hook"));
    }
    let is_printed = is_hook && hook_file.is_none();
    let hooks = || -> Result<Vec<Hook>> {
        let program = args.value("nvidia-runtime-hook-path").map(str::to_owned);
        Ok(vec![Hook {
            file: hook_file.unwrap_or_else(|| "oci-nvidia-hook.json".into()),
            program: program.map_or_else(|| installed(HOOK_PROGRAM), Ok)?,
            stage: "prestart",
        }])
    };
    if is_printed {
        return print(hooks()?.iter().map(Hook::text).collect::<String>());
    }
    debug(args, &format!("the runtime {name} is {program}"));
    let hooks = is_hook.then(hooks).transpose()?;
    Order::of(args, engine, name, program, hooks)?.carry_out()
}

/// The link beside this program, else the path that packages use.
fn installed(name: &str) -> Result<String> {
    let beside = beside_us(name)?;
    if Path::new(&beside).exists() {
        return Ok(beside);
    }
    Ok(format!("/usr/bin/{name}"))
}

pub const CDI_HELP: &str = include_str!("nvidia_ctk/cdi.txt");

// They may stand after the command too, and change nothing then.
const DEBUG: Opt = flag(&["debug"]);
const QUIET: Opt = flag(&["quiet"]);

pub const CDI_GENERATE: &[Opt] = &[
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

pub const CDI_LIST: &[Opt] =
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
    let options = Options {
        vendor: args.value("vendor").unwrap_or(KIND.0),
        class: args.value("class").unwrap_or(KIND.1),
        namings: if namings.is_empty() { &USUAL } else { &namings },
        ids: &args.list("device-id"),
        without_all: args.is_set("no-all-device"),
        disabled_hooks: &args.list("disable-hook"),
        enabled_hooks: &enabled_hooks,
    };
    let document = specification(&settings, mode.unwrap_or(SpecMode::Devices), &options)?;
    for name in args.each(UNUSED).map(|given| &given.by) {
        warn(
            args,
            &format!("{name} has no meaning here: the vendor file names the driver's folder"),
        );
    }
    let text = document.text(syntax);
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

const CONFIG_OPTIONS: &[Opt] = &[
    value(&["config-file", "config", "c"]),
    value(&["set"]),
    flag(&["in-place", "i"]),
    value(&["output", "o"]),
];

fn edit_config(args: &ParsedArgs) -> Result<u8> {
    let place = place_of(args);
    let is_in_place = args.is_set("in-place");
    let output = match (is_in_place, output(args)) {
        (true, Some(_)) => return Err(args.wrong("--in-place and --output name different files")),
        (true, None) => Some(&*place.path),
        (false, output) => output,
    };
    // Locked before it is read, as another command's change would be lost otherwise.
    let _held = output.map(|_| files::lock()).transpose()?;
    let mut text = match files::read(&place.path)? {
        Some(text) => text,
        None if place.named && !is_in_place => {
            let shown = place.path.display();
            return Err(Error::not_found(format!("there is no file {shown}"))
                .resolve(format!("`nvidia-ctk config default --output {shown}` makes it")));
        }
        None => installed_config(),
    };
    for setting in args.each("set").map(|given| &given.value) {
        text = set(&text, setting).map_err(|problem| {
            Error::usage(format!("--set {setting:?}: {problem}"))
                .resolve("`nvidia-ctk config default` shows every key")
        })?;
        debug(args, &format!("{setting} is set"));
    }
    put(&text, output)
}

fn default_config(args: &ParsedArgs) -> Result<u8> {
    match output(args) {
        None if args.is_set("in-place") => {
            Err(args.wrong("--in-place names no file; use --output"))
        }
        output => put(&installed_config(), output),
    }
}

fn installed_config() -> String {
    let read = |path| std::fs::read_to_string(path).ok();
    let release = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"));
    default_text(&release.unwrap_or_default(), Path::new("/sbin/ldconfig.real").exists())
}

fn put(text: &str, file: Option<&Path>) -> Result<u8> {
    match file {
        None => print(text),
        Some(file) => files::write(file, text, None).map(|()| exit::DONE),
    }
}

const TEMPLATE: &str = include_str!("../../config/nvidia-container-runtime.toml");

/// The text of a new installation, on a distribution with this text of os-release(5). On SUSE, devices
/// belong to the group `video`. On Ubuntu, ldconfig is a script that calls another program.
fn default_text(os_release: &str, has_real_ldconfig: bool) -> String {
    let value = |name: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_default().trim_matches(['"', '\''])
    };
    let mut words = value("ID=").split_whitespace().chain(value("ID_LIKE=").split_whitespace());
    let mut text = TEMPLATE.to_owned();
    if words.any(|word| word == "suse" || word == "sles" || word.starts_with("opensuse")) {
        text = text.replace("#user = \"root:video\"", "user = \"root:video\"");
    }
    if has_real_ldconfig {
        text = text.replace("@/sbin/ldconfig\"", "@/sbin/ldconfig.real\"");
    }
    text
}

/// Changes one setting: `KEY=VALUE`, `KEY` for true, or `KEY=nil`, which removes a feature's line.
/// Every other line stays.
/// Errors: the key does not exist, or the value is wrong.
fn set(text: &str, setting: &str) -> Result<String, String> {
    let (key, value) = match setting.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value)),
        None => (setting.trim(), None),
    };
    let mut document = toml_text::parse(text)?;
    let path: Vec<&str> = key.split('.').collect();
    let Some((name, above)) = path.split_last() else {
        return Err("expected KEY=VALUE".to_owned());
    };
    if value == Some("nil") && above == ["features"] && nvidia::is_known(key) {
        toml_text::remove(&mut document, &path);
        return Ok(toml_text::text_of(&document));
    }
    let value = right_value(key, value)?;
    let table = toml_text::table(&mut document, above)?;
    toml_text::set(table, name, value);
    Ok(toml_text::text_of(&document))
}

/// The value in the type of the key, which the reader of the file knows.
fn right_value(key: &str, value: Option<&str>) -> Result<Value, String> {
    if !nvidia::is_known(key) {
        return Err(format!("there is no setting {key:?}"));
    }
    let list = |text: &str| {
        let separator = if text.contains(':') { ':' } else { ',' };
        text.split(separator).filter(|item| !item.is_empty()).collect::<Array>()
    };
    let candidates = [
        truth(value.unwrap_or("true")).map(Value::from),
        value.map(Value::from),
        value.map(|text| Value::Array(list(text))),
    ];
    let mut problems = Vec::new();
    for candidate in candidates.into_iter().flatten() {
        let text = format!("{key} = {candidate}\n");
        match nvidia::mistakes(&text).pop() {
            None => return Ok(candidate),
            Some(problem) => problems.push(problem),
        }
    }
    // If a problem is not about the type, the type was right and the value was wrong.
    let of_value = |problem: &&String| !problem.contains(": expected ");
    let said = problems.iter().find(of_value).or(problems.first());
    Err(said.cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::engines::links::NAMES;
    use crate::frontends::cdi_hook::VERBS;

    #[test]
    fn the_reference_and_the_help_have_every_command() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/nvidia.md");
        let page = std::fs::read_to_string(page).unwrap();
        for command in PROGRAM.commands {
            let name = command.name.replace("hook", "hook NAME");
            assert!(page.contains(&format!("| `nvidia-ctk {name}` |")), "{name}");
            for word in command.name.split(' ') {
                assert!(HELP.contains(word) || CDI_HELP.contains(word), "{word}");
            }
        }
        for verb in VERBS {
            assert!(page.contains(&format!("| `{verb}` |")), "{verb}");
        }
        for name in NAMES {
            assert!(page.contains(&format!("`{name}")), "{name}");
        }
        let words = HELP.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
        for option in words.filter(|word| word.starts_with("--")) {
            let is_there =
                ["`", " ", "="].iter().any(|end| page.contains(&format!("`{option}{end}")));
            assert!(is_there, "{option}");
        }
    }

    #[test]
    fn the_help_of_cdi_has_every_option_and_mode() {
        for word in crate::apply::cdi::SpecMode::words().split(", ") {
            assert!(word == "management" || CDI_HELP.contains(word), "{word}");
        }
        for option in [CDI_GENERATE, CDI_LIST].into_iter().flatten() {
            let name = option.name();
            let is_global = ["debug", "quiet"].contains(&name);
            assert!(is_global || CDI_HELP.contains(&format!("--{name}")), "{name}");
        }
    }

    #[test]
    fn every_distributions_file_is_without_mistake() {
        for (release, real, user, ldconfig) in [
            ("ID=debian\n", false, false, "@/sbin/ldconfig"),
            ("ID=ubuntu\nID_LIKE=debian\n", true, false, "@/sbin/ldconfig.real"),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", false, true, "@/sbin/ldconfig"),
            ("ID=sles\nVERSION_ID=15\n", false, true, "@/sbin/ldconfig"),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", false, false, "@/sbin/ldconfig"),
        ] {
            let text = default_text(release, real);
            assert_eq!(nvidia::mistakes(&text), Vec::<String>::new());
            let table = toml_text::parse(&text).unwrap();
            let cli = table["nvidia-container-cli"].as_table().unwrap();
            assert_eq!(cli.get("user").is_some(), user, "{release}");
            assert_eq!(cli["ldconfig"].as_str(), Some(ldconfig));
        }
    }

    /// Commented lines have the defaults too.
    #[test]
    fn every_line_of_it_is_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "").unwrap();
        for (place, bits) in [(dir.path(), 0o700), (path.as_path(), 0o600)] {
            std::fs::set_permissions(place, PermissionsExt::from_mode(bits)).unwrap();
        }
        let live: String = TEMPLATE
            .lines()
            .filter(|line| !line.starts_with("#debug") && !line.starts_with("#swarm"))
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        for text in [TEMPLATE, &*live] {
            std::fs::write(&path, text).unwrap();
            let loaded = nvidia::load(nvidia::ConfigPath { path: path.clone(), named: true });
            assert_eq!((loaded.problem, loaded.warnings), (None, Vec::new()));
            let mut config = loaded.config;
            config.capabilities.sort();
            // If these two are set, they override our settings.
            assert_eq!(config.log_level.take(), Some(crate::log::Level::Info));
            let runtimes = config.runtimes.take().unwrap();
            assert_eq!(runtimes, ["runc", "crun"]);
            assert_eq!(config, nvidia::NvidiaConfig::default());
        }
    }
}
