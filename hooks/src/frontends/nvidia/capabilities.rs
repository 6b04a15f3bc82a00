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
    let mut words = value
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let mut found: Vec<String> = Vec::new();
    let mut is_all = false;
    if let Some(unknown) = words
        .clone()
        .find(|word| *word != "all" && !contains(supported, word))
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: Option<&str>, supported: &[&str], is_legacy: bool) -> Result<String> {
        let environment = value
            .map(|value| format!("{CAPABILITIES}={value}"))
            .into_iter();
        let supported: Vec<String> = supported.iter().map(|&word| word.to_owned()).collect();
        capabilities(&environment.collect(), &supported, is_legacy)
            .map(|(words, by_name)| format!("{} {by_name}", words.join(",")))
    }

    #[test]
    fn words() {
        let every = [
            "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
        ];
        let all = "compat32,compute,display,graphics,ngx,utility,video false";
        for (value, is_legacy, expected) in [
            (None, false, "compute,utility false"),
            (Some(""), false, "compute,utility false"),
            (Some(" , "), false, "compute,utility false"),
            (None, true, all),
            (Some(""), true, all),
            (Some("all"), false, all),
            (Some("compute,all"), false, all),
            (Some("video, compute ,video"), false, "video,compute true"),
            (Some("utility"), true, "utility true"),
            (
                Some("ngx,compat32,graphics,display"),
                false,
                "ngx,compat32,graphics,display true",
            ),
        ] {
            assert_eq!(
                found(value, &every, is_legacy).unwrap(),
                expected,
                "{value:?}"
            );
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let error = found(Some("compute,fly"), &["compute", "utility"], false).unwrap_err();
        let expected = "NVIDIA_DRIVER_CAPABILITIES=compute,fly asks for \"fly\", which is not supported: name some of compute, utility, or \"all\"";
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(found(Some("all,video"), &["compute"], false).is_err());
        assert_eq!(
            found(Some("all"), &["compute"], false).unwrap(),
            "compute false"
        );
        assert_eq!(found(None, &["utility"], false).unwrap(), "utility false");
    }
}
