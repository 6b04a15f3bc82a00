//! The command line of `nvidia-container-cli`, with which LXC and Incus, enroot, Apptainer and
//! containerd's `ctr` put NVIDIA's driver into a mounted root.
//!
//! Source: <https://github.com/NVIDIA/libnvidia-container/tree/main/src/cli>

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::process::Pid;

use crate::cli::nvidia_hook::SETTINGS_OPTION;
use crate::config::nvidia::{
    Compat, LoadedConfig, NvidiaConfig, CAPABILITIES as KNOWN_CAPABILITIES,
};
use crate::config::settings::{self, LoadedSettings};
use crate::error::{exit, Error, Result};
use crate::frontends::nvidia::{CAPABILITIES, DEVICES, IMEX_CHANNELS};
use crate::frontends::{hook, Context, FrontEndKind};
use crate::host::facts::{field, Facts, Gpu, WRITE_AGAIN};
use crate::host::libraries::is_library;
use crate::host::nodes::trailing_number;
use crate::host::Host;
use crate::log::{Level, Log};
use crate::model::edits::Edits;
use crate::model::policy::Policy;
use crate::model::request::{ContainerRequest, Interface, MIG_RIGHTS};
use crate::spec::options::{
    command, complain, flag, optional, print, value, Opt, ParsedArgs, Program, Style, Takes,
};

pub const NAME: &str = "nvidia-container-cli";

static PROGRAM: Program = Program {
    name: NAME,
    version: concat!("cli-version: ", env!("CARGO_PKG_VERSION"), " (oci-decorator)\n"),
    style: Style::Argp,
    options: &[
        value(&[SETTINGS_OPTION]),
        value(&["debug", "d"]),
        flag(&["version", "V"]),
        // These change nothing: provision loads the modules, the vendor file names the driver's
        // files, and no program runs in the container's root or as another user.
        flag(&["load-kmods", "k"]),
        flag(&["no-pivot", "n"]),
        flag(&["no-create-imex-channels"]),
        optional(&["user", "u"]),
        value(&["root", "r"]),
        value(&["ldcache", "l"]),
    ],
    helps: &[("", include_str!("nvidia_container_cli.txt"))],
    commands: &[
        command("info", &[flag(&["csv"])], info),
        command("list", LIST, list),
        command("configure", CONFIGURE, configure).takes(Takes::One),
    ],
};

const LIST: &[Opt] = &[
    value(&["device", "d"]),
    flag(&["libraries", "l"]),
    flag(&["binaries", "b"]),
    flag(&["ipcs", "i"]),
    flag(&["compat32"]),
];

const CONFIGURE: &[Opt] = &[
    value(&["pid", "p"]),
    value(&["device", "d"]),
    value(&["require", "r"]),
    value(&["mig-config"]),
    value(&["mig-monitor"]),
    value(&["imex-channel"]),
    flag(&["compute", "c"]),
    flag(&["utility", "u"]),
    flag(&["video", "v"]),
    flag(&["graphics", "g"]),
    flag(&["display", "D"]),
    flag(&["ngx"]),
    flag(&["compat32"]),
    flag(&["no-cgroups"]),
    flag(&["no-devbind"]),
    flag(&["no-cntlibs"]),
    value(&["cuda-compat-mode"]),
    // These change nothing: the library cache is written without ldconfig, and the vendor file says
    // which sockets and firmware belong to the driver.
    value(&["ldconfig", "l"]),
    flag(&["no-persistenced"]),
    flag(&["no-fabricmanager"]),
    flag(&["no-gsp-firmware"]),
];

/// Runs a command line, without the program's name. Engines show one line of an error.
pub fn run(line: &[OsString]) -> u8 {
    let help = PROGRAM.helps[0].1;
    let done = PROGRAM.run(line).and_then(|done| done.map_or_else(|| print(help), Ok));
    done.unwrap_or_else(|error| complain(NAME, &error.on_one_line()))
}

/// The settings and the log. Variables name no settings: LXC and enroot start this program with the
/// container's environment.
fn loaded(words: &ParsedArgs) -> (LoadedSettings, Log) {
    let mut loaded = settings::load(words.value(SETTINGS_OPTION).map(Path::new));
    let settings = &mut loaded.settings;
    if let Some(file) = words.value("debug") {
        settings.log_file = Some(PathBuf::from(file));
        settings.log_level = Level::Debug;
    }
    let log = Log::new(settings.log_level, settings.log_file.clone(), "");
    (loaded, log)
}

/// What a container with this environment gets, by NVIDIA's rules.
fn edits(context: &Context, environment: &[String]) -> Result<Edits> {
    let request = ContainerRequest::of_environment(environment.iter().map(String::as_str));
    let mut request = context.with_device_requests(request);
    // The host's scheduler may give other vendors' devices to the container of a job.
    request.device_requests.retain(|it| it.interface == Some(Interface::Nvidia));
    Ok(context.edits(&request)?.unwrap_or_default())
}

fn configure(words: &ParsedArgs) -> Result<u8> {
    let root = words.operands.first().map(Path::new).filter(|root| root.is_absolute());
    let root =
        root.ok_or_else(|| words.wrong("the absolute path of the container's root is missing"))?;
    let pid =
        words.one_of("pid", |pid| Pid::from_raw(pid.parse().ok()?), "the numbers of processes")?;
    let no_cgroups = words.is_set("no-cgroups");
    if pid.is_none() && !no_cgroups {
        return Err(words.wrong(
            "--pid or --no-cgroups is missing: only the cgroup of a process can be changed",
        ));
    }
    let is_without_compat =
        words.is_set("no-cntlibs") || words.value("cuda-compat-mode") == Some("disabled");
    let compat = if is_without_compat { Compat::Disabled } else { Compat::default() };
    let config = NvidiaConfig { no_cgroups, compat, no_groups: true, ..NvidiaConfig::default() };
    let (loaded, log) = loaded(words);
    let config = LoadedConfig { config, ..LoadedConfig::default() };
    let context = Context::of(&loaded, &log, FrontEndKind::Hook, Some(&config));
    let mut edits = edits(&context, &environment(words))?;
    if words.is_set("no-devbind") {
        edits.devices.clear();
    }
    hook::configure(&context, edits, pid, root)?;
    Ok(exit::DONE)
}

/// The variables with which a container asks for what the options name.
fn environment(words: &ParsedArgs) -> Vec<String> {
    let all = |option| {
        let values: Vec<_> = words.each(option).map(|given| given.value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(","))
    };
    let capabilities = KNOWN_CAPABILITIES.into_iter().filter(|name| words.is_set(name));
    let capabilities: Vec<_> = capabilities.collect();
    let mut variables = vec![
        format!("{DEVICES}={}", all("device").unwrap_or("none".to_owned())),
        format!("{CAPABILITIES}={}", capabilities.join(",")),
    ];
    for (option, variable) in [
        ("mig-config", MIG_RIGHTS[0].0),
        ("mig-monitor", MIG_RIGHTS[1].0),
        ("imex-channel", IMEX_CHANNELS),
    ] {
        variables.extend(all(option).map(|value| format!("{variable}={value}")));
    }
    let requirements = words.each("require").enumerate();
    variables.extend(requirements.map(|(at, it)| format!("NVIDIA_REQUIRE_{at}={}", it.value)));
    variables
}

/// Prints the paths of the driver's files and nodes on the host.
fn list(words: &ParsedArgs) -> Result<u8> {
    let is_all = LIST.iter().all(|option| words.value(option.name()).is_none());
    let (mut loaded, log) = loaded(words);
    // The host's files are shown, not given to a container.
    loaded.settings.policy = Policy::default();
    let config = LoadedConfig::default();
    let context = Context::of(&loaded, &log, FrontEndKind::Hook, Some(&config));
    let devices = words.value("device").unwrap_or(if is_all { "all" } else { "none" });
    let wants_compat32 = is_all || words.is_set("compat32");
    let capabilities = KNOWN_CAPABILITIES.into_iter();
    let capabilities = capabilities.filter(|name| wants_compat32 || *name != "compat32");
    let capabilities = capabilities.collect::<Vec<_>>().join(",");
    let edits = edits(
        &context,
        &[format!("{DEVICES}={devices}"), format!("{CAPABILITIES}={capabilities}")],
    )?;
    let host = Host::open(&loaded.settings.root)?;
    let mut paths: Vec<&str> = Vec::new();
    if is_all || words.value("device").is_some() {
        paths.extend(edits.devices.iter().map(|device| device.source.as_str()));
    }
    for mount in &edits.mounts {
        let kind = host.stat(&mount.source).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let option = match kind {
            Ok(FileType::Socket) => "ipcs",
            Ok(FileType::RegularFile) if is_library(&mount.target) => "libraries",
            Ok(FileType::RegularFile) if is_program(&mount.target) => "binaries",
            _ => continue,
        };
        if is_all || words.is_set(option) {
            paths.push(&mount.source);
        }
    }
    // Several names in a container may lead to one file.
    let mut known = BTreeSet::new();
    paths.retain(|path| known.insert(*path));
    print(paths.iter().flat_map(|path| [*path, "\n"]).collect::<String>())
}

fn is_program(path: &str) -> bool {
    let folder = Path::new(path).parent().and_then(Path::file_name);
    folder.is_some_and(|folder| folder == "bin" || folder == "sbin")
}

fn info(words: &ParsedArgs) -> Result<u8> {
    let (loaded, _) = loaded(words);
    let host = Host::open(&loaded.settings.root)?;
    let known = host.facts(Interface::Nvidia.word());
    let known = known.map_err(|problem| Error::failed(problem).resolve(WRITE_AGAIN))?;
    let facts = known.or_else(|| of_nodes(&host)).ok_or_else(|| {
        Error::not_found("no NVIDIA driver is loaded, or its devices are unknown")
            .resolve("load it, and write the device facts: provision load nvidia && provision devices --rescan")
    })?;
    let driver = facts.driver_version.clone().or_else(|| driver_version(&host));
    let versions = [driver, facts.cuda_version.clone()].map(|text| text.unwrap_or(UNKNOWN.into()));
    let devices = facts.devices.iter().map(|gpu| columns(&host, gpu));
    let text = if words.is_set("csv") {
        let rows: Vec<String> = devices.map(|device| device.join(",") + "\n").collect();
        let (versions, columns) = (versions.join(","), COLUMNS.join(","));
        format!("NVRM version,CUDA version\n{versions}\n\n{columns}\n{}", rows.concat())
    } else {
        let line = |(name, value): (&str, &String)| format!("{:<15} {value}\n", format!("{name}:"));
        let lines = |names: &[&'static str], values: &[String]| {
            names.iter().copied().zip(values).map(line).collect::<Vec<_>>().concat()
        };
        let versions = lines(&["NVRM version", "CUDA version"], &versions);
        let devices = devices.map(|device| lines(&COLUMNS, &device));
        std::iter::once(versions).chain(devices).collect::<Vec<_>>().join("\n")
    };
    print(&text)
}

/// What the nodes say of the devices: that they are there, by the numbers by which `list` and
/// requests know them, too.
fn of_nodes(host: &Host) -> Option<Facts> {
    let numbers = host.nodes("/dev/nvidia[0-9]*").filter_map(|node| trailing_number(&node.path));
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let gpu = |number| Gpu { index: number, minor: number, ..Gpu::default() };
    let devices: Vec<Gpu> = numbers.into_iter().map(gpu).collect();
    (!devices.is_empty()).then(|| Facts { devices, ..Facts::default() })
}

const COLUMNS: [&str; 7] =
    ["Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture"];
const UNKNOWN: &str = "unknown";

fn columns(host: &Host, gpu: &Gpu) -> [String; 7] {
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or(UNKNOWN.to_owned());
    let about = gpu.pci.as_ref().and_then(|pci| {
        host.text_of_kernel(&format!("/proc/driver/nvidia/gpus/{pci}/information"))
    });
    let model = about.and_then(|about| field(&about, "Model").map(str::to_owned));
    // NVML writes the domain with eight digits.
    let bus = gpu.pci.as_ref().map(|pci| format!("0000{pci}"));
    [
        gpu.index.to_string(),
        gpu.minor.to_string(),
        or_unknown(&model),
        or_unknown(&gpu.brand),
        or_unknown(&gpu.uuid),
        or_unknown(&bus),
        or_unknown(&gpu.arch),
    ]
}

/// The version of the driver that is loaded: in the first line of its file, which ends with a date.
fn driver_version(host: &Host) -> Option<String> {
    let text = host.text_of_kernel("/proc/driver/nvidia/version")?;
    let is_version = |word: &&str| {
        word.split('.').count() > 1 && word.split('.').all(|part| part.parse::<u32>().is_ok())
    };
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}
