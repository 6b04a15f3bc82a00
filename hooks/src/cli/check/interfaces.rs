//! What a container gets through other programs' interfaces, for each name of this program.
//! NVIDIA's names always answer NVIDIA's variables. Our own names only do if the settings list the
//! interface.
//!
//! The request goes through the code of the front ends.

use serde::{Serialize, Serializer};

use crate::config::nvidia::{self, ConfigPath};
use crate::config::settings::LoadedSettings;
use crate::error::{exit, Error};
use crate::frontends::nvidia::{named, HOOKS, NAMES};
use crate::frontends::{runtime, Context, FrontEndKind};
use crate::log::{Level, Log, Note};
use crate::model::decide::pick;
use crate::model::edits::Edits;
use crate::model::request::{Backend, ContainerRequest, DeviceList, DeviceRequest};

#[derive(Debug, Default)]
pub struct SampleContainer {
    pub environment: Vec<String>,
    pub annotations: Vec<(String, String)>,
    pub privileged: bool,
}

impl SampleContainer {
    /// What it requests by flags, and by annotations of CDI with one of these prefixes.
    pub fn request(&self, cdi: &[String]) -> ContainerRequest<'_> {
        let mut request =
            ContainerRequest::of_environment(self.environment.iter().map(String::as_str));
        for (key, value) in &self.annotations {
            request.add_annotation(key.as_str().into(), value.as_str().into(), cdi);
        }
        request.privileged = self.privileged;
        request
    }
}

#[derive(Debug, Serialize)]
pub struct NameResult {
    names: Vec<&'static str>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Outcome {
    /// The variables and annotations that ask, the requested devices, and the way they are given.
    asks: Vec<Asked>,
    #[serde(serialize_with = "as_object")]
    gets: Parts,
    notes: Vec<String>,
    refused: Option<Error>,
}

type Parts = Vec<(&'static str, Vec<String>)>;

fn as_object<S: Serializer>(parts: &[(&str, Vec<String>)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(parts.iter().map(|(kind, list)| (kind, list)))
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Asked {
    by: String,
    devices: String,
    way: &'static str,
}

/// NVIDIA's settings, and the results under every name.
#[derive(Debug, Serialize)]
pub struct NameResults {
    /// The path of the settings. `None`: the file does not exist, and the defaults count.
    #[serde(rename = "nvidia_config")]
    pub file: Option<String>,
    #[serde(rename = "nvidia_problem")]
    pub problem: Option<Error>,
    /// Values with another effect than in NVIDIA's program, and keys that have none here.
    #[serde(rename = "nvidia_notes")]
    pub notes: Vec<String>,
    #[serde(rename = "names")]
    pub all: Vec<NameResult>,
}

impl NameResults {
    /// Sends the request under every name. NVIDIA's settings are those of this place.
    pub fn of(container: &SampleContainer, loaded: &LoadedSettings, place: &ConfigPath) -> Self {
        let read = nvidia::load(place.clone());
        let log = Log::new(Level::Emergency, None, "");
        let mut all = Vec::new();
        let own = Context::of(loaded, &log, FrontEndKind::Runtime, None);
        add(&mut all, runtime::NAME, outcome(&own, container));
        for (name, _) in NAMES {
            let nvidia = named(name, read.clone());
            let context = Context::of(loaded, &log, FrontEndKind::Runtime, Some(&nvidia));
            add(&mut all, name, outcome(&context, container));
        }
        let context = Context::of(loaded, &log, FrontEndKind::Hook, Some(&read));
        add(&mut all, HOOKS[0], outcome(&context, container));
        Self {
            file: place.path.exists().then(|| place.path.display().to_string()),
            notes: read.notes(),
            problem: read.problem,
            all,
        }
    }

    pub fn asks(&self) -> bool {
        self.all.iter().any(|result| !result.outcome.asks.is_empty())
    }

    /// True if a device or file comes under a usual name, not only what needs no driver.
    pub fn gives_something(&self) -> bool {
        let is_something = |(kind, list): &(&str, Vec<String>)| {
            matches!(*kind, "device" | "file") && !list.is_empty()
        };
        self.usual().any(|outcome| outcome.gets.iter().any(is_something))
    }

    /// The outcomes but for those under names that stand for a mode, which may need more than the
    /// host has: nobody starts a container by them unless they are configured.
    fn usual(&self) -> impl Iterator<Item = &Outcome> {
        let is_usual =
            |name: &&str| NAMES.iter().all(|(known, mode)| known != name || mode.is_none());
        let usual = self.all.iter().filter(move |result| result.names.iter().any(is_usual));
        usual.map(|result| &result.outcome)
    }

    /// The exit code of the first refusal.
    pub fn code(&self) -> u8 {
        let refused = self.usual().find_map(|outcome| outcome.refused.as_ref());
        match (&self.problem, refused) {
            (Some(_), _) => exit::USAGE,
            (None, refused) => refused.map_or(exit::DONE, |error| error.code),
        }
    }
}

/// The result under one name. `None`: the container asks for nothing through other interfaces.
fn outcome(context: &Context, container: &SampleContainer) -> Option<Outcome> {
    let scope = context.nvidia.map(|nvidia| nvidia.scan_scope()).unwrap_or_default();
    let request = context.with_device_requests(container.request(scope.cdi_prefixes));
    let (picked, refused) = pick(&request, context.policy());
    let is_nothing = picked.is_empty() && refused.is_empty();
    let is_sure = request.ambiguity.is_none() || request.possible_trigger.is_none();
    if is_nothing && is_sure && request.set.is_empty() && request.unset.is_empty() {
        return None;
    }
    let mut notes: Vec<Note> = Vec::new();
    let (edits, refused) = match context.decided(&request, &mut notes) {
        Ok(edits) => (edits, None),
        Err(error) => (None, Some(error)),
    };
    let notes = notes.into_iter().filter(|n| n.level <= Level::Notice);
    let asked = |it: DeviceRequest| Asked {
        devices: devices_text(&it.devices),
        by: it.by,
        way: backend_text(it.backend),
    };
    Some(Outcome {
        asks: picked.into_iter().map(asked).collect(),
        gets: edits.as_ref().map(parts).unwrap_or_default(),
        notes: notes.map(|note| note.message).collect(),
        refused,
    })
}

/// Adds a result. Names with the same result are shown together.
fn add(all: &mut Vec<NameResult>, name: &'static str, outcome: Option<Outcome>) {
    let Some(outcome) = outcome else {
        return;
    };
    match all.iter_mut().find(|known| known.outcome == outcome) {
        Some(known) => known.names.push(name),
        None => all.push(NameResult { names: vec![name], outcome }),
    }
}

impl NameResult {
    pub fn lines(&self) -> Vec<String> {
        let Outcome { asks, gets, notes, refused } = &self.outcome;
        let mut lines = vec![format!("\nas {}:", self.names.join(", "))];
        let asks = asks.iter().map(|ask| {
            let Asked { by, devices, way } = ask;
            format!("  {by} asks for {devices}, by {way}")
        });
        lines.extend(asks);
        let found = gets.iter().flat_map(|(kind, list)| {
            let line = move |text: &String| format!("  {kind:<11} {text}");
            list.iter().map(line)
        });
        lines.extend(found);
        lines.extend(notes.iter().map(|note| format!("  {note}")));
        if let Some(error) = refused {
            let said = error.lines().join("\n  ");
            lines.extend(format!("  start refused: {said}").lines().map(str::to_owned));
        }
        lines
    }
}

fn devices_text(devices: &DeviceList) -> String {
    match devices {
        DeviceList::All => "all devices".to_owned(),
        DeviceList::None | DeviceList::Nothing => "no device".to_owned(),
        DeviceList::These(names) => names.join(", "),
    }
}

fn backend_text(backend: Backend) -> &'static str {
    match backend {
        Backend::VendorFile => "the vendor file",
        Backend::Csv => "lists of host files (csv)",
        Backend::Cdi => "specifications of CDI",
    }
}

/// What a container gets, by kind.
fn parts(edits: &Edits) -> Parts {
    let described = edits.described.iter().map(|mount| &mount.target);
    let files = edits.mounts.iter().map(|mount| &mount.target);
    let hooks = edits.hooks.iter();
    let hooks = hooks.map(|hook| format!("{}: {} {}", hook.stage, hook.path, hook.args.join(" ")));
    let links = edits.links.iter();
    vec![
        ("device", edits.devices.iter().map(|d| d.path.clone()).collect()),
        ("file", files.chain(described).cloned().collect()),
        ("folder", edits.directories.clone()),
        ("link", links.map(|l| format!("{} -> {}", l.path, l.target)).collect()),
        ("environment", edits.environment.clone()),
        ("unset", edits.unset.clone()),
        ("group", edits.groups.iter().map(ToString::to_string).collect()),
        ("hook", hooks.collect()),
        ("compat", edits.compat.iter().map(|c| c.folder.clone()).collect()),
    ]
}
