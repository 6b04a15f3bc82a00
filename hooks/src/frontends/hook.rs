//! The front end for engines that know hooks and nothing else: puts devices, files and
//! library caches into a container whose namespaces and mounts exist already.
//!
//! Everything of the host is opened first. Then this process joins the container's
//! mount namespace, and from there on it holds descriptors and resolves no path but the
//! container's root, which the engine named.

use crate::apply::namespace::process::Process;
use crate::apply::namespace::{cgroup, params, Hosts};
use crate::apply::spec::Spec;
use crate::apply::write_files;
use crate::config::settings::Loaded;
use crate::edits::paths::clean;
use crate::edits::{Edits, Mount, Present};
use crate::error::{Error, Result};
use crate::frontends::nvidia::Reader;
use crate::frontends::{self, text_of, FrontEnd};
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::oci::bundle::read_config;
use crate::oci::state::State;
use crate::policy::Policy;
use crate::request::Request;

/// Stages at which the container's namespaces exist and its root is not yet entered.
pub const STAGES: [&str; 2] = ["prestart", "createRuntime"];
/// Stages of the runtime specification at which there is nothing left for us to do, or
/// at which the process runs within the container. Called there, we do nothing.
pub const IDLE_STAGES: [&str; 4] = ["createContainer", "startContainer", "poststart", "poststop"];

/// Largest state that is read, in bytes.
pub const MAX_STATE: u64 = 1 << 20;

/// How a hook was called.
#[derive(Debug)]
pub struct Call<'a> {
    pub loaded: &'a Loaded,
    /// `FLAG=VALUE` for which only the library cache is to be made, instead of all that
    /// the container itself asks for. CDI specs call us so.
    pub library_cache: &'a [String],
    /// The state, as the runtime wrote it.
    pub input: &'a str,
}

/// Does what the stages of [`STAGES`] are for. Errors: the start is to be refused.
pub fn run(call: &Call) -> Result<()> {
    let state = State::parse(call.input)?;
    let settings = &call.loaded.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    let mut front_end = FrontEnd::new(call.loaded, &log, Reader::Hook);
    // Who may name a device of CDI was for the engine to say.
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

/// What of a hook's work is to be done.
#[derive(Debug)]
pub struct Task<'a> {
    /// As [`Call`] has it.
    pub library_cache: &'a [String],
    /// The right to use the devices is for others to give.
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

/// Decorates the container, and logs why it can't.
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
    // The image is seen too late to choose between a folder and its files.
    edits.folders.clear();
    let process = Process::open(state.pid)?;
    let hosts = if cache_only {
        edits.mounts = by_spec(edits.mounts, &present);
        Hosts::default()
    } else {
        open_hosts(&edits, &process, task.leaves_cgroups)?
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

/// Opens what is to be mounted, and gives the right to use the devices, both while this
/// process is still on the host.
fn open_hosts(edits: &Edits, process: &Process, leaves_cgroups: bool) -> Result<Hosts> {
    let hosts = Hosts::open(edits, process)?;
    if !process.is_rootless() && !leaves_cgroups {
        cgroup::allow(&edits.devices, process)?;
    }
    Ok(hosts)
}

/// A CDI specification has brought the mounts: what the spec has at their paths is it,
/// even if the driver has changed since it was generated.
fn by_spec(mut mounts: Vec<Mount>, present: &Present) -> Vec<Mount> {
    for mount in &mut mounts {
        let mut there = present.mounts.iter().rev();
        if let Some(there) = there.find(|there| clean(&there.destination) == mount.target) {
            mount.source = there.source.clone().into_owned();
        }
    }
    mounts
}
