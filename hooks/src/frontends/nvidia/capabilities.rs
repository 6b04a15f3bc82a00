//! `NVIDIA_DRIVER_CAPABILITIES`: the features that a container asks for.

use super::CAPABILITIES;
use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::request::{Environment, Features};

/// The capabilities of images that name none.
const DEFAULT: [&str; 2] = ["compute", "utility"];

/// The features of the capabilities. An image that is older than the variable expects every
/// supported one. Errors: a capability that the configuration does not support.
pub fn capabilities(
    environment: &Environment,
    supported: &[String],
    is_legacy: bool,
) -> Result<Features> {
    let value = environment.get(CAPABILITIES).unwrap_or_default();
    let words = value.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut found: Vec<String> = Vec::new();
    for word in words {
        if !contains(&found, word) {
            found.push(word.to_owned());
        }
    }
    let is_all = contains(&found, "all") || found.is_empty() && is_legacy;
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

fn contains(list: &[String], word: &str) -> bool {
    list.iter().any(|known| known == word)
}
