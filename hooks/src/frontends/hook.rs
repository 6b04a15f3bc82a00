//! The front end for engines that only support hooks: puts devices, files and library caches into a
//! container whose namespaces and mounts exist already.
//!
//! All files of the host are opened first. Then this process joins the container's mount namespace.
//! From then on it uses descriptors, and resolves no path except the container's root, which the
//! engine named.

use crate::apply::namespace::process::Process;
use crate::apply::namespace::{cgroup, params, Hosts};
use crate::apply::spec::Spec;
use crate::apply::write_files;
use crate::config::settings::Loaded;
use crate::error::{Error, Result};
use crate::frontends::nvidia::Reader;
use crate::frontends::{self, text_of, FrontEnd};
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::model::edits::paths::clean;
use crate::model::edits::{Edits, Mount, Present};
use crate::model::policy::Policy;
use crate::model::request::Request;
use crate::spec::bundle::read_config;
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

/// The call of a hook.
#[derive(Debug)]
pub struct Call<'a> {
    pub loaded: &'a Loaded,
    /// `FLAG=VALUE` for which only the library cache is made, instead of what the container asks
    /// for. Hooks of CDI specifications use this.
    pub library_cache: &'a [String],
    /// The state, as the runtime wrote it.
    pub input: &'a str,
}

/// Runs the hook at one of [`STAGES`]. Errors: the start is refused.
pub fn run(call: &Call) -> Result<()> {
    let state = State::parse(call.input)?;
    let settings = &call.loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    let mut front_end = FrontEnd::new(call.loaded, &log, Reader::Hook);
    // The engine decides who may name a CDI device.
    let everything = Policy::default();
    if !call.library_cache.is_empty() {
        front_end.policy = &everything;
    }
    let task = Task {
        library_cache: call.library_cache,
        leaves_cgroups: false,
    };
    act(&front_end, &task, &state)
}

/// The part of a hook's work to do.
#[derive(Debug)]
pub struct Task<'a> {
    /// As in [`Call`].
    pub library_cache: &'a [String],
    /// Another program gives the right to use the devices.
    pub leaves_cgroups: bool,
}

impl Task<'_> {
    fn is_for_cache_only(&self) -> bool {
        !self.library_cache.is_empty()
    }

    fn request<'b>(&'b self, front_end: &FrontEnd, config: &'b [u8]) -> Request<'b> {
        if self.is_for_cache_only() {
            Request::of_environment(self.library_cache.iter().map(String::as_str))
        } else {
            front_end.request(config)
        }
    }
}

/// Puts everything into the container. Logs the error if that fails.
pub fn act(front_end: &FrontEnd, task: &Task, state: &State) -> Result<()> {
    let done = decorate(front_end, task, state);
    if let Err(error) = &done {
        let note = Note::new(Level::Error, format!("start refused: {error}"));
        front_end.log.write(&note);
    }
    done
}

fn decorate(front_end: &FrontEnd, task: &Task, state: &State) -> Result<()> {
    let log = front_end.log;
    let path = state.bundle.join("config.json");
    let Some((config, _)) = read_config(&path)? else {
        let path = path.display();
        return Err(Error::failed(format!("the state's bundle has no {path}")));
    };
    let cache_only = task.is_for_cache_only();
    let Some(mut edits) = front_end.edits(&task.request(front_end, &config))? else {
        return Ok(());
    };
    let spec = Spec::parse(text_of(&config)?)?;
    let present = spec.present()?;
    edits.leave_listed(&present);
    // The image is seen too late to decide between a folder and its files.
    edits.folders.clear();
    let process = Process::open(state.pid)?;
    let hosts = if cache_only {
        edits.mounts = by_spec(edits.mounts, &present);
        Hosts::default()
    } else {
        open_hosts(
            &edits,
            &process,
            (!task.leaves_cgroups).then_some(&*state.id),
        )?
    };
    process.join()?;
    let mut rootfs = frontends::rootfs(&spec, &state.bundle)?
        .ok_or_else(|| Error::failed("the container's config.json has no root.path"))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let root = &front_end.loaded.settings.root;
    let settled = frontends::settle(edits, &spec, Some(&rootfs), root, log)?;
    rootfs.open_new(settled.new_file_systems());
    if !cache_only {
        log.write_all(&hosts.put_into(&rootfs, &settled)?);
        if settled.rest().keeps_nodes {
            params::hide(&rootfs)?;
        }
    }
    write_files(&rootfs, &settled, log);
    Ok(())
}

/// Opens the files to mount, and gives the right to use the devices to the container with this id,
/// if there is one. This process is still on the host.
fn open_hosts(edits: &Edits, process: &Process, id: Option<&str>) -> Result<Hosts> {
    let hosts = Hosts::open(edits, process)?;
    if let Some(id) = id.filter(|_| !process.is_rootless()) {
        cgroup::allow(&edits.devices, process, id)?;
    }
    Ok(hosts)
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
