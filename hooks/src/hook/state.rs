//! The state that a runtime writes to a hook's standard input.
//! <https://github.com/opencontainers/runtime-spec/blob/v1.2.0/runtime.md#state>

use std::path::PathBuf;

use rustix::process::Pid;

use crate::error::{Error, Result};
use crate::json::Json;

/// What of a state matters to us.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub id: String,
    pub pid: Pid,
    pub bundle: PathBuf,
}

impl State {
    /// Errors: not a state, or one without a bundle or a process.
    pub fn parse(text: &str) -> Result<Self> {
        let value: Json = serde_json::from_str(text)
            .map_err(|e| invalid(&format!("it is not valid JSON: {e}")))?;
        let Json::Object(members) = value else {
            return Err(invalid(&format!(
                "expected an object, found {}",
                value.kind()
            )));
        };
        // A reader that took another of two would see another state.
        let get = |key: &str| {
            let mut found = members.iter().filter(|(name, _)| name == key);
            match (found.next(), found.next()) {
                (_, Some(_)) => Err(invalid(&format!("{key:?} is given twice"))),
                (first, None) => Ok(first.map(|(_, value)| value)),
            }
        };
        // "bundlePath" is what runtimes wrote before version 1.0.0 of the specification.
        let bundle = match get("bundle")? {
            Some(bundle) => Some(bundle),
            None => get("bundlePath")?,
        };
        let bundle = bundle
            .and_then(Json::text)
            .filter(|path| path.starts_with('/') && !path.contains('\0'))
            .ok_or_else(|| invalid("\"bundle\" is no absolute path"))?;
        let id = get("id")?.and_then(Json::text).unwrap_or_default();
        Ok(Self {
            id: id.to_owned(),
            pid: pid(get("pid")?)?,
            bundle: bundle.into(),
        })
    }
}

fn pid(value: Option<&Json>) -> Result<Pid> {
    let number = match value {
        None => {
            return Err(invalid(
                "it has no \"pid\": the container has no process yet",
            ))
        }
        Some(Json::Number(number)) => *number,
        Some(other) => {
            let kind = other.kind();
            return Err(invalid(&format!(
                "\"pid\": expected a number, found {kind}"
            )));
        }
    };
    // 1 is what a hook within the container sees, or the host's init.
    let valid = number.fract() == 0.0 && number > 1.0 && number <= f64::from(i32::MAX);
    #[allow(clippy::cast_possible_truncation)] // It was just compared.
    let whole = if valid { number as i32 } else { 0 };
    Pid::from_raw(whole)
        .ok_or_else(|| invalid(&format!("\"pid\": {number} is not the container's process")))
}

fn invalid(problem: &str) -> Error {
    Error::failed(format!(
        "the state on standard input can't be used: {problem}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_names_of_the_bundle() {
        for key in ["bundle", "bundlePath"] {
            let text = format!(r#"{{"ociVersion":"1.0","id":"c","pid":42,"{key}":"/b","x":[]}}"#);
            let state = State::parse(&text).unwrap();
            assert_eq!((state.id.as_str(), state.pid.as_raw_pid()), ("c", 42));
            assert_eq!(state.bundle, PathBuf::from("/b"));
        }
    }

    #[test]
    fn what_is_no_state_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "not valid JSON"),
            ("[]", "expected an object"),
            ("{", "not valid JSON"),
            (r#"{"pid":42}"#, "\"bundle\" is no absolute path"),
            (
                r#"{"pid":42,"bundle":"b"}"#,
                "\"bundle\" is no absolute path",
            ),
            (
                r#"{"pid":42,"bundle":"/b\u0000c"}"#,
                "\"bundle\" is no absolute path",
            ),
            (r#"{"bundle":"/b"}"#, "no \"pid\""),
            (
                r#"{"bundle":"/b","pid":0}"#,
                "0 is not the container's process",
            ),
            (
                r#"{"bundle":"/b","pid":1}"#,
                "1 is not the container's process",
            ),
            (r#"{"bundle":"/b","pid":-3}"#, "-3 is not"),
            (r#"{"bundle":"/b","pid":2.5}"#, "2.5 is not"),
            (
                r#"{"bundle":"/b","pid":1e99}"#,
                "is not the container's process",
            ),
            (
                r#"{"bundle":"/b","pid":"42"}"#,
                "expected a number, found a string",
            ),
            (
                r#"{"bundle":"/b","pid":42,"pid":43}"#,
                "\"pid\" is given twice",
            ),
        ] {
            let error = State::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}\n{error}");
        }
        assert!(State::parse(&"[".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{}\":,a-z0-9/.\\\\-]{0,80}") {
            let _ = State::parse(&text);
            let _ = State::parse(&format!("{{\"bundle\":\"/b\",\"pid\":{text}}}"));
        }
    }
}
