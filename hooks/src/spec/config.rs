//! Reads what a container's config asks for, without judging the rest of it.
//!
//! Most containers ask for nothing, and the rest of their config is between the engine and
//! the runtime. So nothing is an error here. If runtimes may read a part differently (a key
//! given twice, or `"Env"`, which runc takes for `"env"`), that becomes the request's
//! [`doubt`](Request::doubt), and every possible meaning counts as asked for.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::model::request::{Annotations, AskingMount, Environment, Request, ANNOTATION_PREFIX};
use crate::spec::json::{folds_to, lossy_text, RawObject};

/// The capability whose presence in the bounding set makes a container privileged.
const PRIVILEGE: &str = "CAP_SYS_ADMIN";

/// The requests to look for besides flags.
#[derive(Debug, Default)]
pub struct ScanScope<'w> {
    /// The container's folder in which mounts count as requests.
    pub mounts_below: Option<&'w str>,
    /// The prefix of annotations that name CDI devices.
    pub cdi_prefixes: &'w [String],
}

/// What the config asks for by the flags of vendor files.
pub fn request(config: &[u8]) -> Request<'_> {
    Config::parse(config).request(&ScanScope::default())
}

/// Stages of hooks at which devices may be given: `prestart`, and what podman makes of it.
pub const HOOK_STAGES: [&str; 2] = ["prestart", "createRuntime"];

/// A `config.json`, parsed once for what it asks for and for its edits.
#[derive(Debug)]
pub struct Config<'a> {
    bytes: &'a [u8],
    /// Its text and members. `None`: it is not UTF-8.
    parsed: Option<(&'a str, serde_json::Result<RawObject<'a>>)>,
}

impl<'a> Config<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok();
        let parsed = text.map(|text| (text, serde_json::from_str(text)));
        Self { bytes, parsed }
    }

    /// Its text and members. Errors: it is not a JSON object. A config that asks is in doubt then,
    /// and was refused.
    pub fn members(&self) -> Result<(&'a str, &RawObject<'a>)> {
        match &self.parsed {
            Some((text, Ok(members))) => Ok((text, members)),
            Some((_, Err(error))) => Err(doubtful(&error.to_string())),
            None => Err(Error::failed("the container's config.json is not UTF-8")),
        }
    }

    /// What it asks for.
    pub fn request(&self, wanted: &ScanScope) -> Request<'a> {
        match &self.parsed {
            Some((_, Ok(members))) => read(members, wanted),
            Some((text, Err(error))) => guess(text, error, wanted),
            None => request_of_lossy(self.bytes, wanted),
        }
    }

    /// The programs of the hooks at these stages, by their paths. A config that can't be read
    /// gives none: the runtime reports that.
    pub fn hooks_at(&self, stages: &[&str]) -> Vec<String> {
        fn object(value: &RawValue) -> Option<RawObject<'_>> {
            serde_json::from_str(value.get()).ok()
        }
        let members = self.members().ok();
        let hooks = members.and_then(|(_, members)| object(members.get("hooks")?));
        let at = |stage: &&str| {
            let listed = hooks.as_ref()?.get(stage)?;
            let list: Vec<&RawValue> = serde_json::from_str(listed.get()).ok()?;
            let path = |hook: &RawValue| Some(lossy_text(object(hook)?.get("path")?)?.into_owned());
            Some(list.into_iter().filter_map(path).collect::<Vec<_>>())
        };
        stages.iter().filter_map(at).flatten().collect()
    }
}

/// What a config asks for whose text is not UTF-8.
fn request_of_lossy(bytes: &[u8], wanted: &ScanScope) -> Request<'static> {
    let text = String::from_utf8_lossy(bytes);
    let found = Config::parse(text.as_bytes()).request(wanted);
    let owned = |text: Cow<str>| -> Cow<'static, str> { Cow::Owned(text.into_owned()) };
    let mount = |mount: AskingMount| AskingMount {
        source: owned(mount.source),
        destination: owned(mount.destination),
    };
    let cdi = found.cdi.into_iter();
    Request {
        environment: found.environment.into_owned(),
        annotations: found.annotations.into_owned(),
        mounts: found.mounts.into_iter().map(mount).collect(),
        cdi: cdi.map(|(key, names)| (owned(key), owned(names))).collect(),
        doubt: Some(doubtful("it is not UTF-8")),
        ..Request::default()
    }
}

fn read<'a>(members: &RawObject<'a>, wanted: &ScanScope) -> Request<'a> {
    let mut reader = Reader::default();
    for process in reader.values("", members, "process") {
        let Some(process) = reader.object("process", process) else {
            continue;
        };
        for env in reader.values("process.", &process, "env") {
            reader.environment(env);
        }
        for capabilities in reader.values("process.", &process, "capabilities") {
            reader.capabilities(capabilities);
        }
    }
    for annotations in reader.values("", members, "annotations") {
        reader.annotations(annotations);
        reader.cdi(annotations, wanted.cdi_prefixes);
    }
    if let Some(folder) = wanted.mounts_below {
        for mounts in reader.values("", members, "mounts") {
            reader.mounts(mounts, folder);
        }
    }
    reader.request
}

/// Text that isn't JSON has no structure, so each of its strings may be a request.
fn guess<'a>(text: &'a str, error: &serde_json::Error, wanted: &ScanScope) -> Request<'a> {
    let mut environment = Environment::default();
    let (mut cdi, mut mounts) = (Vec::new(), Vec::new());
    for piece in text.split('"') {
        let string = unescaped(piece);
        if is_cdi(&string, wanted.cdi_prefixes) {
            cdi.push((string.clone(), Cow::Borrowed("")));
        }
        if wanted.mounts_below.is_some_and(|at| string.starts_with(at)) {
            let source = Cow::Borrowed("");
            let destination = string.clone();
            mounts.push(AskingMount { source, destination });
        }
        environment.push(match string.strip_prefix(ANNOTATION_PREFIX) {
            Some(flag) => Cow::Owned(flag.to_owned()),
            None => string,
        });
    }
    Request {
        environment,
        cdi,
        mounts,
        doubt: Some(doubtful(&error.to_string())),
        ..Request::default()
    }
}

fn is_cdi(key: &str, prefixes: &[String]) -> bool {
    prefixes.iter().any(|prefix| key.starts_with(&**prefix))
}

/// The text that a reader sees, if the value is a string.
fn unescaped(piece: &str) -> Cow<'_, str> {
    if !piece.contains('\\') {
        return Cow::Borrowed(piece);
    }
    match serde_json::from_str::<String>(&format!("\"{piece}\"")) {
        Ok(text) => Cow::Owned(text),
        Err(_) => Cow::Borrowed(piece),
    }
}

#[derive(Default)]
struct Reader<'a> {
    request: Request<'a>,
    /// Keys of annotations that name CDI devices.
    known: BTreeSet<Cow<'a, str>>,
    /// Flags of annotations.
    flags: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    fn doubt(&mut self, problem: &str) {
        self.request.doubt.get_or_insert_with(|| doubtful(problem));
    }

    /// Every value that some runtime reads for this key.
    fn values(&mut self, place: &str, object: &RawObject<'a>, name: &str) -> Vec<&'a RawValue> {
        let mut found = Vec::new();
        let mut exact = 0;
        for (key, value) in &object.0 {
            if !folds_to(key, name) {
                continue;
            }
            if key == name {
                exact += 1;
            } else {
                self.doubt(&format!("{place}{key}: some runtimes take it for {name:?}"));
            }
            if value.get() != "null" {
                found.push(*value);
            }
        }
        if exact > 1 {
            self.doubt(&format!("{place}{name} is given twice"));
        }
        found
    }

    fn object(&mut self, place: &str, value: &'a RawValue) -> Option<RawObject<'a>> {
        let read = serde_json::from_str(value.get());
        read.map_err(|e| self.doubt(&format!("{place}: {e}"))).ok()
    }

    fn list(&mut self, place: &str, value: &'a RawValue) -> Vec<&'a RawValue> {
        let read = serde_json::from_str(value.get());
        read.map_err(|e| self.doubt(&format!("{place}: {e}"))).unwrap_or_default()
    }

    fn environment(&mut self, value: &'a RawValue) {
        for entry in self.list("process.env", value) {
            match lossy_text(entry) {
                Some(entry) => self.request.environment.push(entry),
                None => self.doubt("process.env: not every entry is a string"),
            }
        }
    }

    /// Specs before version 1.0.0 have one list instead of several sets.
    fn capabilities(&mut self, value: &'a RawValue) {
        if value.get().starts_with('[') {
            self.privilege("process.capabilities", value);
            return;
        }
        let Some(sets) = self.object("process.capabilities", value) else {
            return;
        };
        for bounding in self.values("process.capabilities.", &sets, "bounding") {
            self.privilege("process.capabilities.bounding", bounding);
        }
    }

    fn privilege(&mut self, place: &str, value: &'a RawValue) {
        let mut names = self.list(place, value).into_iter();
        self.request.privileged |= names.any(|name| lossy_text(name).as_deref() == Some(PRIVILEGE));
    }

    /// Annotations that name CDI devices. If two have the same key, both count.
    fn cdi(&mut self, value: &'a RawValue, prefixes: &[String]) {
        let text = value.get();
        let may_have = |prefix: &String| text.contains(&**prefix) || text.contains('\\');
        if !prefixes.iter().any(may_have) {
            return;
        }
        let Some(members) = self.object("annotations", value) else {
            return;
        };
        for (key, value) in members.0 {
            if !is_cdi(&key, prefixes) {
                continue;
            }
            if !self.known.insert(key.clone()) {
                self.doubt(&format!("annotations: {key:?} is given twice"));
            }
            match lossy_text(value) {
                // One that names nothing asks for nothing, and hides no other request.
                Some(names) if names.split(',').all(|name| name.trim().is_empty()) => {}
                Some(names) => self.request.cdi.push((key, names)),
                None => self.doubt(&format!("annotations: {key:?} is not a string")),
            }
        }
    }

    /// Mounts that may be requests.
    fn mounts(&mut self, value: &'a RawValue, folder: &str) {
        // The folder's own name has no character that JSON needs to escape.
        let name = folder.rsplit('/').next().unwrap_or(folder);
        if !value.get().contains(name) && !value.get().contains('\\') {
            return;
        }
        for item in self.list("mounts", value) {
            let Some(members) = self.object("mounts", item) else {
                continue;
            };
            let mut text = |key| {
                let values = self.values("mounts.", &members, key);
                values.into_iter().find_map(lossy_text).unwrap_or_default()
            };
            let (source, destination) = (text("source"), text("destination"));
            self.request.mounts.push(AskingMount { source, destination });
        }
    }

    fn annotations(&mut self, value: &'a RawValue) {
        // Engines add dozens of mounts of their own.
        if !value.get().contains(ANNOTATION_PREFIX) && !value.get().contains('\\') {
            return;
        }
        let Some(members) = self.object("annotations", value) else {
            return;
        };
        let mut found = Annotations::default();
        for (key, value) in members.0.iter().filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX)) {
            let flag = &key[ANNOTATION_PREFIX.len()..];
            if !self.flags.insert(flag.to_owned()) {
                self.doubt(&format!("annotations: {key:?} is given twice"));
            }
            let text = lossy_text(value).unwrap_or_else(|| {
                self.doubt(&format!("annotations: {key:?} is not a string"));
                Cow::Borrowed("")
            });
            found.push(key, text);
        }
        self.request.annotations.extend(found);
    }
}

fn doubtful(problem: &str) -> Error {
    Error::failed(format!("the container's config.json is not a valid spec: {problem}"))
}

#[cfg(test)]
mod tests;
