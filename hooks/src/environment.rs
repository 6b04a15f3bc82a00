//! The environment that a container asks for, as its spec lists it.

use std::borrow::Cow;

/// Entries as they stand: `NAME=value`, or `NAME` alone.
#[derive(Debug, Default)]
pub struct Environment<'a>(Vec<Cow<'a, str>>);

impl<'a> Environment<'a> {
    pub fn new(entries: Vec<Cow<'a, str>>) -> Self {
        Self(entries)
    }

    /// The value of a variable; empty for `NAME` alone. The last entry counts,
    /// as it does for the runtimes.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find_map(|entry| {
            let rest = entry.strip_prefix(name)?;
            if rest.is_empty() {
                Some(rest)
            } else {
                rest.strip_prefix('=')
            }
        })
    }
}

impl<'a, T: Into<Cow<'a, str>>> FromIterator<T> for Environment<'a> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Self(entries.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_match_exactly_and_the_last_entry_counts() {
        let env: Environment = [
            "NOT_OCI_X=1",
            "FOO=OCI_X",
            "OCI_XY=2",
            "OCI_X=a",
            "=",
            "",
            "OCI_X=b=c",
            "BARE",
        ]
        .into_iter()
        .collect();
        assert_eq!(env.get("OCI_X"), Some("b=c"));
        assert_eq!(env.get("BARE"), Some(""));
        assert_eq!(env.get("OCI"), None);
    }

    proptest! {
        #[test]
        fn any_entries_are_looked_up_like_a_map(
            entries in prop::collection::vec(("[A-C]{1,2}", "(?s).{0,4}"), 0..20)
        ) {
            let env: Environment = entries.iter().map(|(k, v)| format!("{k}={v}")).collect();
            for name in ["A", "B", "AA", "AB", "D"] {
                let expected = entries.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
                prop_assert_eq!(env.get(name), expected);
            }
        }
    }
}
