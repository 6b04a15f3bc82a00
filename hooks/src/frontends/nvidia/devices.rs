//! The names of devices, and the mounts that stand for them.

use super::vars::MOUNTS;
use crate::model::edits::paths::clean;
use crate::model::request::ContainerRequest;

/// The names of devices below the folder, without those of channels.
pub fn by_mounts(request: &ContainerRequest) -> Vec<String> {
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
pub fn below(request: &ContainerRequest) -> Vec<String> {
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
