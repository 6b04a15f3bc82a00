//! The runtime shim: edits the bundle of a new container, then becomes the low-level runtime. Every
//! other command passes through. And the filter, which edits a spec and writes it to its output only.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, Stat};

use crate::apply::spec::{read_config, write_config, Spec};
use crate::apply::write_files;
use crate::config::nvidia::LoadedConfig;
use crate::config::settings::{self, LoadedSettings};
use crate::error::{exit, Error, Result};
use crate::frontends::{self, Context, FrontEndKind};
use crate::host::files::{candidates, is_executable, PATH};
use crate::host::rootfs::Rootfs;
use crate::log::{append, now, printable, Level, Log, Note};
use crate::spec::command_line::{Arguments, Create, LogFormat};
use crate::spec::config::{quote, ContainerConfig};

/// The program's name as a runtime.
pub const NAME: &str = "oci-decorator-runtime";
/// Where Kubernetes' packages of CRI-O have their own runc and crun, outside of every `PATH`.
const CRIO: &str = "/usr/libexec/crio";

/// Runs the command line of a runtime, under NVIDIA's name or our own. Returns only if that fails.
pub fn run(words: &[OsString], nvidia: Option<&LoadedConfig>) -> u8 {
    let arguments = Arguments::parse(words);
    let Err(error) = start(&arguments, words, nvidia);
    report(&arguments, &printable(&error.to_string()));
    exit::FAILED
}

fn start(
    arguments: &Arguments,
    words: &[OsString],
    nvidia: Option<&LoadedConfig>,
) -> Result<std::convert::Infallible> {
    // Containers can be stopped even if the settings are broken.
    let named = settings::named_by_environment();
    let loaded = settings::load(named.as_deref());
    if arguments.ambiguity.is_some() || !arguments.creates.is_empty() {
        decorate(&loaded, arguments, nvidia)?;
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH.into());
    let program = low_level(&loaded, named.as_deref(), nvidia, path)?;
    let error = Command::new(&program).args(words).exec();
    Err(Error::failed(format!("can't run {}: {error}", program.display())))
}

/// The low-level runtime that a start with this `PATH` becomes. `named` is the file of the settings, unless it is the
/// default. Errors: there is none.
pub fn low_level(
    loaded: &LoadedSettings,
    named: Option<&Path>,
    nvidia: Option<&LoadedConfig>,
    mut path: OsString,
) -> Result<PathBuf> {
    let theirs = nvidia
        .and_then(|loaded| Some((loaded.config.runtimes.as_deref()?, loaded.path.as_deref()?)));
    let (runtimes, file) = theirs
        .unwrap_or((&loaded.settings.runtimes, named.unwrap_or(Path::new(settings::DEFAULT_PATH))));
    path.push(":");
    path.push(CRIO);
    find(runtimes, &path).ok_or_else(|| {
        Error::not_found(format!("no low-level runtime found: {}", runtimes.join(", "))).resolve(
            format!(
                "install one in a folder of PATH, or name it under \"runtimes\" in {}",
                file.display()
            ),
        )
    })
}

/// Edits the bundle of the container.
fn decorate(
    loaded: &LoadedSettings,
    arguments: &Arguments,
    nvidia: Option<&LoadedConfig>,
) -> Result<()> {
    let settings = &loaded.settings;
    let container = arguments.creates.first().map_or("", |create| &create.container);
    let theirs = nvidia.map(|nvidia| &nvidia.config);
    let level = theirs.and_then(|config| config.log_level);
    let file = theirs.and_then(|config| config.log_file.clone());
    let log = Log::new(
        level.unwrap_or(settings.log_level),
        file.or_else(|| settings.log_file.clone()),
        container,
    );
    let context = Context::of(loaded, &log, FrontEndKind::Runtime, nvidia);
    let edited = configs(&arguments.creates).and_then(|configs| {
        match (configs.as_slice(), arguments.ambiguity) {
            ([config], None) => edit_bundle(&context, config),
            (_, Some(why)) if arguments.creates.is_empty() => Err(ambiguous("", why)),
            // Without a config, the runtime reports what is missing.
            (configs, why) => refuse_who_asks(&context, configs, why),
        }
    });
    log.refusal(&edited);
    edited
}

struct Existing<'a> {
    create: &'a Create,
    bytes: Vec<u8>,
    stat: Stat,
}

/// The configs that exist. A runtime that looks elsewhere makes no container.
fn configs(creates: &[Create]) -> Result<Vec<Existing<'_>>> {
    let mut found = Vec::new();
    for create in creates {
        if let Some((bytes, stat)) = read_config(&create.config)? {
            found.push(Existing { create, bytes, stat });
        }
    }
    Ok(found)
}

/// Refuses containers that ask, because the runtime may read another config than we would edit.
fn refuse_who_asks(context: &Context, configs: &[Existing], why: Option<&str>) -> Result<()> {
    for config in configs {
        if let Some(flag) =
            context.flag_in_doubt(&context.request(&ContainerConfig::parse(&config.bytes)))?
        {
            let why = why.unwrap_or("runc, crun and youki would take different configs");
            return Err(ambiguous(&format!("{flag} is set, but "), why));
        }
    }
    Ok(())
}

fn ambiguous(but: &str, why: &str) -> Error {
    let message = format!("{but}the runtime's command line can't be read for certain: {why}");
    Error::failed(message).resolve(
        "write `create --bundle DIR NAME`, options before the name and each value after a blank",
    )
}

fn edit_bundle(context: &Context, existing: &Existing) -> Result<()> {
    let create = existing.create;
    let config = ContainerConfig::parse(&existing.bytes);
    let Some(edits) = context.edits(&context.request(&config))? else {
        return Ok(());
    };
    let log = context.log;
    let path = &create.config;
    let spec = config.spec()?;
    let rootfs = frontends::rootfs(spec, &create.bundle)?;
    let root = &context.loaded.settings.root;
    let settled = frontends::settle(edits, spec.present()?, rootfs.as_ref(), root, log)?;
    let edited = spec.edited(&settled)?;
    if edited != spec.text {
        write_config(path, &edited, &existing.stat).map_err(|e| {
            Error::failed(format!("can't write {}: {e}", path.display()))
                .resolve("the bundle must be writable for what its container asks for")
        })?;
    }
    if let Some(rootfs) = &rootfs {
        write_files(rootfs, &settled, log);
    }
    Ok(())
}

/// The first runtime that can be executed and is not this program.
fn find(runtimes: &[String], path: &OsStr) -> Option<PathBuf> {
    // Opened, since an emulator of programs has another file behind that name.
    let own = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let own = own.and_then(rustix::fs::fstat).ok().map(|own| (own.st_dev, own.st_ino));
    runtimes.iter().flat_map(|name| candidates(name, path)).find(|candidate| {
        let found = std::fs::metadata(candidate).ok();
        found.map(|m| (m.dev(), m.ino())) != own && is_executable(candidate)
    })
}

/// Tells the engine why the start is refused: on standard error, and in the runtime's log, in the
/// runtime's own format, so that the engine shows it.
fn report(arguments: &Arguments, message: &str) {
    let message = format!("oci-decorator: {message}");
    // The log comes first, because a closed pipe at standard error ends the program.
    if let Some(log) = &arguments.log {
        append(log, &entry(&message, arguments.log_format));
    }
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// A line as runc logs it.
fn entry(message: &str, format: LogFormat) -> String {
    let (time, text) = (now(), quote(message));
    match format {
        LogFormat::Json => format!("{{\"level\":\"error\",\"msg\":{text},\"time\":\"{time}\"}}\n"),
        LogFormat::Text => format!("time=\"{time}\" level=error msg={text}\n"),
    }
}

/// Edits a spec on its way to a runtime, for podman's hooks at the stage `precreate`. `None`: nothing applies, and every byte of the spec stays.
/// Errors: the start is refused.
pub fn filter(loaded: &LoadedSettings, config: &[u8]) -> Result<Option<String>> {
    let settings = &loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), "");
    let edited = edit_alone(loaded, config, &log);
    // Engines report that a filter failed, but not why.
    log.refusal(&edited);
    edited
}

fn edit_alone(loaded: &LoadedSettings, config: &[u8], log: &Log) -> Result<Option<String>> {
    let context = Context::of(loaded, log, FrontEndKind::Runtime, None);
    let config = ContainerConfig::parse(config);
    let Some(mut edits) = context.edits(&context.request(&config))? else {
        return Ok(None);
    };
    let spec = config.spec()?;
    // The image may still change after this stage, so only single files are safe to mount.
    edits.folders.clear();
    let rootfs = rootfs_to_look_at(spec)?;
    let settled =
        frontends::settle(edits, spec.present()?, rootfs.as_ref(), &loaded.settings.root, log)?;
    let links = !settled.links.is_empty();
    if links || !settled.libraries.is_empty() || !settled.directories.is_empty() {
        let message = "precreate edits the spec only: empty folders, links and the library cache are left to oci-decorator-runtime or to a prestart hook";
        log.write(&Note::new(Level::Info, message));
    }
    spec.edited(&settled).map(Some)
}

/// The container's root, if this process can see it; its links matter for the mounts.
/// Errors: it is the host's own.
fn rootfs_to_look_at(spec: &Spec) -> Result<Option<Rootfs>> {
    match spec.root_path()? {
        Some(path) if path.starts_with('/') => match Rootfs::open(Path::new(&*path)) {
            Err(error) if error.code == exit::NOT_FOUND => Ok(None),
            other => other.map(Some),
        },
        _ => Ok(None),
    }
}
