//! Splices: replacements in the text of a spec.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::list;
use crate::error::Result;
use crate::spec::json::{quote, RawObject};

/// A new text for a part of the old text.
pub struct Splice<'a> {
    pub old: &'a str,
    pub new: String,
}

/// Members to set in an object, old or new.
pub(super) struct Additions<'a> {
    object: &'a str,
    empty: bool,
    nulls: Vec<(Cow<'a, str>, &'a str)>,
    new: Vec<String>,
    replaced: Vec<Splice<'a>>,
}

impl<'a> Additions<'a> {
    pub fn new(object: &'a str, members: &RawObject<'a>) -> Self {
        let nulls = members.0.iter().filter(|(_, v)| v.get() == "null");
        Self {
            object,
            empty: members.0.is_empty(),
            nulls: nulls.map(|(k, v)| (k.clone(), v.get())).collect(),
            new: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Adds a member, or replaces its `null` (Go writes one for an empty list).
    pub fn set(&mut self, key: &str, value: &str) {
        match self.nulls.iter().find(|(name, _)| name == key) {
            Some((_, old)) => self.replaced.push(Splice { old, new: value.to_owned() }),
            None => self.new.push(format!("{}:{value}", quote(key))),
        }
    }

    pub fn splice(self) -> impl Iterator<Item = Splice<'a>> {
        let end = &self.object[self.object.len() - 1..];
        let own = (!self.new.is_empty()).then(|| Splice {
            old: end,
            new: format!("{}{}}}", if self.empty { "" } else { "," }, self.new.join(",")),
        });
        self.replaced.into_iter().chain(own)
    }
}

/// Adds items to a list of an object. The object may lack the list.
pub(super) fn extend<'a>(
    key: &str,
    present: Option<&'a RawValue>,
    items: &[String],
    object: &mut Additions<'a>,
    splices: &mut Vec<Splice<'a>>,
) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let items = items.join(",");
    match present.filter(|value| value.get() != "null") {
        None => object.set(key, &format!("[{items}]")),
        Some(value) => {
            let comma = if list(key, value)?.is_empty() { "" } else { "," };
            let old = &value.get()[value.get().len() - 1..];
            splices.push(Splice { old, new: format!("{comma}{items}]") });
        }
    }
    Ok(())
}

pub fn apply(text: &str, mut splices: Vec<Splice>) -> String {
    let start = |splice: &Splice| splice.old.as_ptr() as usize - text.as_ptr() as usize;
    splices.sort_by_key(start);
    let added: usize = splices.iter().map(|s| s.new.len()).sum();
    let mut out = String::with_capacity(text.len() + added);
    let mut done = 0;
    for splice in &splices {
        let at = start(splice);
        out.push_str(&text[done..at]);
        out.push_str(&splice.new);
        done = at + splice.old.len();
    }
    out.push_str(&text[done..]);
    out
}
