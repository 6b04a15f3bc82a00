//! Reads what a container's config asks for, without judging the rest of it.
//!
//! Most containers ask for nothing, and the rest of their config is between the engine and
//! the runtime. So nothing is an error here: what is no valid spec asks for nothing, and the
//! runtime reports it.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use rustix::process::Pid;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::request::{AskingMount, ContainerRequest, ANNOTATION_PREFIX};

pub const MAX_CONFIG: u64 = 64 << 20;
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

/// Stages of hooks at which devices may be given: `prestart`, and what podman makes of it.
pub const HOOK_STAGES: [&str; 2] = ["prestart", "createRuntime"];

#[derive(Debug)]
pub struct Spec<'a> {
    pub text: &'a str,
    pub members: RawObject<'a>,
}

impl<'a> Spec<'a> {
    /// Errors: the text is not a JSON object.
    pub fn parse(text: &'a str) -> Result<Self> {
        let members = serde_json::from_str(text).map_err(|error| invalid("", &error))?;
        Ok(Self { text, members })
    }
}

/// A container's config, read once.
#[derive(Debug)]
pub struct ContainerConfig<'a> {
    spec: Result<Spec<'a>>,
}

impl<'a> ContainerConfig<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        let text = std::str::from_utf8(bytes).map_err(|error| invalid("", &error));
        Self { spec: text.and_then(Spec::parse) }
    }

    /// Errors: it is not a JSON object.
    pub fn spec(&self) -> Result<&Spec<'a>> {
        self.spec.as_ref().map_err(Clone::clone)
    }

    pub fn request(&self, wanted: &ScanScope) -> ContainerRequest<'a> {
        let mut request = ContainerRequest::default();
        let Ok(Spec { members, .. }) = &self.spec else {
            return request;
        };
        if let Some(process) = read::<RawObject>(members.get("process")) {
            let environment = texts(process.get("env"));
            environment.for_each(|entry| request.environment.push(entry));
            request.privileged = is_privileged(process.get("capabilities"));
        }
        add_annotations(&mut request, members.get("annotations"), wanted.cdi_prefixes);
        if let Some(folder) = wanted.mounts_below {
            request.mounts = mounts(members.get("mounts"), folder);
        }
        request
    }

    pub fn hooks_at(&self, stages: &[&str]) -> Vec<String> {
        let spec = self.spec.as_ref().ok();
        let hooks = spec.and_then(|spec| read::<RawObject>(spec.members.get("hooks")));
        let at = |stage: &&str| objects(hooks.as_ref().and_then(|hooks| hooks.get(stage)));
        let path = |hook: RawObject| Some(lossy_text(hook.get("path")?)?.into_owned());
        stages.iter().flat_map(at).filter_map(path).collect()
    }
}

/// What a value holds. `None`: it is missing, or of another kind.
fn read<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(value?.get()).ok()
}

fn texts(value: Option<&RawValue>) -> impl Iterator<Item = Cow<'_, str>> {
    read::<Vec<&RawValue>>(value).unwrap_or_default().into_iter().filter_map(lossy_text)
}

fn objects(value: Option<&RawValue>) -> Vec<RawObject<'_>> {
    let items: Vec<&RawValue> = read(value).unwrap_or_default();
    items.into_iter().filter_map(|item| read(Some(item))).collect()
}

/// Specs before version 1.0.0 have one list instead of several sets.
fn is_privileged(capabilities: Option<&RawValue>) -> bool {
    let sets = read::<RawObject>(capabilities);
    let bounding = sets.map_or(capabilities, |sets| sets.get("bounding"));
    texts(bounding).any(|name| name == PRIVILEGE)
}

/// Adds the flags and the names of CDI devices among the annotations.
fn add_annotations<'a>(
    request: &mut ContainerRequest<'a>,
    value: Option<&'a RawValue>,
    cdi: &[String],
) {
    // Engines add dozens of annotations of their own.
    let text = value.map_or("", RawValue::get);
    let is_in = |prefix: &str| text.contains(prefix);
    if !is_in(ANNOTATION_PREFIX) && !is_in("\\") && !cdi.iter().any(|prefix| is_in(prefix)) {
        return;
    }
    for (key, value) in read::<RawObject>(value).map_or(Vec::new(), |members| members.0) {
        let Some(text) = lossy_text(value) else {
            continue;
        };
        request.add_annotation(key, text, cdi);
    }
}

fn mounts<'a>(value: Option<&'a RawValue>, folder: &str) -> Vec<AskingMount<'a>> {
    // The folder's own name has no character that JSON needs to escape.
    let name = folder.rsplit('/').next().unwrap_or(folder);
    let text = value.map_or("", RawValue::get);
    if !text.contains(name) && !text.contains('\\') {
        return Vec::new();
    }
    let mount = |members: RawObject<'a>| {
        let text = |key| members.get(key).and_then(lossy_text).unwrap_or_default();
        AskingMount { source: text("source"), destination: text("destination") }
    };
    objects(value).into_iter().map(mount).collect()
}

/// The error for a config, or a part of it, that no valid spec has.
pub fn invalid(key: &str, problem: &dyn std::fmt::Display) -> Error {
    let place = if key.is_empty() { "" } else { ": " };
    Error::failed(format!("the container's config.json is not a valid spec: {key}{place}{problem}"))
}

// The state that a runtime writes to a hook's standard input.
// <https://github.com/opencontainers/runtime-spec/blob/v1.2.0/runtime.md#state>

/// The parts of a state that matter to this program.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub id: String,
    pub bundle: PathBuf,
    /// An error is one only for a container that asks for something: at the stage createContainer,
    /// runtimes write 0 or 1.
    pub pid: Result<Pid>,
}

impl State {
    /// Errors: not a state, or one without a bundle.
    pub fn parse(text: &str) -> Result<Self> {
        let members: RawObject = serde_json::from_str(text)
            .map_err(|e| invalid_state(&format!("it is not valid JSON: {e}")))?;
        // Runtimes wrote "bundlePath" before version 1.0.0 of the specification.
        let bundle = members.get("bundle").or_else(|| members.get("bundlePath"));
        let bundle = bundle
            .and_then(lossy_text)
            .filter(|path| path.starts_with('/') && !path.contains('\0'))
            .ok_or_else(|| invalid_state("\"bundle\" is not an absolute path"))?;
        let id = members.get("id").and_then(lossy_text).unwrap_or_default().into_owned();
        Ok(Self { id, bundle: bundle.into_owned().into(), pid: pid(members.get("pid")) })
    }
}

fn pid(value: Option<&RawValue>) -> Result<Pid> {
    let Some(value) = value else {
        return Err(invalid_state("it has no \"pid\": the container has no process yet"));
    };
    let found = brief(value.get());
    let number: f64 = serde_json::from_str(value.get())
        .map_err(|_| invalid_state(&format!("\"pid\": expected a number, found {found}")))?;
    // A hook within the container sees 1, which is the init process on the host.
    let valid = number.fract() == 0.0 && number > 1.0 && number <= f64::from(i32::MAX);
    #[allow(clippy::cast_possible_truncation)] // It was just compared.
    let whole = if valid { number as i32 } else { 0 };
    Pid::from_raw(whole)
        .ok_or_else(|| invalid_state(&format!("\"pid\": {number} is not the container's process")))
}

fn invalid_state(problem: &str) -> Error {
    Error::failed(format!("the state on standard input can't be used: {problem}"))
}

// Objects whose values stay untouched slices of the text, for files that are edited.

/// Text in which an invalid character, such as half of a surrogate pair, becomes U+FFFD, as
/// it does for runc. Some strings are the container's, and its author may write anything.
struct LossyText<'a>(Cow<'a, str>);

struct LossyTextVisitor;

impl<'de> Visitor<'de> for LossyTextVisitor {
    type Value = LossyText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E>(self, text: &'de [u8]) -> Result<LossyText<'de>, E> {
        Ok(LossyText(String::from_utf8_lossy(text)))
    }

    fn visit_bytes<E>(self, text: &[u8]) -> Result<LossyText<'de>, E> {
        let text = String::from_utf8_lossy(text).into_owned();
        Ok(LossyText(Cow::Owned(text)))
    }
}

impl<'de> Deserialize<'de> for LossyText<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(LossyTextVisitor)
    }
}

/// The text of a string, borrowed where it has no escapes. `None`: it isn't a string.
pub fn lossy_text(value: &RawValue) -> Option<Cow<'_, str>> {
    let plain = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if !plain.contains('\\') {
        return Some(Cow::Borrowed(plain));
    }
    let text: LossyText = serde_json::from_str(value.get()).ok()?;
    Some(text.0)
}

/// The members of one object, each value an untouched slice of the text.
#[derive(Debug, Clone)]
pub struct RawObject<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> RawObject<'a> {
    /// Of two members with one key, the last one counts.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, v)| *v)
    }
}

struct RawObjectVisitor;

impl<'de> Visitor<'de> for RawObjectVisitor {
    type Value = RawObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        members(map).map(RawObject)
    }
}

impl<'de> Deserialize<'de> for RawObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawObjectVisitor)
    }
}

pub fn members<'de, A: MapAccess<'de>, V: Deserialize<'de>>(
    mut map: A,
) -> Result<Vec<(Cow<'de, str>, V)>, A::Error> {
    let mut members = Vec::new();
    while let Some((LossyText(key), value)) = map.next_entry()? {
        members.push((key, value));
    }
    Ok(members)
}

pub fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With steps that grow with the square of the members these take minutes.
    #[test]
    fn many_members_are_read_in_no_time() {
        let many = |member: &dyn Fn(u32) -> String| {
            let members: Vec<String> = (0..50_000).map(member).collect();
            members.join(",")
        };
        let prefixes = ["cdi.k8s.io/".to_owned()];
        let wanted = ScanScope { cdi_prefixes: &prefixes, ..ScanScope::default() };
        for (members, flags, names) in [
            (many(&|at| format!(r#""oci-decorator.d/F{at}":"all""#)), 50_000, 0),
            (many(&|at| format!(r#""cdi.k8s.io/{at}":"v.com/c=d""#)), 0, 50_000),
        ] {
            let text = format!(r#"{{"annotations":{{{members}}}}}"#);
            let started = std::time::Instant::now();
            let request = ContainerConfig::parse(text.as_bytes()).request(&wanted);
            assert_eq!((request.annotations.asking().count(), request.cdi.len()), (flags, names));
            assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
        }
    }
}
