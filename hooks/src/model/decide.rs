//! Decides what a container gets. A pure function of vendor files, requests and policy: the only
//! place that judges a request.

use std::path::Path;

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::log::{brief, Level, Note};
use crate::model::policy::{not_scheduled, refuse, Policy};
use crate::model::request::{
    asked, Backend, ContainerRequest, DeviceList, DeviceRequest, Extra, ExtraKind, Features,
    RequestSource, ANNOTATION_PREFIX,
};
use crate::model::vendor::{summary, Broken, Choice, Vendor, VendorFile};

/// At most this many annotations without a vendor file are reported.
const SAID: usize = 5;

/// The allowed part of a request.
#[derive(Debug)]
pub struct ResolvedRequest<'a> {
    pub request: DeviceRequest,
    /// `None`: no vendor file is needed.
    pub choice: Option<Choice<'a>>,
}

/// Decides about every request: first those by flags, then those through other programs'
/// interfaces. `directory` has the vendor files. Errors: why the start is refused, on one line.
/// Notes: broken files that this container does not request, what the policy leaves out, and
/// features that a vendor file lacks.
pub fn decide<'a>(
    files: &'a [VendorFile],
    container: &ContainerRequest,
    policy: &Policy,
    directory: &Path,
    notes: &mut Vec<Note>,
) -> Result<Vec<ResolvedRequest<'a>>> {
    let (allowed, refused, own) = Default::default();
    let mut decider = Decider { files, container, policy, allowed, refused, notes: own };
    decider.decide_flags()?;
    notes.append(&mut decider.notes);
    notes.append(&mut decider.refused);
    notes.extend(unknown_flags(files, container));
    let (requests, reasons) = pick(container, policy);
    for reason in reasons {
        decider.refuse(None, reason)?;
    }
    for request in requests {
        match request.backend {
            Backend::VendorFile => decider.decide_features(request, directory)?,
            Backend::Cdi => decider.decide_kinds(request)?,
            Backend::Csv => decider.decide_whole(request)?,
        }
    }
    notes.append(&mut decider.notes);
    notes.append(&mut decider.refused);
    // What a vendor file gives comes first.
    decider.allowed.sort_by_key(|it| it.choice.is_none());
    Ok(decider.allowed)
}

/// The requests through other programs' interfaces whose sources are allowed, with their extras, and
/// why the others are not. An earlier one overrides the later ones of its interface: without a
/// scheduler the first that is allowed is the only one, and one for nothing ends the search.
pub fn pick(container: &ContainerRequest, policy: &Policy) -> (Vec<DeviceRequest>, Vec<String>) {
    let (mut picked, mut refused): (Vec<DeviceRequest>, Vec<String>) = Default::default();
    // A user can always set the environment, and an image may have written the annotation.
    let declines = |it: &DeviceRequest| {
        it.sources == [RequestSource::Environment]
            && matches!(it.devices, DeviceList::Nothing | DeviceList::None)
    };
    let is_declined =
        policy.images_may_annotate() && container.device_requests.iter().any(declines);
    let mut ended = Vec::new();
    for request in &container.device_requests {
        let is_images = is_declined && request.sources.contains(&RequestSource::Annotations);
        if is_images || ended.contains(&request.interface) {
            continue;
        }
        if request.devices == DeviceList::Nothing {
            if !container.has_scheduler() {
                ended.push(request.interface);
            }
            continue;
        }
        let is_beside = request.is_beside_scheduler;
        let privilege = request.needs_privilege;
        match judge(container, policy, &request.sources, &request.by, is_beside, privilege) {
            Ok(()) if !container.has_scheduler() => {
                ended.push(request.interface);
                picked.push(request.clone());
            }
            Ok(()) => picked.push(request.clone()),
            Err(reason) => refused.push(reason),
        }
    }
    for request in &mut picked {
        keep_allowed_extras(request, container, policy, &mut refused);
    }
    (picked, refused)
}

/// Leaves the extras that are allowed. The first channels override later ones.
fn keep_allowed_extras(
    request: &mut DeviceRequest,
    container: &ContainerRequest,
    policy: &Policy,
    refused: &mut Vec<String>,
) {
    if request.problem.is_some() {
        return;
    }
    let mut has_channels = false;
    for Extra { source, by, kind } in std::mem::take(&mut request.extras) {
        let is_channels = matches!(kind, ExtraKind::Channels(_));
        if is_channels && has_channels {
            continue;
        }
        // NVIDIA's rule about variables is one for devices.
        let privilege = is_channels && request.needs_privilege;
        if let Err(reason) = judge(container, policy, &[source], &by, false, privilege) {
            refused.push(reason);
            continue;
        }
        has_channels |= is_channels;
        match &kind {
            ExtraKind::Channels(Err(error)) => request.problem = Some(error.clone()),
            ExtraKind::MigRight(_, value) if !container.privileged => {
                request.problem = Some(needs_privilege(&by, value));
            }
            _ => {}
        }
        if request.problem.is_some() {
            return;
        }
        request.extras.push(Extra { source, by, kind });
    }
}

/// Whether a request from all of these sources is allowed. Errors: why `by` is not.
fn judge(
    container: &ContainerRequest,
    policy: &Policy,
    sources: &[RequestSource],
    by: &str,
    is_beside_scheduler: bool,
    needs_privilege: bool,
) -> std::result::Result<(), String> {
    if container.has_scheduler() && !is_beside_scheduler {
        return Err(not_scheduled(by));
    }
    for source in sources {
        if !policy.counts(*source, container.privileged) {
            return Err(policy.not_counted(*source, by));
        }
    }
    if !needs_privilege || container.privileged || !sources.contains(&RequestSource::Environment) {
        return Ok(());
    }
    Err(format!(
        "{by} of the container's environment does not count: the container is not privileged, and accept-nvidia-visible-devices-envvar-when-unprivileged is false"
    ))
}

struct Decider<'a, 'r> {
    files: &'a [VendorFile],
    container: &'r ContainerRequest<'r>,
    policy: &'r Policy,
    allowed: Vec<ResolvedRequest<'a>>,
    /// What the policy leaves out.
    refused: Vec<Note>,
    notes: Vec<Note>,
}

impl<'a> Decider<'a, '_> {
    /// Handles what the policy leaves out. Errors: it refuses the start.
    fn refuse(&mut self, file: Option<&VendorFile>, reason: String) -> Result<()> {
        self.refused.push(refuse(self.policy, file, reason)?);
        Ok(())
    }

    fn decide_flags(&mut self) -> Result<()> {
        let mut claimed: FxHashMap<&str, &VendorFile> = FxHashMap::default();
        for file in self.files {
            let request = self.by_flag(file)?;
            match (&file.content, request) {
                (Ok(vendor), Some(request)) => {
                    let flag = &vendor.activation_flag;
                    let refused = self.refused.len();
                    let features = self.features(file, vendor, &request)?;
                    if !features.is_empty() || self.refused.len() == refused {
                        let choice = Some(Choice { file, vendor, features });
                        self.allowed.push(ResolvedRequest { request, choice });
                    }
                    if let Some(other) = claimed.insert(flag, file) {
                        return Err(claimed_twice(flag, &other.path, &file.path));
                    }
                }
                (Err(broken), Some(request)) => {
                    return Err(refuse_broken(file, broken, &request.by))
                }
                (Err(broken), None) => self.notes.push(ignored(file, broken)),
                (Ok(_), None) => {}
            }
        }
        Ok(())
    }

    /// The allowed request by a flag of this file.
    fn by_flag(&mut self, file: &VendorFile) -> Result<Option<DeviceRequest>> {
        for flag in file.flags() {
            let Some(features) = self.asked_by(file, flag)? else {
                continue;
            };
            if let Err(reason) = self.policy.judge_vendor(&file.name, flag) {
                self.refuse(Some(file), reason)?;
                continue;
            }
            // Only the scheduler gives the devices of these interfaces.
            if self.container.has_scheduler() && !file.interfaces().is_empty() {
                self.refuse(Some(file), not_scheduled(flag))?;
                continue;
            }
            let by = flag.clone();
            return Ok(Some(DeviceRequest { by, features, ..DeviceRequest::default() }));
        }
        Ok(None)
    }

    /// The features that a flag requests by its first value that counts, even if that is `none`. A
    /// value that is overridden never refuses the container, because the image may have set it.
    fn asked_by(&mut self, file: &VendorFile, flag: &str) -> Result<Option<Features>> {
        for source in self.policy.sources_of_flags() {
            let Some(value) = self.container.get(source, flag) else {
                continue;
            };
            let features = asked(Some(value));
            match judge(self.container, self.policy, &[source], flag, true, false) {
                Ok(()) => return Ok(features),
                Err(reason) if features.is_some() => self.refuse(Some(file), reason)?,
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// The requested features that are allowed, each once. Errors: a flag names an unknown one.
    fn features(
        &mut self,
        file: &VendorFile,
        vendor: &'a Vendor,
        request: &DeviceRequest,
    ) -> Result<Vec<&'a str>> {
        let is_flag = request.interface.is_none();
        let by = &request.by;
        let (wanted, by_name): (Vec<&str>, bool) = match &request.features {
            Features::Usual => {
                (vendor.driver_feature.iter().map(String::as_str).collect(), is_flag)
            }
            Features::All => (vendor.feature_names().collect(), false),
            Features::These { words, by_name } => {
                let mut wanted = Vec::new();
                for word in words {
                    let found = vendor.features_for(word);
                    if is_flag {
                        let own = found.into_iter().find(|name| name == word);
                        wanted.push(own.ok_or_else(|| unknown_feature(file, vendor, word))?);
                        continue;
                    }
                    if found.is_empty() {
                        self.notes.push(lacks_feature(file, by, word, *by_name));
                    }
                    wanted.extend(found);
                }
                (wanted, *by_name)
            }
        };
        let mut features: Vec<&str> = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for &feature in &wanted {
            if seen.contains(&feature) {
                continue;
            }
            seen.push(feature);
            let name = &file.name;
            if self.policy.allows(name, feature) {
                features.push(feature);
            } else if by_name {
                let reason = format!("{by} asks for the feature {feature:?}, and \"policy.allow\" has none of that name for {name}");
                self.refuse(Some(file), reason)?;
            }
        }
        if !by_name && features.is_empty() && !wanted.is_empty() {
            self.refuse(Some(file), none_allowed(file, vendor, by))?;
        }
        Ok(features)
    }

    /// Devices of the vendor file that answers the request's interface.
    fn decide_features(&mut self, request: DeviceRequest, directory: &Path) -> Result<()> {
        let (file, vendor) = answering(self.files, &request, directory)?;
        if let Err(reason) = self.policy.judge_vendor(&file.name, &request.by) {
            return self.refuse(Some(file), reason);
        }
        request.problem.clone().map_or(Ok(()), Err)?;
        let features = self.features(file, vendor, &request)?;
        let choice = Some(Choice { file, vendor, features });
        self.allowed.push(ResolvedRequest { request, choice });
        Ok(())
    }

    /// Whole devices of one vendor, which has to be allowed as a whole.
    fn decide_whole(&mut self, request: DeviceRequest) -> Result<()> {
        let answers = |file: &&VendorFile| has_interface(file, &request);
        let file = self.files.iter().find(answers);
        let word = request.interface.map_or("", |interface| interface.word());
        let vendor = file.map_or(word, |file| &file.name);
        if let Err(reason) = self.policy.judge_whole(vendor, &request.by) {
            return self.refuse(file, reason);
        }
        self.allow(request)
    }

    /// Devices by CDI names: those of the allowed kinds are left.
    fn decide_kinds(&mut self, mut request: DeviceRequest) -> Result<()> {
        let DeviceList::These(names) = &mut request.devices else {
            return self.decide_whole(request);
        };
        // One notice for each kind, however many of its devices are named.
        let mut kinds: FxHashMap<String, bool> = FxHashMap::default();
        let mut left = Vec::new();
        for name in std::mem::take(names) {
            let kind = name.split_once('=').map_or(name.as_str(), |(kind, _)| kind);
            if !kinds.contains_key(kind) {
                let judged = self.judge_kind(&request, kind);
                kinds.insert(kind.to_owned(), judged.is_ok());
                if let Err(reason) = judged {
                    self.refuse(None, reason)?;
                }
            }
            if kinds[kind] {
                left.push(name);
            }
        }
        if left.is_empty() && !kinds.is_empty() {
            return Ok(());
        }
        request.devices = DeviceList::These(left);
        self.allow(request)
    }

    fn allow(&mut self, request: DeviceRequest) -> Result<()> {
        request.problem.clone().map_or(Ok(()), Err)?;
        self.allowed.push(ResolvedRequest { request, choice: None });
        Ok(())
    }

    /// Whether devices of the kind are allowed. Errors: why not.
    fn judge_kind(&self, request: &DeviceRequest, kind: &str) -> std::result::Result<(), String> {
        let file = vendor_of(self.files, kind);
        let is_scheduled = self.container.has_scheduler() && !request.is_schedulers();
        let is_answered = file.is_some_and(|file| !file.interfaces().is_empty());
        if is_scheduled && (is_answered || self.container.reserves(kind)) {
            return Err(not_scheduled(&request.by));
        }
        let vendor = file.map_or_else(|| brief(kind), |file| file.name.as_str().into());
        self.policy.judge_whole(&vendor, &request.by)
    }
}

/// The vendor file whose devices have this kind: the file names the kind, or it answers the
/// interface of the kind's vendor.
fn vendor_of<'a>(files: &'a [VendorFile], kind: &str) -> Option<&'a VendorFile> {
    let vendor = kind.split_once('/').map_or(kind, |(vendor, _)| vendor);
    let by_interface = |file: &&VendorFile| {
        let mut interfaces = file.interfaces().iter();
        interfaces.any(|interface| interface.domain() == vendor)
    };
    files.iter().find(|file| file.kind() == kind).or_else(|| files.iter().find(by_interface))
}

fn has_interface(file: &VendorFile, request: &DeviceRequest) -> bool {
    request.interface.is_some_and(|interface| file.interfaces().contains(&interface))
}

/// The one file that answers the interface. Errors: none does, several do, or it has mistakes.
fn answering<'a>(
    files: &'a [VendorFile],
    request: &DeviceRequest,
    directory: &Path,
) -> Result<(&'a VendorFile, &'a Vendor)> {
    let by = &request.by;
    let word = request.interface.map_or("", |interface| interface.word());
    let mut found = files.iter().filter(|file| has_interface(file, request));
    match (found.next(), found.next()) {
        (Some(one), None) => match &one.content {
            Ok(vendor) => Ok((one, vendor)),
            Err(broken) => Err(refuse_broken(one, broken, by)),
        },
        (Some(one), Some(other)) => Err(Error::usage(format!(
            "{by} asks for a device, and both {} and {} answer {word:?}",
            one.path, other.path
        ))
        .resolve("remove one of the files, or remove the word from its \"interfaces\"")),
        (None, _) => Err(Error::not_found(format!(
            "{by} asks for a device, and no vendor file in {} answers {word:?}",
            directory.display()
        ))
        .resolve(format!(
            "install the driver (`provision apply`), or add \"interfaces\": [\"{word}\"] to its vendor file"
        ))),
    }
}

fn needs_privilege(by: &str, value: &str) -> Error {
    Error::usage(format!(
        "{by}={} is for privileged containers only: it lets a container change or watch every GPU's partitions",
        brief(value)
    ))
    .resolve("start the container with CAP_SYS_ADMIN, or without the variable")
}

fn lacks_feature(file: &VendorFile, by: &str, word: &str, by_name: bool) -> Note {
    let message =
        format!("{by} asks for {:?}, which {} does not have: left out", brief(word), file.path);
    let level = if by_name { Level::Notice } else { Level::Debug };
    Note::new(level, message).vendor(&file.name)
}

/// Notes about annotations whose flag no vendor file has. A variable may belong to another program, but
/// an annotation with our prefix does not. A container can have any number of these, and all containers
/// share the log.
fn unknown_flags(files: &[VendorFile], request: &ContainerRequest) -> Vec<Note> {
    let known = |flag: &&str| files.iter().any(|file| file.flags().iter().any(|f| f == flag));
    let mut unknown = request.annotations.asking().filter(|flag| !known(flag));
    let note = |message: String| Note::new(Level::Notice, message);
    let said = unknown.by_ref().take(SAID).map(|flag| {
        let flag = brief(flag);
        note(format!("the annotation {ANNOTATION_PREFIX}{flag} asks for nothing: no vendor file has this flag"))
    });
    let mut notes: Vec<Note> = said.collect();
    let more = unknown.count();
    if more > 0 {
        notes.push(note(format!("{more} more annotations {ANNOTATION_PREFIX}… ask for nothing")));
    }
    notes
}

/// Why a container that asks for every allowed feature gets nothing.
fn none_allowed(file: &VendorFile, vendor: &Vendor, by: &str) -> String {
    let known: Vec<_> = vendor.feature_names().collect();
    format!(
        "{by} asks for all that is allowed, and \"policy.allow\" has no feature of {}, which knows {}",
        file.name,
        known.join(", ")
    )
}

fn unknown_feature(file: &VendorFile, vendor: &Vendor, wanted: &str) -> Error {
    let known: Vec<_> = vendor.feature_names().collect();
    Error::usage(format!(
        "{} asks for the unknown feature {:?}",
        vendor.activation_flag,
        brief(wanted)
    ))
    .resolve(format!(
        "{} knows {}; \"all\" is every one of them",
        file.path,
        known.join(", ")
    ))
}

fn refuse_broken(file: &VendorFile, broken: &Broken, flag: &str) -> Error {
    Error::usage(format!(
        "{flag} is set, but {} can't be used: {}",
        file.path,
        summary(&broken.mistakes)
    ))
    .resolve("correct the file; `oci-decorator check` lists every mistake")
}

fn ignored(file: &VendorFile, broken: &Broken) -> Note {
    Note::new(
        Level::Warning,
        format!("{} can't be used and is ignored: {}", file.path, summary(&broken.mistakes)),
    )
    .vendor(&file.name)
}

fn claimed_twice(flag: &str, one: &str, other: &str) -> Error {
    Error::usage(format!("{flag} is the activation_flag of {one} and of {other}"))
        .resolve("remove one of the files, or rename its flag")
}
