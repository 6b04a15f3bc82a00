//! The devices that a container asks for, in variables, mounts and annotations.

use super::{requirements, DEVICES, MOUNTS};
use crate::config::nvidia::Config;
use crate::frontends::cdi::is_name;
use crate::frontends::sarus::CUDA;
use crate::log::brief;
use crate::model::edits::paths::clean;
use crate::model::request::{Candidate, Request, Source, Way, Words};

/// The candidates of a request. An earlier one overrides the later ones.
pub fn candidates(request: &Request, config: &Config) -> Vec<Candidate> {
    let mut found = Vec::new();
    if let Some((key, _)) = request.cdi.first() {
        let names = request.cdi.iter().flat_map(|(_, names)| names.split(','));
        found.push(Candidate {
            sources: vec![Source::Cdi, Source::Annotations],
            by: key.clone().into_owned(),
            words: Words::names(names),
            way: Way::VendorFile,
        });
    }
    if config.volume_mounts {
        let names = by_mounts(request);
        if let Some(first) = names.first() {
            found.push(Candidate {
                sources: vec![Source::Mounts],
                by: format!("the mount {MOUNTS}/{}", brief(first)),
                words: Words::of(names.iter().map(String::as_str)),
                way: Way::VendorFile,
            });
        }
    }
    found.extend(by_environment(request, config));
    found.extend(by_scheduler(request));
    found
}

fn by_environment(request: &Request, config: &Config) -> Option<Candidate> {
    let get = |name: &String| request.environment.get(name);
    let swarm: Vec<&String> = config.swarm_resources.iter().filter(|n| get(n).is_some()).collect();
    let (by, words) = if let Some(first) = swarm.first() {
        let values = swarm.iter().filter_map(|name| get(name));
        ((*first).clone(), Words::of(values))
    } else if request.is_scheduled {
        return None;
    } else if request.environment.bare_of(DEVICES) {
        // This is refused later.
        (DEVICES.to_owned(), Words::These(Vec::new()))
    } else if let Some(value) = request.environment.get(DEVICES) {
        (DEVICES.to_owned(), Words::of([value]))
    } else if requirements::is_legacy(&request.environment) {
        (super::CUDA_VERSION.to_owned(), Words::All)
    } else {
        return None;
    };
    Some(Candidate { sources: vec![Source::Environment], by, words, way: Way::VendorFile })
}

/// The devices that the host's scheduler gave, in the variable with which a container asks.
fn by_scheduler(request: &Request) -> Option<Candidate> {
    if !request.is_scheduled {
        return None;
    }
    let value = request.environment.get(DEVICES).unwrap_or_default();
    Some(Candidate {
        sources: vec![Source::Scheduler],
        by: format!("{CUDA} of the scheduler"),
        words: Words::of([value]),
        way: Way::VendorFile,
    })
}

/// The names of devices below the folder, without those of channels.
fn by_mounts(request: &Request) -> Vec<String> {
    let names = below(request).into_iter();
    names
        .filter(|name| !name.starts_with("imex/"))
        .map(|name| match name.strip_prefix("cdi/") {
            // A CDI name as a path: vendor, class and device.
            Some(rest) if !rest.contains('=') => match rest.rsplit_once('/') {
                Some((kind, device)) => format!("{kind}={device}"),
                None => rest.to_owned(),
            },
            Some(rest) => rest.to_owned(),
            None => name,
        })
        .collect()
}

/// Paths below the folder on which `/dev/null` is mounted.
pub fn below(request: &Request) -> Vec<String> {
    let empty = |source: &str| clean(source) == "/dev/null";
    let mounts = request.mounts.iter().filter(|mount| empty(&mount.source));
    mounts
        .filter_map(|mount| {
            let path = clean(&mount.destination);
            let name = path.strip_prefix(MOUNTS)?.strip_prefix('/')?;
            Some(name.to_owned())
        })
        .collect()
}

/// A word of a CDI annotation that is not a CDI name.
pub fn malformed(candidate: &Candidate) -> Option<&str> {
    let mut names = candidate.names().iter();
    let by_annotation = candidate.sources.first() == Some(&Source::Cdi);
    let found = names.find(|name| by_annotation && !is_name(name));
    found.map(String::as_str)
}

/// True for `vendor/class=device`.
pub fn is_qualified(name: &str) -> bool {
    let parts = name.split_once('=').and_then(|(kind, device)| {
        let (vendor, class) = kind.split_once('/')?;
        Some([vendor, class, device])
    });
    parts.is_some_and(|parts| parts.iter().all(|part| !part.is_empty()))
}

/// The name with a kind. A name without one gets the default kind.
pub fn qualified(name: &str, kind: &str) -> String {
    if is_qualified(name) {
        name.to_owned()
    } else {
        format!("{kind}={name}")
    }
}

/// The kind of devices that NVIDIA's runtime describes when a container starts.
pub const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

/// True for the name of a device that needs no specification: the vendor file answers.
pub fn is_automatic(name: &str) -> bool {
    is_qualified(name) && bare(name, AUTOMATIC) != name
}

/// The name without the default kind, and without the automatic one.
pub fn bare<'n>(name: &'n str, kind: &str) -> &'n str {
    let rest = |kind| name.strip_prefix(kind)?.strip_prefix('=');
    let rest = rest(kind).or_else(|| rest(AUTOMATIC));
    rest.filter(|rest| !rest.is_empty()).unwrap_or(name)
}
