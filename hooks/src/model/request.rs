//! What a container asks for, and what kind of container it is: everything that a front end knows
//! about it. The [`policy`](crate::model::policy) says whether the request counts, and
//! [`decide`](crate::model::decide) what the container gets.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::edits::variable_name;

/// Annotations that ask: `oci-decorator.d/FLAG`, with the same values as the variable `FLAG`.
pub const ANNOTATION_PREFIX: &str = "oci-decorator.d/";

#[derive(Debug, Default)]
pub struct ContainerRequest<'a> {
    pub environment: Environment<'a>,
    pub annotations: Annotations<'a>,
    /// Its bounding set has `CAP_SYS_ADMIN`, so it could take the devices without asking.
    pub privileged: bool,
    /// Why NVIDIA's settings may not be the intended ones, for a container that may ask by them.
    pub ambiguity: Option<Error>,
    /// Mounts, for front ends that need them: some mounts ask by their destinations.
    pub mounts: Vec<AskingMount<'a>>,
    /// Annotations that name CDI devices, with their keys; also only for front ends that need them.
    pub cdi: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// What it requests through NVIDIA's and AMD's interfaces. Of one interface, an earlier request
    /// overrides the later ones.
    pub device_requests: Vec<DeviceRequest>,
    /// The variable or annotation that may ask through these interfaces, in any reading of the
    /// request.
    pub possible_trigger: Option<String>,
    /// The host's scheduler set the variables that ask.
    pub is_scheduled: bool,
    /// Vendors (the first part of a CDI name) whose devices only the host's scheduler gives.
    /// Empty: no scheduler counts.
    pub reserved: Vec<String>,
    /// Hooks that the spec has at the stage `prestart`, for front ends that need them.
    pub hooks: Vec<String>,
    /// Variables that the container gets in any case.
    pub set: Vec<String>,
    /// Variables that the container must not keep.
    pub unset: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskingMount<'a> {
    pub source: Cow<'a, str>,
    pub destination: Cow<'a, str>,
}

/// The part of a container's configuration that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestSource {
    Annotations,
    Environment,
    /// Mounts below a folder that stands for devices.
    Mounts,
    /// CDI names, in annotations or in a variable.
    Cdi,
    /// The host's own scheduler, which the policy does not judge.
    Scheduler,
}

impl RequestSource {
    pub const OF_FLAGS: [Self; 2] = [Self::Annotations, Self::Environment];

    /// Its key in the policy's settings, which messages use too.
    pub fn word(self) -> &'static str {
        match self {
            Self::Annotations => "annotations",
            Self::Environment => "environment",
            Self::Mounts => "mounts",
            Self::Cdi => "cdi",
            Self::Scheduler => "scheduler",
        }
    }
}

impl<'a> ContainerRequest<'a> {
    /// A request that consists of variables only: `NAME=value`.
    pub fn of_environment<T: Into<Cow<'a, str>>>(entries: impl IntoIterator<Item = T>) -> Self {
        Self { environment: entries.into_iter().collect(), ..Self::default() }
    }

    /// Adds an annotation with a flag, or with names of CDI devices behind one of these prefixes.
    pub fn add_annotation(&mut self, key: Cow<'a, str>, value: Cow<'a, str>, cdi: &[String]) {
        if key.starts_with(ANNOTATION_PREFIX) {
            self.annotations.push(&key, value);
        } else if cdi.iter().any(|prefix| key.starts_with(&**prefix)) {
            // One that names nothing asks for nothing, and hides no other request.
            if !value.split(',').all(|name| name.trim().is_empty()) {
                self.cdi.push((key, value));
            }
        }
    }

    /// True for a CDI kind (`vendor.com/class`) that only the host's scheduler gives. A vendor's
    /// subdomains are reserved too, such as `management.nvidia.com/gpu`.
    pub fn reserves(&self, kind: &str) -> bool {
        let vendor = kind.split_once('/').map_or(kind, |(vendor, _)| vendor);
        let vendor = vendor.to_ascii_lowercase();
        self.reserved.iter().any(|own| {
            let rest = vendor.strip_suffix(own.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    }

    /// Only the host's scheduler gives devices of the reserved vendors.
    pub fn has_scheduler(&self) -> bool {
        !self.reserved.is_empty()
    }

    pub fn get(&self, source: RequestSource, flag: &str) -> Option<&str> {
        self.values(source, flag).next()
    }

    /// Whether any value that a source gives to a flag asks for something. Values that a later one
    /// in the same source overrides count too.
    pub fn requests_by(&self, source: RequestSource, flag: &str) -> bool {
        self.values(source, flag).any(|value| asked(Some(value)).is_some())
    }

    fn values<'b, 'n>(
        &'b self,
        source: RequestSource,
        flag: &'n str,
    ) -> impl Iterator<Item = &'b str> + use<'a, 'b, 'n> {
        let is = |wanted| source == wanted;
        let annotations = is(RequestSource::Annotations).then(|| self.annotations.of(flag));
        let environment = is(RequestSource::Environment).then(|| self.environment.of(flag));
        annotations.into_iter().flatten().chain(environment.into_iter().flatten())
    }
}

/// The entries as the container has them: `NAME=value`, or only `NAME`.
#[derive(Debug, Default)]
pub struct Environment<'a>(Vec<Cow<'a, str>>);

impl<'a> Environment<'a> {
    /// The value of a variable; empty where there is only `NAME`. The last entry counts,
    /// as it does for the runtimes.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.of(name).next()
    }

    /// Every value, the last first.
    pub fn of<'b, 'n>(&'b self, name: &'n str) -> impl Iterator<Item = &'b str> + use<'a, 'b, 'n> {
        self.0.iter().rev().filter_map(move |entry| {
            let rest = entry.strip_prefix(name)?;
            if rest.is_empty() {
                Some(rest)
            } else {
                rest.strip_prefix('=')
            }
        })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| variable_name(entry))
    }

    pub fn push(&mut self, entry: Cow<'a, str>) {
        self.0.push(entry);
    }

    /// Removes every entry of a variable. True: there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| variable_name(entry) != name);
        self.0.len() < before
    }

    /// Every variable with its value, each once.
    pub fn variables(&self) -> Vec<(&str, &str)> {
        let mut found: Vec<(&str, &str)> = Vec::new();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for entry in self.0.iter().rev() {
            let name = variable_name(entry);
            if known.insert(name) {
                let value = entry.get(name.len() + 1..).unwrap_or_default();
                found.push((name, value));
            }
        }
        found.reverse();
        found
    }

    pub fn bare_of(&self, name: &str) -> bool {
        self.0.iter().any(|entry| entry == name)
    }

    /// An entry without a `=`, if there is one.
    pub fn bare(&self) -> Option<&str> {
        let mut entries = self.0.iter();
        entries.find(|entry| !entry.contains('=')).map(|entry| &**entry)
    }
}

impl<'a, T: Into<Cow<'a, str>>> FromIterator<T> for Environment<'a> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Self(entries.into_iter().map(Into::into).collect())
    }
}

/// Flags with their values, from annotations of [`ANNOTATION_PREFIX`].
#[derive(Debug, Default)]
pub struct Annotations<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Annotations<'a> {
    fn of<'b, 'n>(&'b self, flag: &'n str) -> impl Iterator<Item = &'b str> + use<'a, 'b, 'n> {
        let named = self.0.iter().rev().filter(move |(name, _)| name == flag);
        named.map(|(_, value)| &**value)
    }

    /// Adds an annotation if its key has the prefix.
    pub fn push(&mut self, key: &str, value: Cow<'a, str>) {
        if let Some(flag) = key.strip_prefix(ANNOTATION_PREFIX) {
            self.0.push((Cow::Owned(flag.to_owned()), value));
        }
    }

    pub fn asking(&self) -> impl Iterator<Item = &str> {
        let asks = |value| asked(Some(value)).is_some();
        self.0.iter().filter(move |(_, value)| asks(value)).map(|(flag, _)| &**flag)
    }
}

/// The features that the value of a flag requests. `None`: nothing.
/// `docs/reference/oci-decorator.md` has the same table.
pub fn asked(value: Option<&str>) -> Option<Features> {
    match value?.trim() {
        "none" | "void" => None,
        "" => Some(Features::Usual),
        "all" => Some(Features::All),
        list => {
            let words = list.split(',').map(|word| word.trim().to_owned()).collect();
            Some(Features::These { words, by_name: true })
        }
    }
}

pub fn by_word<T: Copy>(words: &[(&str, T)], word: &str) -> Option<T> {
    words.iter().find(|(known, _)| *known == word).map(|(_, what)| *what)
}

/// Another program's interface that a vendor file can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    Nvidia,
    Amd,
}

impl Interface {
    pub const WORDS: [(&'static str, Self); 2] = [("nvidia", Self::Nvidia), ("amd", Self::Amd)];

    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize].0
    }

    /// The first part of the vendor's CDI kinds.
    pub fn domain(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia.com",
            Self::Amd => "amd.com",
        }
    }

    /// Errors: the word is unknown.
    pub fn from_word(word: &str) -> Result<Self, String> {
        by_word(&Self::WORDS, word).ok_or_else(|| {
            let known = Self::WORDS.map(|(word, _)| word).join(", ");
            format!("unknown interface {word:?}; known are {known}")
        })
    }
}

/// A variable, mount or annotation that requests devices, before and after it is judged.
// Each is a setting of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Whose devices. `None`: those of the vendor file with the flag `by`.
    pub interface: Option<Interface>,
    /// The sources, all of which the policy has to allow. A flag's is judged with its value.
    pub sources: Vec<RequestSource>,
    pub by: String,
    pub devices: DeviceList,
    pub features: Features,
    pub backend: Backend,
    pub requirements: Vec<Requirement>,
    /// More than devices, each with a source of its own.
    pub extras: Vec<Extra>,
    /// The container's process joins the groups that own the nodes.
    pub groups: bool,
    /// Newer user-space libraries of the driver in the image come before the host's.
    pub compat: bool,
    /// Every list of host files, not only the base lists (`Backend::Csv`).
    pub every_list: bool,
    /// Allowed where only a scheduler gives devices: the scheduler's own request, and names of CDI
    /// devices that it does not give.
    pub is_beside_scheduler: bool,
    /// Ignored in unprivileged containers: NVIDIA's own rule, beside the policy's.
    pub needs_privilege: bool,
    /// What is wrong with it. It refuses the start only if the policy allows the request.
    pub problem: Option<Error>,
}

impl DeviceRequest {
    pub fn is_schedulers(&self) -> bool {
        self.sources.contains(&RequestSource::Scheduler)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeviceList {
    Nothing,
    #[default]
    All,
    /// Control nodes only.
    None,
    /// The devices with these names, of any kind, each once.
    These(Vec<String>),
}

impl DeviceList {
    /// Reads lists. `void` in any position means nothing. Otherwise the first `all` or `none`
    /// stands for the whole. A name that is given twice is one device; NVIDIA's hook makes an empty
    /// name of it.
    pub fn of<'w>(lists: impl IntoIterator<Item = &'w str>) -> Self {
        let mut names = Vec::new();
        let mut special = None;
        for word in lists.into_iter().flat_map(|list| list.split(',')) {
            match word.trim() {
                "void" => return Self::Nothing,
                "all" => _ = special.get_or_insert(Self::All),
                "none" => _ = special.get_or_insert(Self::None),
                name => names.push(name),
            }
        }
        special.unwrap_or_else(|| Self::of_names(names))
    }

    /// Reads names, each once, without empty ones. No word is special.
    pub fn of_names<'w>(words: impl IntoIterator<Item = &'w str>) -> Self {
        // Ordered and not hashed, because a container's author could choose names that collide.
        let mut known = BTreeSet::new();
        let mut names = Vec::new();
        for word in words.into_iter().map(str::trim) {
            if !word.is_empty() && known.insert(word) {
                names.push(word.to_owned());
            }
        }
        if names.is_empty() {
            Self::Nothing
        } else {
            Self::These(names)
        }
    }

    pub fn names(&self) -> &[String] {
        match self {
            Self::These(names) => names,
            _ => &[],
        }
    }
}

/// What the devices are looked up in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    #[default]
    VendorFile,
    /// Lists of host files, as NVIDIA's Jetson boards have them.
    Csv,
    Cdi,
}

/// Which features of the vendor file are requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Features {
    /// Its `driver_feature`.
    #[default]
    Usual,
    All,
    /// These, in the interface's own words. If the container names them one by one, a missing one is
    /// reported.
    These {
        words: Vec<String>,
        by_name: bool,
    },
}

/// A request for more than devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    pub source: RequestSource,
    pub by: String,
    pub kind: ExtraKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraKind {
    /// Errors: a word is not a channel.
    Channels(Result<Channels>),
    /// A right over every GPU's partitions, by the driver's word for it, with the variable's value.
    MigRight(&'static str, String),
    /// The nodes of another driver, whose variable requests them.
    Gated,
}

/// IMEX channels, through which GPUs of several hosts share memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channels {
    All,
    These(Vec<u32>),
}

/// Rights over the MIG partitions of all GPUs: the variables, and the driver's words for the rights.
pub const MIG_RIGHTS: [(&str, &str); 2] =
    [("NVIDIA_MIG_CONFIG_DEVICES", "config"), ("NVIDIA_MIG_MONITOR_DEVICES", "monitor")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Cuda,
    Driver,
    Arch,
    Brand,
}

impl Subject {
    pub const WORDS: [(&'static str, Self); 4] = [
        ("cuda", Self::Cuda),
        ("driver", Self::Driver),
        ("arch", Self::Arch),
        ("brand", Self::Brand),
    ];

    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize].0
    }
}

/// Whether a value in this order to the condition's meets the condition.
type Comparison = fn(Ordering) -> bool;

const COMPARISONS: [(&str, Comparison); 6] = [
    ("=", Ordering::is_eq),
    ("!=", Ordering::is_ne),
    ("<", Ordering::is_lt),
    ("<=", Ordering::is_le),
    (">", Ordering::is_gt),
    (">=", Ordering::is_ge),
];
const SIGNS: [char; 4] = ['<', '>', '=', '!'];

/// What one variable requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The variable, with its value where the requirement follows from that value.
    pub by: String,
    pub text: String,
}

/// What a host knows about itself and about one of its devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known<'a> {
    pub cuda: Option<&'a str>,
    pub driver: Option<&'a str>,
    pub arch: Option<&'a str>,
    pub brand: Option<&'a str>,
}

impl<'a> Known<'a> {
    pub fn of(&self, subject: Subject) -> Option<&'a str> {
        match subject {
            Subject::Cuda => self.cuda,
            Subject::Driver => self.driver,
            Subject::Arch => self.arch,
            Subject::Brand => self.brand,
        }
    }
}

/// "cuda 12.2, driver 535.261.03", for messages.
impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Subject::WORDS.into_iter();
        let known: Vec<String> = known
            .filter_map(|(word, subject)| Some(format!("{word} {}", self.of(subject)?)))
            .collect();
        f.write_str(&known.join(", "))
    }
}

/// The result of a requirement on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Met,
    /// Met as far as the host can tell: it knows nothing about these.
    MetUnlessKnown(Vec<Subject>),
    Unmet,
    /// This part is not a condition.
    Invalid(String),
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = brief(&self.text);
        if self.by.contains('=') {
            write!(f, "{} requires {text}", brief(&self.by))
        } else {
            write!(f, "the image requires {}={text}", self.by)
        }
    }
}

impl Requirement {
    pub fn check(&self, known: &Known) -> Outcome {
        let mut unknown = Vec::new();
        let mut is_unmet = false;
        for alternative in self.text.split(' ').filter(|part| !part.is_empty()) {
            unknown.clear();
            match all_met(alternative, known, &mut unknown) {
                Err(part) => return Outcome::Invalid(part),
                Ok(true) if unknown.is_empty() => return Outcome::Met,
                Ok(true) => return Outcome::MetUnlessKnown(unknown),
                Ok(false) => is_unmet = true,
            }
        }
        if is_unmet {
            Outcome::Unmet
        } else {
            Outcome::Met
        }
    }

    pub fn is_about(&self, subject: Subject) -> bool {
        let mut parts = self.text.split([' ', ',']);
        parts.any(|part| parse(part).is_some_and(|condition| condition.subject == subject))
    }
}

/// Errors: the first part that is not a condition.
fn all_met(alternative: &str, known: &Known, unknown: &mut Vec<Subject>) -> Result<bool, String> {
    for part in alternative.split(',').filter(|part| !part.is_empty()) {
        let condition = parse(part).ok_or(part)?;
        match known.of(condition.subject) {
            None => unknown.push(condition.subject),
            Some(value) => match condition.holds(value) {
                Some(true) => {}
                Some(false) => return Ok(false),
                // The host's own value can't be compared.
                None => unknown.push(condition.subject),
            },
        }
    }
    Ok(true)
}

struct Condition<'a> {
    subject: Subject,
    comparison: Comparison,
    value: &'a str,
}

/// `None`: the text is not a condition.
fn parse(text: &str) -> Option<Condition<'_>> {
    let (name, rest) = text.split_at(text.find(SIGNS)?);
    let value = rest.trim_start_matches(SIGNS);
    let sign = &rest[..rest.len() - value.len()];
    let mut subjects = Subject::WORDS.into_iter();
    let (_, subject) = subjects.find(|(word, _)| word.eq_ignore_ascii_case(name))?;
    let (_, comparison) = COMPARISONS.into_iter().find(|(text, _)| *text == sign)?;
    let comparable = match subject {
        Subject::Brand => matches!(sign, "=" | "!="),
        _ => is_version(value),
    };
    (comparable && !value.is_empty()).then_some(Condition { subject, comparison, value })
}

impl Condition<'_> {
    fn holds(&self, value: &str) -> Option<bool> {
        let order = if self.subject == Subject::Brand {
            value.to_ascii_lowercase().cmp(&self.value.to_ascii_lowercase())
        } else if is_version(value) {
            compare(value, self.value)
        } else {
            return None;
        };
        Some((self.comparison)(order))
    }
}

/// Digits and dots, a digit first.
pub fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Compares versions number by number. A missing number counts as 0.
fn compare(one: &str, other: &str) -> Ordering {
    // Numbers may have any length, so they are compared as text without leading zeros.
    let numbers = |text: &str| -> Vec<String> {
        let parts = text.split('.').filter(|part| !part.is_empty());
        parts.map(|part| part.trim_start_matches('0').to_owned()).collect()
    };
    let (one, other) = (numbers(one), numbers(other));
    let none = String::new();
    for at in 0..one.len().max(other.len()) {
        let (a, b) = (one.get(at).unwrap_or(&none), other.get(at).unwrap_or(&none));
        let order = a.len().cmp(&b.len()).then_with(|| a.cmp(b));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}
