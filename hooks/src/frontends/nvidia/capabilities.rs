//! `NVIDIA_DRIVER_CAPABILITIES`: the features that a container asks for.

use super::CAPABILITIES;
use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::request::Environment;

/// The capabilities of images that name none.
const DEFAULT: [&str; 2] = ["compute", "utility"];

/// The capabilities, and whether they were named one by one. An image that is older than the
/// variable expects all of them. Errors: a capability that the configuration does not support.
pub fn capabilities(
    environment: &Environment,
    supported: &[String],
    is_legacy: bool,
) -> Result<(Vec<String>, bool)> {
    let value = environment.get(CAPABILITIES).unwrap_or_default();
    let mut words = value.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut found: Vec<String> = Vec::new();
    let mut is_all = false;
    if let Some(unknown) = words.clone().find(|word| *word != "all" && !contains(supported, word)) {
        return Err(unsupported(value, unknown, supported));
    }
    for word in &mut words {
        is_all |= word == "all";
        if !contains(&found, word) {
            found.push(word.to_owned());
        }
    }
    if is_all || found.is_empty() && is_legacy {
        return Ok((supported.to_vec(), false));
    }
    if found.is_empty() {
        let defaults = DEFAULT.iter().filter(|word| contains(supported, word));
        return Ok((defaults.map(|&word| word.to_owned()).collect(), false));
    }
    Ok((found, true))
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

fn contains(list: &[String], word: &str) -> bool {
    list.iter().any(|known| known == word)
}
