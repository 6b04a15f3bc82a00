//! The steps that every front end takes before it applies edits: read the vendor files, pass the
//! request to the policy and the decision, look things up on the host, settle conflicts with the
//! container, and log.
//!
//! A container that asks for nothing starts, whatever is wrong with the settings, the vendor files
//! or its own config. A container that asks, or may ask, is refused with the reason.

pub mod amd;
pub mod cdi;
pub mod cdi_hook;
pub mod find_program;
pub mod hook;
pub mod interfaces;
pub mod nvidia;
pub mod precreate;
pub mod runtime;
pub mod sarus;
pub mod scheduled;

use std::io::Read;
use std::path::Path;

use crate::apply::spec::Spec;
use crate::config::settings::Loaded;
use crate::config::vendor_dir;
use crate::error::{Error, Result};
use crate::host::answer::collect_answer;
use crate::host::inventory::collect;
use crate::host::libraries;
use crate::host::rootfs::{path_of, Rootfs};
use crate::host::Host;
use crate::log::level::Level;
use crate::log::{Log, Note};
use crate::model::decide::answers::{answers, Answers};
use crate::model::decide::{decide, may_ask, Choice};
use crate::model::edits::paths::{Image, Unseen};
use crate::model::edits::{Edits, Present, Settled};
use crate::model::policy::Policy;
use crate::model::request::{Request, Way};
use crate::model::vendor::VendorFile;
use nvidia::Nvidia;
use sarus::SchedulerLists;
use scheduled::Scheduled;

/// What a front end works with: the settings, and what differs between the names of this program.
#[derive(Debug)]
pub struct Context<'a> {
    pub loaded: &'a Loaded,
    pub policy: &'a Policy,
    pub log: &'a Log,
    pub kind: FrontEndKind,
    /// NVIDIA's interface. `None`: it is not answered.
    pub nvidia: Option<Nvidia<'a>>,
    /// The devices that the scheduler gave to this process.
    pub scheduled: SchedulerLists,
}

/// The kind of front end that reads a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum FrontEndKind {
    /// A runtime, or a filter of specs, which edit the spec.
    #[default]
    Runtime,
    /// A hook, which can't change the spec.
    Hook,
}

impl<'a> Context<'a> {
    /// Under this program's own names: the interfaces are those of the settings.
    pub fn new(loaded: &'a Loaded, log: &'a Log, kind: FrontEndKind) -> Self {
        let settings = &loaded.settings;
        let scheduled = settings.scheduler.then(SchedulerLists::of_process).unwrap_or_default();
        Self {
            loaded,
            policy: &settings.policy,
            log,
            kind,
            nvidia: Nvidia::of_settings(settings, kind),
            scheduled,
        }
    }

    /// Under NVIDIA's names.
    pub fn of_nvidia(loaded: &'a Loaded, log: &'a Log, nvidia: Nvidia<'a>) -> Self {
        Self { nvidia: Some(nvidia), ..Self::new(loaded, log, nvidia.kind) }
    }

    /// What a container with this request gets, logged. `None`: nothing applies.
    /// Errors: the start is refused.
    pub fn edits(&self, request: &Request) -> Result<Option<Edits>> {
        let mut notes = Vec::new();
        let edits = self.decided(request, &mut notes);
        self.log.write_all(&notes);
        edits
    }

    /// The same, but the lines to log are added to the notes.
    pub fn decided(&self, request: &Request, notes: &mut Vec<Note>) -> Result<Option<Edits>> {
        let files = self.vendor_files(request, notes)?;
        if let Some(problem) = self.loaded.problem.as_ref().or(request.doubt.as_ref()) {
            if let Some(flag) = may_ask(&files, request, self.policy) {
                return Err(in_doubt(flag, problem));
            }
            notes.push(Note::new(Level::Warning, problem.to_string()));
            return Ok(None);
        }
        let (choices, more) = decide(&files, request, self.policy)?;
        notes.extend(more);
        let folder = self.loaded.settings.config_dir.display().to_string();
        let mut answers = match answers(&files, request, self.policy, &folder) {
            // A host that can't be looked at may be a Jetson, which needs no vendor file.
            Err(error) => {
                return Err(Host::open(&self.loaded.settings.root).err().unwrap_or(error))
            }
            Ok(answers) => answers,
        };
        notes.append(&mut answers.notes);
        let asks = !answers.by_files.is_empty() || !answers.otherwise.is_empty();
        let changes = !request.set.is_empty() || !request.unset.is_empty();
        if choices.is_empty() && !asks && !changes && !scheduled::has_hook(request) {
            return Ok(None);
        }
        let host = Host::open(&self.loaded.settings.root)?;
        let scheduled = Scheduled::of(request, &host, &files, self.policy);
        let found = Decided { choices, answers, scheduled };
        self.collected(request, &host, &found, notes).map(Some)
    }

    /// Looks everything up on the host.
    fn collected(
        &self,
        request: &Request,
        host: &Host,
        decided: &Decided,
        notes: &mut Vec<Note>,
    ) -> Result<Edits> {
        let Decided { choices, scheduled, .. } = decided;
        let warning = |text: &String| Note::new(Level::Warning, text.clone());
        notes.extend(self.warnings().map(warning));
        let (mut edits, more) = collect(host, choices)?;
        notes.extend(more);
        if let Some(scheduled) = scheduled {
            scheduled.limit(&scheduled::flags(choices), &mut edits, notes)?;
            edits.append(scheduled::without_hooks(request, notes));
        }
        // Variables from other interfaces come later and override these.
        edits.append(Edits {
            environment: request.set.clone(),
            unset: request.unset.clone(),
            ..Edits::default()
        });
        self.add_answers(request, host, decided, &mut edits, notes)?;
        edits.sort();
        edits.validate()?;
        Ok(edits)
    }

    /// Adds what other programs' interfaces give: first the answers of vendor files, then what
    /// their other ways add to these or give by themselves.
    fn add_answers(
        &self,
        request: &Request,
        host: &Host,
        decided: &Decided,
        edits: &mut Edits,
        notes: &mut Vec<Note>,
    ) -> Result<()> {
        let Decided { answers, scheduled, .. } = decided;
        for answer in &answers.by_files {
            let (own, more) = collect_answer(host, answer)?;
            notes.extend(more);
            edits.append(own);
        }
        let by_files = answers.by_files.iter().map(|answer| answer.ask);
        for ask in by_files.chain(&answers.otherwise) {
            let (mut own, more) = self.beside(ask, request, host)?;
            notes.extend(more);
            if let Some(scheduled) = scheduled.as_ref().filter(|_| ask.way == Way::Cdi) {
                scheduled.limit(&ask.by, &mut own, notes)?;
            }
            edits.append(own);
        }
        Ok(())
    }

    /// The flag with which the container may ask for something.
    pub fn may_ask(&self, request: &Request) -> Result<Option<String>> {
        let mut notes = Vec::new();
        let files = self.vendor_files(request, &mut notes);
        self.log.write_all(&notes);
        let files = files?;
        Ok(may_ask(&files, request, self.policy).map(str::to_owned))
    }

    /// Errors: the folder can't be read, and the container has an annotation that asks.
    fn vendor_files(&self, request: &Request, notes: &mut Vec<Note>) -> Result<Vec<VendorFile>> {
        let mut files = read(&self.loaded.settings.config_dir, request, notes)?;
        for folder in &self.loaded.suspected {
            files.extend(read(folder, request, notes)?);
        }
        Ok(files)
    }
}

fn read(folder: &Path, request: &Request, notes: &mut Vec<Note>) -> Result<Vec<VendorFile>> {
    vendor_dir::read(folder).or_else(|error| {
        if let Some(flag) = request.annotations.asking().next() {
            return Err(in_doubt(flag, &error));
        }
        // Without the files, it is not known which variables are flags.
        notes.push(Note::new(Level::Error, error.to_string()));
        Ok(Vec::new())
    })
}

/// The decision about a request, before anything is looked up on the host.
struct Decided<'a> {
    choices: Vec<Choice<'a>>,
    answers: Answers<'a>,
    scheduled: Option<Scheduled<'a>>,
}

/// Why a container that asks is refused, while another would start.
fn in_doubt(flag: &str, problem: &Error) -> Error {
    Error { message: format!("{flag} is set, but {}", problem.message), ..problem.clone() }
}

/// Reads standard input to its end. Errors: it is larger than `limit` bytes.
pub fn read_input(what: &str, limit: u64) -> Result<Vec<u8>> {
    let what = format!("{what} on standard input");
    read_all(Input, &what, limit)
}

/// Standard input without a buffer, which would cost time at each start.
struct Input;

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), buffer)?)
    }
}

/// Reads a file to its end. Errors: it can't be read, or is larger than `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let file = std::fs::File::open(path);
    let file = file.map_err(|e| Error::failed(format!("can't read {shown}: {e}")))?;
    read_all(file, &shown, limit)
}

fn read_all(source: impl Read, shown: &str, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = source.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::failed(format!("can't read {shown}: {e}")))?;
    if bytes.len() as u64 > limit {
        return Err(Error::failed(format!("{shown} is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The container's root of a spec in a bundle. `None`: the spec names none.
/// Errors: it can't be opened, or is the host's own.
pub fn rootfs(spec: &Spec, bundle: &Path) -> Result<Option<Rootfs>> {
    let path = spec.root_path()?;
    path.map(|path| Rootfs::open(&bundle.join(&*path))).transpose()
}

/// Settles the edits with what the container has already. `root` is the host's.
pub fn settle(
    mut edits: Edits,
    mut present: Present,
    rootfs: Option<&Rootfs>,
    root: &Path,
    log: &Log,
) -> Result<Settled> {
    libraries::find(&mut edits, || Host::open(root))?;
    let image = rootfs.map_or(&Unseen as &dyn Image, |rootfs| rootfs);
    if let Some(root) = rootfs.and_then(|rootfs| path_of(&rootfs.mounted)) {
        present.add_below(&root);
    }
    let (settled, notes) = edits.settle(&present, image);
    log.write_all(&notes);
    Ok(settled)
}
