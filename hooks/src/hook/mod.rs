//! The door for engines that know hooks and nothing else: puts devices, files and
//! library caches into a container whose namespaces and mounts exist already.
//!
//! Everything of the host is opened first. Then this process joins the container's
//! mount namespace, and from there on it holds descriptors and resolves no path but the
//! container's root, which the engine named.

mod cgroup;
mod device_filter;
mod nodes;
mod process;
pub mod state;
mod targets;

use std::path::Path;

use crate::bundle::read_config;
use crate::container;
use crate::edits::Edits;
use crate::engine::{self, Door};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::inroot::Root;
use crate::level::Level;
use crate::log::{Log, Note};
use crate::settings::Settings;
use crate::spec::Spec;

use process::Process;
use state::State;

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
    pub settings: &'a Settings,
    /// `FLAG=VALUE` for which the library cache alone is to be made, instead of all that
    /// the container's own environment asks for. CDI specs call us so.
    pub library_cache: &'a [String],
    /// The state, as the runtime wrote it.
    pub input: &'a str,
}

/// Does what the stages of [`STAGES`] are for. Errors: the start is to be refused.
pub fn run(call: &Call) -> Result<()> {
    let state = State::parse(call.input)?;
    let settings = call.settings;
    let log = Log::new(settings.log_level, settings.log_file.clone(), &state.id);
    let done = decorate(call, &state, &log);
    if let Err(error) = &done {
        log.write(&Note::new(Level::Error, format!("start refused: {error}")));
    }
    done
}

fn decorate(call: &Call, state: &State, log: &Log) -> Result<()> {
    let config = state.bundle.join("config.json");
    let Some((text, _)) = read_config(&config)? else {
        let config = config.display();
        return Err(Error::failed(format!("the state's bundle has no {config}")));
    };
    let spec = Spec::parse(&text)?;
    let cache_only = !call.library_cache.is_empty();
    let environment = if cache_only {
        call.library_cache.iter().map(String::as_str).collect()
    } else {
        spec.environment()?
    };
    let Some(edits) = edits(call.settings, &environment, log)? else {
        return Ok(());
    };
    let path = spec
        .root_path()?
        .ok_or_else(|| Error::failed("the container's config.json has no root.path"))?;
    let process = Process::open(state.pid)?;
    // What is not to be done needn't be opened.
    let hosts = if cache_only {
        Hosts::default()
    } else {
        Hosts::open(&edits, &process)?
    };
    process.join()?;
    let root = open_root(&state.bundle.join(&*path))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    hosts.put_into(&root)?;
    container::prepare(&root, &edits, log);
    Ok(())
}

fn edits(settings: &Settings, environment: &Environment, log: &Log) -> Result<Option<Edits>> {
    let door = Door {
        config_dir: &settings.config_dir,
        root: &settings.root,
        log,
    };
    engine::edits(&door, environment)
}

/// The container's root, in its mount namespace.
/// Errors: it is not there, or is that namespace's own root.
fn open_root(path: &Path) -> Result<Root> {
    let root = container::open_root(path)?;
    let own = rustix::fs::stat("/");
    let same = |own: rustix::fs::Stat, other: rustix::fs::Stat| {
        (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino)
    };
    match (own, rustix::fs::fstat(&root)) {
        (Ok(own), Ok(other)) if same(own, other) => Err(Error::failed(format!(
            "{} is the root of the container's mount namespace: nothing is done to it",
            path.display()
        ))
        .resolve("call the hook at the stage prestart or createRuntime")),
        _ => Ok(root),
    }
}

/// What of the host a container gets, opened before its namespace is joined.
#[derive(Default)]
struct Hosts {
    mounts: Vec<targets::Tree>,
    nodes: nodes::Nodes,
}

impl Hosts {
    fn open(edits: &Edits, process: &Process) -> Result<Self> {
        let mounts = edits.mounts.iter().map(targets::Tree::open);
        let mounts = mounts.collect::<Result<_>>()?;
        let nodes = nodes::Nodes::open(&edits.devices, process)?;
        if !process.is_rootless() {
            cgroup::allow(&edits.devices, process)?;
        }
        Ok(Self { mounts, nodes })
    }

    fn put_into(&self, root: &Root) -> Result<()> {
        for tree in &self.mounts {
            tree.attach(root)?;
        }
        self.nodes.make(root)
    }
}
