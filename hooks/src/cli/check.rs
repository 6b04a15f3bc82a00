//! `oci-decorator check`: mistakes in the vendor files, and what a container would get on this
//! host.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use serde::{Serialize, Serializer};
use serde_json::json;

use crate::config::nvidia::{self, ConfigPath};
use crate::config::settings::{LoadedSettings, DEFAULT_CONFIG_DIR};
use crate::config::vendor::read;
use crate::error::{exit, Error, Result};
use crate::frontends::nvidia::{named, HOOKS, NAMES};
use crate::frontends::scheduler::Scheduled;
use crate::frontends::{reserved, runtime, Context, FrontEndKind};
use crate::host::resolve::{collect_all_units, Item, Report};
use crate::host::Host;
use crate::log::{printable, Level, Log, Note};
use crate::model::decide::{decide, pick};
use crate::model::edits::Edits;
use crate::model::request::{asked, Backend, ContainerRequest, DeviceList, DeviceRequest};
use crate::model::vendor::{Choice, Mistake, VendorFile};

#[derive(Debug, Serialize)]
pub struct Findings {
    config_dir: String,
    root: String,
    settings_problem: Option<Error>,
    files: Vec<FileReport>,
    vendors: Vec<VendorReport>,
    policy: String,
    /// What the policy leaves out of the request.
    ignored: Vec<String>,
    refused: Option<Error>,
    /// Flags that no vendor file has, or a host that has nothing for them, so that the container
    /// starts without what it asks for.
    unanswered: Option<Error>,
    /// What the container gets through other programs' interfaces.
    #[serde(flatten)]
    names: NameResults,
}

#[derive(Debug, Serialize)]
struct FileReport {
    path: String,
    ok: bool,
    activation_flag: Option<String>,
    mistakes: Vec<Mistake>,
}

#[derive(Debug, Serialize)]
struct VendorReport {
    #[serde(rename = "vendor")]
    name: String,
    activation_flag: String,
    version: Option<String>,
    features: Vec<String>,
    #[serde(serialize_with = "items")]
    items: Vec<Item>,
    problem: Option<Error>,
}

/// Runs the check. Without variables and annotations of the container, every feature of every vendor
/// is checked. NVIDIA's settings are those of the place `nvidia`.
/// Errors: the folder of vendor files or the root can't be read.
pub fn run(
    container: &SampleContainer,
    loaded: &LoadedSettings,
    nvidia: &ConfigPath,
) -> Result<Findings> {
    let settings = &loaded.settings;
    let files = read(&settings.config_dir)?;
    let host = Host::open(&settings.root)?;
    let mut ignored = Vec::new();
    let mut refused = None;
    let mut request = container.request(&[]);
    request.reserved = reserved(settings, None);
    let asks = !container.environment.is_empty() || !container.annotations.is_empty();
    let choices: Vec<Choice> = if asks {
        let mut notes = Vec::new();
        let decided = decide(&files, &request, &settings.policy, &settings.config_dir, &mut notes);
        let allowed = decided.unwrap_or_else(|error| {
            refused = Some(error);
            notes.clear();
            Vec::new()
        });
        // The other notes are about broken files, which are listed.
        let notes = notes.into_iter().filter(|note| note.level == Level::Notice);
        ignored = notes.map(|note| note.message).collect();
        allowed.into_iter().filter_map(|it| it.choice).collect()
    } else {
        files.iter().filter_map(Choice::whole).collect()
    };
    let mut vendors: Vec<VendorReport> = choices.iter().map(|c| vendor_report(&host, c)).collect();
    if asks && refused.is_none() {
        refused = vendors.iter().find_map(|v| v.problem.clone());
    }
    if request.has_scheduler() && asks && refused.is_none() {
        let scheduled = Scheduled::of(&host, &files, &settings.policy);
        refused = limit(&scheduled, &host, &choices, &mut vendors, &mut ignored).err();
    }
    let names = NameResults::of(container, loaded, nvidia);
    let is_alone = files.is_empty() && names.all.is_empty();
    let unanswered = unanswered(&request, &files, is_alone, &settings.config_dir);
    let is_there = |it: &VendorReport| it.items.iter().any(|item| item.found.is_ok());
    let gets = vendors.iter().any(is_there) || names.gives_something();
    let is_expected = asks && (vendors.iter().any(|it| !it.items.is_empty()) || names.asks());
    Ok(Findings {
        unanswered: unanswered.or_else(|| (is_expected && !gets).then(|| nothing(&settings.root))),
        config_dir: settings.config_dir.display().to_string(),
        root: settings.root.display().to_string(),
        settings_problem: loaded.problem.clone(),
        files: file_reports(&files),
        vendors,
        policy: settings.policy.to_string(),
        ignored,
        refused,
        names,
    })
}

/// Removes the devices that only a scheduler gives from the reports. Errors: the policy refuses the
/// start.
fn limit(
    scheduled: &Scheduled,
    host: &Host,
    choices: &[Choice],
    vendors: &mut [VendorReport],
    ignored: &mut Vec<String>,
) -> Result<()> {
    for (choice, report) in choices.iter().zip(vendors) {
        let (mut edits, _) = collect_all_units(host, choice, Report::Missing)?;
        let mut notes = Vec::new();
        let flag = &choice.vendor.activation_flag;
        let paths = scheduled.limit(flag, &mut edits, &mut notes)?;
        report.items.retain(|item| !paths.contains(&item.path));
        ignored.extend(notes.into_iter().map(|note| note.message));
    }
    Ok(())
}

/// A variable of another name may be any program's, unless nothing else of the request is anyone's.
fn unanswered(
    request: &ContainerRequest,
    files: &[VendorFile],
    is_alone: bool,
    config_dir: &Path,
) -> Option<Error> {
    let known: Vec<&String> = files.iter().flat_map(VendorFile::flags).collect();
    let named = request.environment.names();
    let asking = named.filter(|name| asked(request.environment.get(name)).is_some());
    let variables = asking.filter(|name| is_alone || name.starts_with("OCI_"));
    let mut flags: Vec<&str> = request.annotations.asking().chain(variables).collect();
    flags.retain(|flag| !known.iter().any(|other| other == flag));
    flags.sort_unstable();
    flags.dedup();
    if flags.is_empty() {
        return None;
    }
    let (flags, folder) = (flags.join(", "), config_dir.display());
    let error = Error::not_found(format!(
        "no vendor file in {folder} has the flag {flags}: the container gets nothing for it"
    ));
    let others = match known.iter().map(|flag| flag.as_str()).collect::<Vec<_>>() {
        others if others.is_empty() => String::new(),
        others => format!("name a flag that they have ({}), or ", others.join(", ")),
    };
    Some(error.resolve(format!(
        "{others}put the vendor's file there: provision drivers vendor-file DRIVER --output {folder}/DRIVER.json"
    )))
}

fn nothing(root: &Path) -> Error {
    Error::not_found(format!(
        "{} has no device and no file of what the container asks for",
        root.display()
    ))
    .resolve("install and load the driver: provision apply")
}

fn file_reports(files: &[VendorFile]) -> Vec<FileReport> {
    let mut claimed: HashMap<&str, &str> = HashMap::new();
    files
        .iter()
        .map(|file| {
            let mut report = FileReport {
                path: file.path.clone(),
                ok: false,
                activation_flag: None,
                mistakes: Vec::new(),
            };
            match &file.content {
                Ok(vendor) => {
                    let flag = vendor.activation_flag.as_str();
                    report.activation_flag = Some(flag.to_owned());
                    if let Some(other) = claimed.insert(flag, &file.path) {
                        let problem = format!("{flag} is claimed by {other} too");
                        report.mistakes.push(Mistake::new("activation_flag", problem));
                    }
                }
                Err(broken) => {
                    report.mistakes.clone_from(&broken.mistakes);
                    if broken.flags.is_empty() {
                        let problem = "no activation_flag can be found in it, so containers that ask for this vendor start without it";
                        report.mistakes.push(Mistake::new("", problem));
                    }
                }
            }
            report.ok = report.mistakes.is_empty();
            report
        })
        .collect()
}

fn vendor_report(host: &Host, choice: &Choice) -> VendorReport {
    let (items, problem) = match collect_all_units(host, choice, Report::All) {
        Ok((_, items)) => (items, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    VendorReport {
        name: choice.file.name.clone(),
        activation_flag: choice.vendor.activation_flag.clone(),
        version: choice.vendor.version.clone(),
        features: choice.features.iter().map(|&f| f.to_owned()).collect(),
        items,
        problem,
    }
}

impl Findings {
    pub fn code(&self) -> u8 {
        let wrong = self.files.iter().any(|file| !file.ok);
        if wrong || self.settings_problem.is_some() {
            exit::USAGE
        } else {
            let error = self.refused.as_ref().or(self.unanswered.as_ref());
            error.map_or_else(|| self.names.code(), |error| error.code)
        }
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some(problem) = &self.settings_problem {
            error(&mut out, "", problem);
        }
        if self.files.is_empty() {
            line(&mut out, &format!("{}: no vendor files", self.config_dir));
        }
        for file in &self.files {
            if file.ok {
                line(&mut out, &format!("{}: ok", file.path));
            }
            for mistake in &file.mistakes {
                line(&mut out, &format!("{}: {mistake}", file.path));
            }
        }
        if self.files.iter().any(|file| !file.ok) {
            line(&mut out, &self.correct_files());
        }
        match (&self.names.problem, &self.names.file) {
            (Some(problem), _) => error(&mut out, "", problem),
            (None, Some(file)) => line(&mut out, &format!("{file}: ok")),
            (None, None) => {}
        }
        for note in &self.names.notes {
            line(&mut out, note);
        }
        line(&mut out, &format!("policy: {}", self.policy));
        for vendor in &self.vendors {
            vendor.write(&mut out);
        }
        for reason in &self.ignored {
            line(&mut out, reason);
        }
        if let Some(refused) = &self.refused {
            error(&mut out, "start refused: ", refused);
        }
        if let Some(unanswered) = &self.unanswered {
            error(&mut out, "", unanswered);
        }
        let lines = self.names.all.iter().flat_map(NameResult::lines);
        lines.for_each(|text| line(&mut out, &text));
        out
    }

    fn correct_files(&self) -> String {
        let mut text =
            "What to do: correct these files, then check them: oci-decorator check".to_owned();
        if Path::new(&self.config_dir) != Path::new(DEFAULT_CONFIG_DIR) {
            text.push_str(" --config-dir ");
            text.push_str(&self.config_dir);
        }
        text
    }
}

impl VendorReport {
    fn write(&self, out: &mut String) {
        let version = self.version.as_deref().unwrap_or("version unknown");
        let features = self.features.join(", ");
        line(out, &format!("\n{} ({}, {version}): {features}", self.activation_flag, self.name));
        if let Some(problem) = &self.problem {
            error(out, "  ", problem);
        }
        for item in &self.items {
            let (mark, detail) = match &item.found {
                Ok(detail) => ("ok     ", detail),
                Err(problem) => ("missing", problem),
            };
            let text =
                format!("  {mark} {:<9} {} [{}] {detail}", item.kind, item.path, item.feature);
            line(out, text.trim_end());
        }
    }
}

/// The items of a vendor in the report for programs.
pub fn items<S: Serializer>(items: &[Item], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(items.iter().map(|item| {
        json!({
            "feature": item.feature,
            "kind": item.kind,
            "path": item.path,
            "present": item.found.is_ok(),
            "detail": item.found.as_ref().ok(),
            "problem": item.found.as_ref().err(),
        })
    }))
}

/// Adds an error, with what to do on a line of its own.
fn error(out: &mut String, before: &str, error: &Error) {
    let indent = if before.starts_with(' ') { "  " } else { "" };
    let lines = error.lines();
    for (at, text) in lines.iter().enumerate() {
        let before = if at == 0 { before } else { indent };
        line(out, &format!("{before}{text}"));
    }
}

/// Adds a line to the report. A leading newline separates it from the line before.
fn line(out: &mut String, text: &str) {
    let (gap, text) = text.strip_prefix('\n').map_or(("", text), |t| ("\n", t));
    let _ = writeln!(out, "{gap}{}", printable(text));
}

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
