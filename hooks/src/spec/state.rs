//! The state that a runtime writes to a hook's standard input.
//! <https://github.com/opencontainers/runtime-spec/blob/v1.2.0/runtime.md#state>

use std::path::PathBuf;

use rustix::process::Pid;
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::spec::json::{lossy_text, Json, RawObject};

/// The parts of a state that matter to this program.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub id: String,
    pub bundle: PathBuf,
    /// An error is one only for a container that asks for something.
    pub pid: Result<Pid>,
}

/// The bundle that a state names. Its other members are ignored: at the stage
/// createContainer, runtimes write 0 or 1 for the process.
/// Errors: not a state, or one without a bundle.
pub fn bundle(text: &str) -> Result<PathBuf> {
    bundle_of(&members(text)?)
}

fn members(text: &str) -> Result<RawObject<'_>> {
    serde_json::from_str(text).map_err(|e| invalid(&format!("it is not valid JSON: {e}")))
}

fn bundle_of(members: &RawObject) -> Result<PathBuf> {
    // Runtimes wrote "bundlePath" before version 1.0.0 of the specification.
    let bundle = members.get("bundle").or_else(|| members.get("bundlePath"));
    let bundle = bundle
        .and_then(lossy_text)
        .filter(|path| path.starts_with('/') && !path.contains('\0'))
        .ok_or_else(|| invalid("\"bundle\" is not an absolute path"))?;
    Ok(bundle.into_owned().into())
}

impl State {
    /// Errors: not a state, or one without a bundle.
    pub fn parse(text: &str) -> Result<Self> {
        let members = members(text)?;
        let bundle = bundle_of(&members)?;
        let id = members.get("id").and_then(lossy_text).unwrap_or_default();
        Ok(Self { id: id.into_owned(), bundle, pid: pid(members.get("pid")) })
    }
}

fn pid(value: Option<&RawValue>) -> Result<Pid> {
    let Some(value) = value else {
        return Err(invalid("it has no \"pid\": the container has no process yet"));
    };
    let number = match serde_json::from_str(value.get()) {
        Ok(Json::Number(number)) => number,
        Ok(other) => {
            let kind = other.kind();
            let problem = format!("\"pid\": expected a number, found {kind}");
            return Err(invalid(&problem));
        }
        Err(error) => return Err(invalid(&format!("\"pid\": {error}"))),
    };
    // A hook within the container sees 1, which is the init process on the host.
    let valid = number.fract() == 0.0 && number > 1.0 && number <= f64::from(i32::MAX);
    #[allow(clippy::cast_possible_truncation)] // It was just compared.
    let whole = if valid { number as i32 } else { 0 };
    Pid::from_raw(whole)
        .ok_or_else(|| invalid(&format!("\"pid\": {number} is not the container's process")))
}

fn invalid(problem: &str) -> Error {
    Error::failed(format!("the state on standard input can't be used: {problem}"))
}
