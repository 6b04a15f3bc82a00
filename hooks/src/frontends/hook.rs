//! The front end for engines that only support hooks: puts devices, files and library caches into a
//! container whose namespaces and mounts exist already.
//!
//! All files of the host are opened first. Then this process joins the container's mount namespace.
//! From then on it uses descriptors, and resolves no path except the container's root, which the
//! engine named.

use std::path::Path;

use rustix::process::Pid;

use crate::apply::namespace::process::Process;
use crate::apply::namespace::{cgroup, params, DetachedMounts};
use crate::apply::spec::Spec;
use crate::apply::write_files;
use crate::config::settings::Loaded;
use crate::error::{Error, Result};
use crate::frontends::{self, Context, FrontEndKind};
use crate::host::bundle::read_config;
use crate::host::rootfs::Rootfs;
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::model::edits::paths::clean;
use crate::model::edits::{Edits, Mount, Present};
use crate::model::policy::Policy;
use crate::model::request::Request;
use crate::spec::config::Config;
use crate::spec::state::State;

/// Stages at which the container's namespaces exist and its root is not yet entered.
pub const STAGES: [&str; 2] = ["prestart", "createRuntime"];
/// Stages at which nothing is left to do, or at which the hook runs inside the container. At these
/// stages the program does nothing.
pub const IDLE_STAGES: [&str; 4] = ["createContainer", "startContainer", "poststart", "poststop"];

/// True for the name of a stage of OCI hooks.
pub fn is_stage(word: &str) -> bool {
    STAGES.contains(&word) || IDLE_STAGES.contains(&word)
}

/// Largest state that is read, in bytes.
pub const MAX_STATE: u64 = 1 << 20;

/// Runs the hook at one of [`STAGES`] with a state, as the runtime wrote it. `library_cache`: as in
/// [`Context`]. Errors: the start is refused.
pub fn run(loaded: &Loaded, library_cache: &[String], input: &str) -> Result<()> {
    let state = State::parse(input)?;
    let settings = &loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    let mut context = Context::new(loaded, &log, FrontEndKind::Hook);
    // The engine decides who may name a CDI device.
    let everything = Policy::default();
    if !library_cache.is_empty() {
        context.policy = &everything;
        context.library_cache = library_cache;
    }
    act(&context, &state)
}

/// Puts everything into the container. Logs the error if that fails.
pub fn act(context: &Context, state: &State) -> Result<()> {
    let done = decorate(context, state);
    if let Err(error) = &done {
        let note = Note::new(Level::Error, format!("start refused: {error}"));
        context.log.write(&note);
    }
    done
}

fn decorate(context: &Context, state: &State) -> Result<()> {
    let path = state.bundle.join("config.json");
    let Some((config, _)) = read_config(&path)? else {
        let path = path.display();
        return Err(Error::failed(format!("the state's bundle has no {path}")));
    };
    let config = Config::parse(&config);
    let cache_only = !context.library_cache.is_empty();
    let request = if cache_only {
        Request::of_environment(context.library_cache.iter().map(String::as_str))
    } else {
        context.request(&config)
    };
    let Some(mut edits) = context.edits(&request)? else {
        return Ok(());
    };
    let spec = Spec::of(&config)?;
    let present = spec.present()?;
    edits.leave_listed(&present);
    // The image is seen too late to decide between a folder and its files.
    edits.folders.clear();
    let process = Process::open(state.pid)?;
    let hosts = if cache_only {
        edits.mounts = by_spec(edits.mounts, &present);
        None
    } else {
        // Another program may give the right to use the devices.
        let no_cgroups = context.nvidia.is_some_and(|it| it.config.no_cgroups);
        Some(open_hosts(&edits, &process, (!no_cgroups).then_some(&*state.id))?)
    };
    process.join()?;
    let rootfs = frontends::rootfs(&spec, &state.bundle)?
        .ok_or_else(|| Error::failed("the container's config.json has no root.path"))?;
    fill(context, edits, present, rootfs, hosts)
}

/// Opens the files to mount, and gives the right to use the devices to the container with this id,
/// if there is one. This process is still on the host.
fn open_hosts(edits: &Edits, process: &Process, id: Option<&str>) -> Result<DetachedMounts> {
    let hosts = DetachedMounts::open(edits, process.needs_mounted_nodes())?;
    if let Some(id) = id.filter(|_| !process.is_rootless()) {
        cgroup::allow(&edits.devices, process, id)?;
    }
    Ok(hosts)
}

/// Puts edits into a container's root, in the mount namespace that this process is in. Without the
/// files of the host, only the library cache is made.
fn fill(
    context: &Context,
    edits: Edits,
    present: Present,
    mut rootfs: Rootfs,
    hosts: Option<DetachedMounts>,
) -> Result<()> {
    rustix::process::umask(rustix::fs::Mode::empty());
    let (root, log) = (&context.loaded.settings.root, context.log);
    let settled = frontends::settle(edits, present, Some(&rootfs), root, log)?;
    rootfs.open_new(&settled.new_file_systems);
    if let Some(hosts) = hosts {
        log.write_all(&hosts.put_into(&rootfs, &settled)?);
        if settled.rest.keeps_nodes {
            params::hide(&rootfs)?;
        }
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
    let hosts = if let Some(pid) = process {
        let process = Process::open(pid)?;
        let no_cgroups = context.nvidia.is_some_and(|it| it.config.no_cgroups);
        let hosts = open_hosts(&edits, &process, (!no_cgroups).then_some(""))?;
        process.join()?;
        hosts
    } else {
        // As the engine mounts its own: no file system of the container has to allow devices.
        DetachedMounts::open(&edits, true)?
    };
    fill(context, edits, Present::default(), Rootfs::open_whole(root)?, Some(hosts))
}

/// The mounts that a CDI specification has added. What the spec has at their paths counts, even if
/// the driver has changed since the specification was generated.
fn by_spec(mut mounts: Vec<Mount>, present: &Present) -> Vec<Mount> {
    for mount in &mut mounts {
        let mut there = present.mounts.iter().rev();
        if let Some(there) = there.find(|there| clean(&there.destination) == mount.target) {
            mount.source = there.source.clone().into_owned();
        }
    }
    mounts
}
