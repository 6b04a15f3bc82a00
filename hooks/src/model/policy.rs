//! Whether a container may have what it asks for: which sources of a request count, and which
//! vendors and features may be asked for at all. The settings have it under `[policy]`. The default
//! suits a single host, where everyone who may start a container may use its devices.

use std::fmt;

use crate::error::Error;
use crate::log::{Level, Note};
use crate::model::request::{ContainerRequest, RequestSource};
use crate::model::vendor::VendorFile;

/// The containers whose requests from one source count, from the widest to the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Who {
    #[default]
    All,
    /// Containers with `CAP_SYS_ADMIN` in their bounding set, which could take the devices
    /// without asking. NVIDIA's hook uses the same rule.
    Privileged,
    None,
}

/// Who may have written the annotations of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Writer {
    /// The image or the user: some engines copy an image's labels or annotations. Annotations then
    /// count only where the environment does, and the environment overrides them.
    #[default]
    Image,
    /// Only the user. Annotations then override the environment, which an image may have set.
    User,
}

/// What happens to a container that asks for something that it may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnRefusal {
    /// It starts without it, and the log has a notice.
    #[default]
    Ignore,
    Fail,
}

/// What a container may ask of a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    All,
    Features(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    pub annotations: Who,
    pub annotations_from: Writer,
    pub environment: Who,
    /// Mounts that stand for devices.
    pub mounts: Who,
    pub cdi: Who,
    pub on_refusal: OnRefusal,
    /// Vendors by the names of their files, without `.json`. `None`: every vendor.
    pub allow: Option<Vec<(String, Allowed)>>,
}

impl Who {
    pub const WORDS: [(&'static str, Self); 3] =
        [("all", Self::All), ("privileged", Self::Privileged), ("none", Self::None)];

    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize].0
    }

    fn containers(self) -> &'static str {
        match self {
            Self::All => "all containers",
            Self::Privileged => "privileged containers",
            Self::None => "no container",
        }
    }
}

impl Writer {
    pub const WORDS: [(&'static str, Self); 2] = [("image", Self::Image), ("user", Self::User)];
}

impl OnRefusal {
    pub const WORDS: [(&'static str, Self); 2] = [("ignore", Self::Ignore), ("fail", Self::Fail)];
}

impl Policy {
    pub fn who(&self, source: RequestSource) -> Who {
        match source {
            RequestSource::Annotations if self.images_may_annotate() => {
                self.annotations.max(self.environment)
            }
            RequestSource::Annotations => self.annotations,
            RequestSource::Environment => self.environment,
            RequestSource::Mounts => self.mounts,
            RequestSource::Cdi => self.cdi,
            RequestSource::Scheduler => Who::All,
        }
    }

    /// Whether requests from a source count for any container.
    pub fn may_use(&self, source: RequestSource) -> bool {
        self.who(source) != Who::None
    }

    /// True if an annotation may be the image's and must not override what a user may have set.
    pub fn images_may_annotate(&self) -> bool {
        self.annotations_from == Writer::Image
    }

    /// The sources of a flag, of which an earlier one that counts overrides the others: the one that
    /// only the user writes, else the environment, which a user can always set.
    pub(super) fn sources_of_flags(&self) -> [RequestSource; 2] {
        let mut sources = RequestSource::OF_FLAGS;
        if self.images_may_annotate() {
            sources.reverse();
        }
        sources
    }

    /// Whether the vendor may be asked for anything. Errors: why not.
    pub fn judge_vendor(&self, vendor: &str, by: &str) -> Result<(), String> {
        match self.allowed(vendor) {
            Some(_) => Ok(()),
            None => Err(format!(
                "{by} asks for the vendor {vendor:?}, and \"policy.allow\" has no such vendor"
            )),
        }
    }

    /// Whether the vendor may be asked for whole devices. These are not given by features, so a
    /// list of features cannot limit them. Errors: why not.
    pub fn judge_whole(&self, vendor: &str, by: &str) -> Result<(), String> {
        self.judge_vendor(vendor, by)?;
        match self.allowed(vendor) {
            Some(Allowed::Features(_)) => Err(format!(
                "{by} asks for whole devices of the vendor {vendor:?}, and \"policy.allow\" has only features of it"
            )),
            _ => Ok(()),
        }
    }

    /// The flag, variable or annotation that may request something in any reading of the config.
    /// `None`: the container starts, whatever is wrong with its config or the settings.
    pub fn possible_trigger<'a>(
        &self,
        files: &'a [VendorFile],
        request: &'a ContainerRequest,
    ) -> Option<&'a str> {
        let flag = |file: &'a VendorFile| {
            let mut flags = file.flags().iter();
            flags.find(|flag| self.may_count(request, &file.name, flag))
        };
        let trigger = request.possible_trigger.as_ref();
        trigger.or_else(|| files.iter().find_map(flag)).map(String::as_str)
    }

    /// Whether this flag may ask for something that counts, in any reading of the request and for
    /// any kind of container.
    fn may_count(&self, request: &ContainerRequest, vendor: &str, flag: &str) -> bool {
        self.allowed(vendor).is_some()
            && RequestSource::OF_FLAGS
                .into_iter()
                .any(|source| self.may_use(source) && request.requests_by(source, flag))
    }

    pub fn allows(&self, vendor: &str, feature: &str) -> bool {
        match self.allowed(vendor) {
            None => false,
            Some(Allowed::All) => true,
            Some(Allowed::Features(features)) => features.iter().any(|name| name == feature),
        }
    }

    fn allowed(&self, vendor: &str) -> Option<&Allowed> {
        let Some(allow) = &self.allow else {
            return Some(&Allowed::All);
        };
        let mut entries = allow.iter();
        entries.find(|(name, _)| name == vendor).map(|(_, what)| what)
    }

    pub(super) fn counts(&self, source: RequestSource, privileged: bool) -> bool {
        match self.who(source) {
            Who::All => true,
            Who::Privileged => privileged,
            Who::None => false,
        }
    }

    pub(super) fn not_counted(&self, source: RequestSource, flag: &str) -> String {
        let word = source.word();
        let who = self.who(source).word();
        let key = match source {
            RequestSource::Annotations if self.who(source) != self.annotations => {
                "annotations-from\" is \"image\" and \"policy.environment"
            }
            _ => word,
        };
        format!("{flag} of the container's {word} does not count: \"policy.{key}\" is {who:?}")
    }
}

/// Why a container's own request does not count where a scheduler gives the devices.
pub fn not_scheduled(by: &str) -> String {
    format!("{by} of the container does not count: with \"scheduler\" in config.toml, only the host's scheduler gives these devices")
}

/// Handles a request that does not count. Errors: the policy refuses the start.
pub fn refuse(
    policy: &Policy,
    file: Option<&VendorFile>,
    reason: String,
) -> crate::error::Result<Note> {
    if policy.on_refusal == OnRefusal::Fail {
        return Err(Error::failed(reason)
            .resolve("ask in a way that counts, or change [policy] in config.toml"));
    }
    let note = Note::new(Level::Notice, format!("{reason}; the container starts without"));
    Ok(match file {
        Some(file) => note.vendor(&file.name),
        None => note,
    })
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The other sources are shown only if they are limited.
        let others = [RequestSource::Mounts, RequestSource::Cdi].into_iter();
        let others = others.filter(|source| self.who(*source) != Who::All);
        for source in RequestSource::OF_FLAGS.into_iter().chain(others) {
            write!(f, "{} of {}, ", source.word(), self.who(source).containers())?;
        }
        match &self.allow {
            None => f.write_str("every vendor")?,
            Some(vendors) if vendors.is_empty() => f.write_str("no vendor")?,
            Some(vendors) => {
                let names: Vec<String> = vendors.iter().map(shown).collect();
                write!(f, "the vendors {}", names.join(", "))?;
            }
        }
        f.write_str(match self.on_refusal {
            OnRefusal::Ignore => "; anything else is ignored",
            OnRefusal::Fail => "; anything else refuses the start",
        })
    }
}

fn shown((vendor, allowed): &(String, Allowed)) -> String {
    match allowed {
        Allowed::All => vendor.clone(),
        Allowed::Features(features) => format!("{vendor} ({})", features.join(", ")),
    }
}

#[cfg(test)]
mod tests;
