//! Requests for more than GPUs: IMEX channels between hosts, rights over MIG partitions, and nodes of
//! related drivers.

use std::collections::BTreeSet;

use super::devices::below;
use super::MOUNTS;
use crate::config::nvidia::Config;
use crate::error::{Error, Result};
use crate::host::related::RELATED;
use crate::log::brief;
use crate::model::request::{Channels, MigRight, Request, Source};

const CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";
const RIGHTS: [MigRight; 2] = [MigRight::Config, MigRight::Monitor];

/// Says why a request from a source, by this name, does not count.
type Judge<'a> = &'a dyn Fn(Source, &str) -> std::result::Result<(), String>;

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
        let judged = (self.judge)(source, by);
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
        if !config.environment_when_unprivileged && !request.privileged {
            return Ok((Channels::None, by));
        }
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
        let digits = word.bytes().all(|b| b.is_ascii_digit());
        let number: Option<u32> = digits.then(|| word.parse().ok()).flatten();
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
        if !request.privileged {
            return Err(Error::usage(format!(
                "{name}={} is for privileged containers only: it lets a container change or watch every GPU's partitions",
                brief(value)
            ))
            .resolve("start the container with CAP_SYS_ADMIN, or without the variable"));
        }
        rights.push(right);
    }
    Ok(rights)
}

/// The variables that ask for nodes of related drivers.
pub fn related(request: &Request, config: &Config, judged: &mut Judged) -> Vec<&'static str> {
    let asks = |name: &&str| request.environment.get(name) == Some("enabled");
    let may = config.environment_when_unprivileged || request.privileged;
    let asking = RELATED.iter().filter_map(|it| it.variable);
    let asking = asking.filter(asks).filter(|_| may);
    asking
        .filter(|name| judged.counts(Source::Environment, name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::AskingMount;

    /// Reads channels while every source counts.
    fn channels(request: &Request, config: &Config) -> Result<Channels> {
        let mut refused = Vec::new();
        let mut judged = Judged::new(&|_, _| Ok(()), &mut refused);
        super::channels(request, config, &mut judged).map(|(channels, _)| channels)
    }

    fn mig_rights(request: &Request) -> Result<Vec<MigRight>> {
        let mut refused = Vec::new();
        super::mig_rights(request, &mut Judged::new(&|_, _| Ok(()), &mut refused))
    }

    fn with(entries: &[&str], mounts: &[&str], privileged: bool) -> Request<'static> {
        let mount = |name: &&str| AskingMount {
            source: "/dev/null".into(),
            destination: format!("/var/run/nvidia-container-devices/{name}").into(),
        };
        Request {
            environment: entries.iter().map(|&entry| entry.to_owned()).collect(),
            mounts: mounts.iter().map(mount).collect(),
            privileged,
            ..Request::default()
        }
    }

    #[test]
    fn channels_of_variables_and_mounts() {
        let plain = Config::default();
        let mounts = Config {
            volume_mounts: true,
            ..Config::default()
        };
        let none = Config {
            ignore_imex: true,
            ..Config::default()
        };
        let strict = Config {
            environment_when_unprivileged: false,
            ..Config::default()
        };
        let numbers = |numbers: &[u32]| Channels::These(numbers.to_vec());
        for (config, value, mounted, privileged, expected) in [
            (&plain, "0,1", &[][..], false, numbers(&[0, 1])),
            (&plain, " 1 ,,1,0", &[], false, numbers(&[1, 0])),
            (&plain, "all", &[], false, Channels::All),
            (&plain, "", &[], false, Channels::None),
            (&plain, "0", &["imex/3"], false, numbers(&[0])),
            (&mounts, "0", &["imex/3", "0"], false, numbers(&[3])),
            (&mounts, "0", &["0"], false, numbers(&[0])),
            (&none, "0", &[], true, Channels::None),
            (&strict, "0", &[], false, Channels::None),
            (&strict, "0", &[], true, numbers(&[0])),
        ] {
            let request = with(&[&format!("{CHANNELS}={value}")], mounted, privileged);
            assert_eq!(
                channels(&request, config).unwrap(),
                expected,
                "{value:?} {mounted:?}"
            );
        }
        for value in ["x", "-1", "0,all", "0x1", "99999999999"] {
            let request = with(&[&format!("{CHANNELS}={value}")], &[], false);
            let error = channels(&request, &plain).unwrap_err().to_string();
            assert!(
                error.starts_with("NVIDIA_IMEX_CHANNELS asks for the IMEX channel "),
                "{error}"
            );
        }
        assert_eq!(
            channels(&with(&[], &[], false), &plain).unwrap(),
            Channels::None
        );
    }

    #[test]
    fn rights_are_for_privileged_containers() {
        for right in RIGHTS {
            let name = right.variable();
            let entry = format!("{name}=all");
            let found = mig_rights(&with(&[&entry], &[], true)).unwrap();
            assert_eq!(found, [right]);
            let error = mig_rights(&with(&[&entry], &[], false))
                .unwrap_err()
                .to_string();
            let expected = format!("{name}=all is for privileged containers only");
            assert!(error.starts_with(&expected), "{error}");
            let quiet = format!("{name}=");
            assert_eq!(mig_rights(&with(&[&quiet], &[], false)).unwrap(), []);
        }
    }
}
