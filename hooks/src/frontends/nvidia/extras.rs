//! Requests for more than GPUs: IMEX channels between hosts, rights over MIG partitions, and nodes of
//! other drivers.

use std::collections::BTreeSet;

use super::devices::below;
use super::vars::{IMEX_CHANNELS, MOUNTS};
use crate::config::nvidia::NvidiaConfig;
use crate::error::{Error, Result};
use crate::host::gated_devices::GATED;
use crate::log::brief;
use crate::model::request::{
    Channels, ContainerRequest, Extra, ExtraKind, MigRight, RequestSource,
};

/// The requests of a container; channels by mounts come before those by the variable.
pub fn of(container: &ContainerRequest, config: &NvidiaConfig) -> Vec<Extra> {
    let mut found = Vec::new();
    let environment = &container.environment;
    let mut add = |source, by: String, kind| found.push(Extra { source, by, kind });
    if !config.ignore_imex {
        let mounts = if config.volume_mounts { below(container) } else { Vec::new() };
        let mounts = mounts.iter().filter_map(|name| name.strip_prefix("imex/"));
        let mounts: Vec<&str> = mounts.filter(|word| !word.is_empty()).collect();
        if let Some(first) = mounts.first() {
            let by = format!("the mount {MOUNTS}/imex/{}", brief(first));
            let channels = channels(&mounts, &by);
            add(RequestSource::Mounts, by, ExtraKind::Channels(channels));
        }
        let words = environment.get(IMEX_CHANNELS).unwrap_or_default().split(',').map(str::trim);
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        if !words.is_empty() {
            let channels = channels(&words, IMEX_CHANNELS);
            add(
                RequestSource::Environment,
                IMEX_CHANNELS.to_owned(),
                ExtraKind::Channels(channels),
            );
        }
    }
    for right in [MigRight::Config, MigRight::Monitor] {
        let value = environment.get(right.variable()).unwrap_or_default();
        if !value.trim().is_empty() {
            let kind = ExtraKind::MigRight(right, value.to_owned());
            add(RequestSource::Environment, right.variable().to_owned(), kind);
        }
    }
    for variable in GATED.iter().filter_map(|it| it.variable) {
        if environment.get(variable) == Some("enabled") {
            add(RequestSource::Environment, variable.to_owned(), ExtraKind::Gated);
        }
    }
    found
}

fn channels(words: &[&str], by: &str) -> Result<Channels> {
    if words == ["all"] {
        return Ok(Channels::All);
    }
    let mut known = BTreeSet::new();
    let mut numbers = Vec::new();
    for word in words {
        let digits = word.strip_prefix("channel").unwrap_or(word);
        let is_number = digits.bytes().all(|b| b.is_ascii_digit());
        let number: Option<u32> = is_number.then(|| digits.parse().ok()).flatten();
        let number = number.ok_or_else(|| {
            Error::usage(format!(
                "{by} asks for the IMEX channel {:?}, which is not a number",
                brief(word)
            ))
            .resolve("name channels by their numbers, like 0,1, or \"all\"")
        })?;
        if known.insert(number) {
            numbers.push(number);
        }
    }
    Ok(Channels::These(numbers))
}
