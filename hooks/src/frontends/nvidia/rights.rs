//! Requests for more than GPUs: IMEX channels between hosts, rights over MIG partitions, and nodes of
//! related drivers.

use std::collections::BTreeSet;

use super::devices::below;
use super::MOUNTS;
use crate::config::nvidia::Config;
use crate::error::{Error, Result};
use crate::host::related::RELATED;
use crate::log::brief;
use crate::model::policy::Judge;
use crate::model::request::{Channels, MigRight, Request, Source};

const CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";
const RIGHTS: [MigRight; 2] = [MigRight::Config, MigRight::Monitor];

/// Judges requests, and collects the reasons of those that do not count.
pub struct Judged<'a> {
    judge: Judge<'a>,
    refused: &'a mut Vec<String>,
}

impl<'a> Judged<'a> {
    pub fn new(judge: Judge<'a>, refused: &'a mut Vec<String>) -> Self {
        Self { judge, refused }
    }

    fn counts(&mut self, source: Source, by: &str) -> bool {
        let judged = self.judge.judge(&[source], by, false);
        let counts = judged.is_ok();
        self.refused.extend(judged.err());
        counts
    }
}

/// The channels, and what asks for them: the mounts if they count and name channels, else the
/// variable. Errors: a word that is not a number.
pub fn channels(
    request: &Request,
    config: &Config,
    judged: &mut Judged,
) -> Result<(Channels, String)> {
    if config.ignore_imex {
        return Ok((Channels::None, String::new()));
    }
    let mounts = below(request);
    let mut words: Vec<&str> = mounts
        .iter()
        .filter_map(|name| name.strip_prefix("imex/"))
        .filter(|word| !word.is_empty() && config.volume_mounts)
        .collect();
    let mut by = String::new();
    if let Some(first) = words.first() {
        by = format!("the mount {MOUNTS}/imex/{}", brief(first));
        if !judged.counts(Source::Mounts, &by) {
            words.clear();
        }
    }
    if words.is_empty() {
        let value = request.environment.get(CHANNELS).unwrap_or_default();
        words = value.split(',').map(str::trim).collect();
        words.retain(|word| !word.is_empty());
        CHANNELS.clone_into(&mut by);
        if words.is_empty() || !judged.counts(Source::Environment, CHANNELS) {
            return Ok((Channels::None, by));
        }
    }
    numbers(&words, &by).map(|channels| (channels, by))
}

fn numbers(words: &[&str], by: &str) -> Result<Channels> {
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

/// The rights over every GPU's partitions. Errors: the container is not privileged.
pub fn mig_rights(request: &Request, judged: &mut Judged) -> Result<Vec<MigRight>> {
    let mut rights = Vec::new();
    for right in RIGHTS {
        let name = right.variable();
        let value = request.environment.get(name).unwrap_or_default();
        if value.trim().is_empty() || !judged.counts(Source::Environment, name) {
            continue;
        }
        judged.judge.judge_right(name, value)?;
        rights.push(right);
    }
    Ok(rights)
}

/// The variables that ask for nodes of related drivers.
pub fn related(request: &Request, judged: &mut Judged) -> Vec<&'static str> {
    let asks = |name: &&str| request.environment.get(name) == Some("enabled");
    let asking = RELATED.iter().filter_map(|it| it.variable).filter(asks);
    asking.filter(|name| judged.counts(Source::Environment, name)).collect()
}
