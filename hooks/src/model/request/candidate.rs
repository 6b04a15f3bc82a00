//! What may ask for devices through another program's interface, before it is judged.

use std::collections::BTreeSet;

use super::{Request, Source, Way};

/// The meaning of a list of words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Words {
    Nothing,
    All,
    /// Control nodes only.
    None,
    /// The devices with these names, each once.
    These(Vec<String>),
}

impl Words {
    /// Reads lists. `void` in any position means nothing. Otherwise the first `all` or `none`
    /// counts for the whole. A name that is given twice counts once; NVIDIA's hook makes an empty
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
        special.unwrap_or_else(|| Self::names(names))
    }

    /// Reads names, each once, without empty ones. No word is special.
    pub fn names<'w>(words: impl IntoIterator<Item = &'w str>) -> Self {
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
}

/// A variable, mount or annotation that may ask for devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The sources, all of which must count.
    pub sources: Vec<Source>,
    pub by: String,
    pub words: Words,
    /// How its devices are given.
    pub way: Way,
}

impl Candidate {
    pub fn names(&self) -> &[String] {
        match &self.words {
            Words::These(names) => names,
            _ => &[],
        }
    }

    pub fn is_schedulers(&self) -> bool {
        self.sources.contains(&Source::Scheduler)
    }

    /// Requires that CDI names count too, whatever the source of the names.
    pub fn require_cdi(&mut self) {
        if !self.is_schedulers() && !self.sources.contains(&Source::Cdi) {
            self.sources.push(Source::Cdi);
        }
    }

    /// True for one that counts although a scheduler gives the devices: the scheduler's own, and
    /// names of CDI devices that it does not give.
    pub(in crate::model) fn is_beside(&self, request: &Request) -> bool {
        let is_others = |name: &String| {
            let kind = name.split_once('=').map(|(kind, _)| kind);
            kind.is_some_and(|kind| !request.reserves(kind))
        };
        self.is_schedulers() || self.way == Way::Cdi && self.names().iter().all(is_others)
    }
}
