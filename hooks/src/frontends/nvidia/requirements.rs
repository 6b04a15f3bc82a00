//! The requirements of an image: `NVIDIA_REQUIRE_*`, and `CUDA_VERSION` of older images.

use super::{CUDA_VERSION, REQUIRE_CUDA};
use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::request::{Environment, Requirement};

const PREFIX: &str = "NVIDIA_REQUIRE_";
/// Not a requirement: it selects the file lists of a board.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";
const EVERY_LIST: &str = "csv-mounts=all";
const DISABLE: &str = "NVIDIA_DISABLE_REQUIRE";
/// The values that Go's `strconv.ParseBool` takes for true.
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];

/// True for an image that is older than the variables that ask.
pub fn is_legacy(environment: &Environment) -> bool {
    environment.get(CUDA_VERSION).is_some_and(|version| !version.is_empty())
        && environment.get(REQUIRE_CUDA).unwrap_or_default().is_empty()
}

/// True if an image asks for every file list of a board.
pub fn wants_every_list(environment: &Environment) -> bool {
    environment.get(JETPACK) == Some(EVERY_LIST)
}

/// The requirements, all of which must be met. Errors: `CUDA_VERSION` is not a version.
pub fn requirements(environment: &Environment) -> Result<Vec<Requirement>> {
    if environment.get(DISABLE).is_some_and(|word| TRUE.contains(&word)) {
        return Ok(Vec::new());
    }
    let variables = environment.variables().into_iter();
    let mut found: Vec<Requirement> = variables
        .filter(|(name, _)| name.starts_with(PREFIX) && !name.starts_with(JETPACK))
        .map(|(name, value)| Requirement { by: name.to_owned(), text: value.to_owned() })
        .collect();
    if is_legacy(environment) {
        let value = environment.get(CUDA_VERSION).unwrap_or_default();
        let version = major_minor(value).ok_or_else(|| {
            Error::usage(format!("{CUDA_VERSION}={} of the image is not a version", brief(value)))
                .resolve("set NVIDIA_VISIBLE_DEVICES=void for an image that needs no GPU, or NVIDIA_DISABLE_REQUIRE=true")
        })?;
        found.push(Requirement {
            by: format!("{CUDA_VERSION}={value}"),
            text: format!("cuda>={version}"),
        });
    }
    Ok(found)
}

/// The first two numbers of a semantic version. Later numbers may be missing.
/// <https://semver.org/#spec-item-2>
fn major_minor(text: &str) -> Option<String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, _) = match text.find(['-', '+']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let is_number = |part: &&str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits && (part.len() == 1 || !part.starts_with('0'))
    };
    let parts: Vec<&str> = numbers.split('.').collect();
    // A hyphen or a plus may only follow three numbers.
    let is_whole = parts.len() == 3 || numbers.len() == text.len();
    if parts.len() > 3 || !parts.iter().all(is_number) || !is_whole {
        return None;
    }
    Some(format!("{}.{}", parts[0], parts.get(1).unwrap_or(&"0")))
}
