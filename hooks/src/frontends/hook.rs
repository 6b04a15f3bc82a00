//! The front end for engines that only support hooks: puts devices, files and library caches into a
//! container whose namespaces and mounts exist already.
//!
//! All files of the host are opened first. Then this process joins the container's mount namespace.
//! From then on it uses descriptors, and resolves no path except the container's root, which the
//! engine named.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use crate::apply::namespace::{cgroup, mask_modify_device_files, DetachedMounts, Process};
use crate::apply::spec::read_config;
use crate::apply::write_files;
use crate::config::nvidia::LoadedConfig;
use crate::config::settings::LoadedSettings;
use crate::error::{Error, Result};
use crate::frontends::{self, read_file, read_input, Context, FrontEndKind};
use crate::host::rootfs::Rootfs;
use crate::log::{Level, Log, Note};
use crate::model::edits::{Edits, Present};
use crate::spec::command_line::Arguments;
use crate::spec::config::{ContainerConfig, State};

const MAX_STATE: u64 = 1 << 20;

/// Runs the hook with a state, as the runtime wrote it, under NVIDIA's name or our own: at a stage at
/// which the container's namespaces exist and its root is not yet entered.
/// Errors: the start is refused.
pub fn run(loaded: &LoadedSettings, nvidia: Option<&LoadedConfig>, input: &str) -> Result<()> {
    let state = State::parse(input)?;
    let settings = &loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    let done = decorate(&Context::of(loaded, &log, FrontEndKind::Hook, nvidia), &state);
    log.refusal(&done);
    done
}

/// The state on standard input, or in a file. Errors: it can't be read, or is too large.
pub fn read_state(file: Option<&str>) -> Result<String> {
    let state = match file {
        None => read_input("the state", MAX_STATE)?,
        Some(path) => read_file(Path::new(path), MAX_STATE)?,
    };
    String::from_utf8(state).map_err(|_| Error::failed("the state is not valid UTF-8"))
}

fn decorate(context: &Context, state: &State) -> Result<()> {
    let Some((bundle, config)) = find_config(state)? else {
        let message = format!("the container gets nothing, as what it asks for is not known: neither {} nor the command line of the runtime has the bundle", state.bundle.join("config.json").display());
        context.log.write(&Note::new(Level::Warning, message));
        return Ok(());
    };
    let config = ContainerConfig::parse(&config);
    let request = context.request(&config);
    let Some(mut edits) = context.edits(&request)? else {
        return Ok(());
    };
    let spec = config.spec()?;
    let present = spec.present()?;
    edits.leave_listed(&present);
    // The image is seen too late to decide between a folder and its files.
    edits.folders.clear();
    let process = Process::open(state.pid.clone()?)?;
    enter(context, edits, present, &process, &state.id, || {
        let rootfs = frontends::rootfs(spec, &bundle)?;
        rootfs.ok_or_else(|| Error::failed("the container's config.json has no root.path"))
    })
}

/// The container's bundle, and its config: that of the state, or the one from which the runtime makes
/// the container by its command line. crun's state names `/` if the container has a user namespace and
/// devices. `None`: neither has a config.
fn find_config(state: &State) -> Result<Option<(PathBuf, Vec<u8>)>> {
    if let Some((config, _)) = read_config(&state.bundle.join("config.json"))? {
        return Ok(Some((state.bundle.clone(), config)));
    }
    for create in runtimes_arguments().creates {
        if create.container == state.id && create.config.is_absolute() {
            if let Some((config, _)) = read_config(&create.config)? {
                return Ok(Some((create.bundle, config)));
            }
        }
    }
    Ok(None)
}

/// The command line of the runtime that has started this hook.
fn runtimes_arguments() -> Arguments {
    let words = rustix::process::getppid()
        .and_then(|parent| std::fs::read(format!("/proc/{}/cmdline", parent.as_raw_pid())).ok());
    let words: Vec<OsString> = words
        .unwrap_or_default()
        .split(|&byte| byte == 0)
        .skip(1)
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect();
    // The last NUL ends a word, and begins none.
    Arguments::parse(words.split_last().map_or(&[], |(_, words)| words))
}

/// Puts edits into the container of a process: opens the files to mount, gives the right to use the
/// devices to the container with this id, if there is one, and joins its mount namespace.
fn enter(
    context: &Context,
    edits: Edits,
    present: Present,
    process: &Process,
    id: &str,
    root: impl FnOnce() -> Result<Rootfs>,
) -> Result<()> {
    let hosts = DetachedMounts::open(&edits, process.needs_mounted_nodes())?;
    // Another program may give the right to use the devices.
    let no_cgroups = context.nvidia.is_some_and(|it| it.loaded.config.no_cgroups);
    if !no_cgroups && !process.is_rootless {
        cgroup::allow(&edits.devices, process, id)?;
    }
    context.log.open();
    process.join()?;
    let rootfs = root()?;
    process.become_root();
    fill(context, edits, present, rootfs, hosts)
}

/// Puts edits into a container's root, in the mount namespace that this process is in.
fn fill(
    context: &Context,
    edits: Edits,
    present: Present,
    mut rootfs: Rootfs,
    hosts: DetachedMounts,
) -> Result<()> {
    rustix::process::umask(rustix::fs::Mode::empty());
    let (root, log) = (&context.loaded.settings.root, context.log);
    let settled = frontends::settle(edits, present, Some(&rootfs), root, log)?;
    rootfs.open_new(&settled.new_file_systems);
    log.write_all(&hosts.put_into(&rootfs, &settled)?);
    if settled.keeps_nodes {
        mask_modify_device_files(&rootfs)?;
    }
    write_files(&rootfs, &settled, log);
    Ok(())
}

/// Puts edits into a mounted root that an engine names, without a spec and a state. The root is
/// that of the container of a process, or of this process, which is in the container's mount
/// namespace already and still sees the host's files. Errors: as above.
pub fn configure(
    context: &Context,
    mut edits: Edits,
    process: Option<Pid>,
    root: &Path,
) -> Result<()> {
    edits.folders.clear();
    let Some(pid) = process else {
        // As the engine mounts its own: no file system of the container has to allow devices.
        let hosts = DetachedMounts::open(&edits, true)?;
        return fill(context, edits, Present::default(), Rootfs::open_whole(root)?, hosts);
    };
    let present = Present::default();
    enter(context, edits, present, &Process::open(pid)?, "", || Rootfs::open_whole(root))
}
