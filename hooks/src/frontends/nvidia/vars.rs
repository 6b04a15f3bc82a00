//! The variables of NVIDIA's interface, and what some of them mean.

use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::request::{Environment, Features, Requirement};

/// The variable for devices.
pub const DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The variable for features.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Images that are older than these variables have only this one.
pub const CUDA_VERSION: &str = "CUDA_VERSION";
pub const IMEX_CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";
/// The variable with which Slurm and others give NVIDIA's devices to a job.
pub const CUDA: &str = "CUDA_VISIBLE_DEVICES";
/// Mounts below this folder request the devices that they are named after.
pub const MOUNTS: &str = "/var/run/nvidia-container-devices";

/// The capabilities of images that name none.
const DEFAULT: [&str; 2] = ["compute", "utility"];
const REQUIRE: &str = "NVIDIA_REQUIRE_";
const REQUIRE_CUDA: &str = "NVIDIA_REQUIRE_CUDA";
/// Not a requirement: it selects the file lists of a board.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";
const EVERY_LIST: &str = "csv-mounts=all";
const DISABLE: &str = "NVIDIA_DISABLE_REQUIRE";
/// The values that Go's `strconv.ParseBool` takes for true.
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];

/// True for an image that is older than the variable for devices.
pub fn is_legacy(environment: &Environment) -> bool {
    environment.get(CUDA_VERSION).is_some_and(|version| !version.is_empty())
        && environment.get(REQUIRE_CUDA).unwrap_or_default().is_empty()
}

/// True if an image asks for every file list of a board.
pub fn wants_every_list(environment: &Environment) -> bool {
    environment.get(JETPACK) == Some(EVERY_LIST)
}

/// The features of the capabilities. A legacy image expects every supported one.
/// Errors: a capability that the configuration does not support.
pub fn capabilities(environment: &Environment, supported: &[String]) -> Result<Features> {
    let contains = |list: &[String], word: &str| list.iter().any(|known| known == word);
    let value = environment.get(CAPABILITIES).unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if !contains(&found, word) {
            found.push(word.to_owned());
        }
    }
    let is_all = contains(&found, "all") || found.is_empty() && is_legacy(environment);
    let (words, by_name) = if is_all {
        (supported.to_vec(), false)
    } else if found.is_empty() {
        let defaults = DEFAULT.into_iter().filter(|word| contains(supported, word));
        (defaults.map(str::to_owned).collect(), false)
    } else if let Some(unknown) = found.iter().find(|word| !contains(supported, word)) {
        return Err(unsupported(value, unknown, supported));
    } else {
        (found, true)
    };
    Ok(Features::These { words, by_name })
}

fn unsupported(value: &str, unknown: &str, supported: &[String]) -> Error {
    Error::usage(format!(
        "{CAPABILITIES}={} asks for {:?}, which is not supported",
        brief(value),
        brief(unknown)
    ))
    .resolve(format!(
        "name some of {}, or \"all\"; `supported-driver-capabilities` of NVIDIA's config.toml limits them",
        supported.join(", ")
    ))
}

/// The requirements of an image, all of which must be met. Errors: `CUDA_VERSION` is not a version.
pub fn requirements(environment: &Environment) -> Result<Vec<Requirement>> {
    if environment.get(DISABLE).is_some_and(|word| TRUE.contains(&word)) {
        return Ok(Vec::new());
    }
    let variables = environment.variables().into_iter();
    let mut found: Vec<Requirement> = variables
        .filter(|(name, _)| name.starts_with(REQUIRE) && !name.starts_with(JETPACK))
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
