//! Checks the values of a vendor file. `None`: nothing is wrong.

use super::RESERVED_FEATURES;
use crate::model::glob;
use crate::model::vendor::device_name;

/// True if the text can be the name of an environment variable.
pub fn is_flag(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

pub(super) fn check_feature(name: &str) -> Option<String> {
    let wellformed = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !wellformed {
        Some(format!("{name:?} is not a feature name: letters, digits, '.', '_' and '-'"))
    } else if RESERVED_FEATURES.contains(&name) {
        Some(format!("{name:?} has a meaning of its own as a value of the flag"))
    } else {
        None
    }
}

/// Checks a CDI kind
/// (<https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md#kind>). Names of one
/// letter make some readers panic, and a dot in the class is new in CDI 0.6.
pub fn check_kind(kind: &str) -> Option<String> {
    let is_name = |name: &str, others: &str| {
        name.len() > 1
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.ends_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
    };
    let parts = kind.split_once('/');
    let wellformed =
        parts.is_some_and(|(vendor, class)| is_name(vendor, "._-") && is_name(class, "_-"));
    (!wellformed).then(|| format!("{kind:?} is not a kind of CDI, like vendor.com/class"))
}

/// What is wrong with the parts of a path after its leading slash.
fn check_parts(path: &str) -> Option<String> {
    // Compared by bytes, because every start reads hundreds of paths.
    let mut parts = path.as_bytes().split(|byte| *byte == b'/');
    if path.bytes().any(|byte| byte.is_ascii_control()) {
        Some(format!("{path:?} has a control character in it"))
    } else if parts.any(|part| matches!(part, b"" | b"." | b"..")) {
        Some(format!("{path:?} has an empty part, '.' or '..' in it"))
    } else {
        None
    }
}

pub(super) fn check_path(path: &str) -> Option<String> {
    match path.strip_prefix('/') {
        None => Some(format!("{path:?} is not an absolute path")),
        Some(rest) => check_parts(rest),
    }
}

/// Checks a path that is mounted or created in a container.
pub(super) fn check_target(path: &str) -> Option<String> {
    check_path(path).or_else(|| {
        ["/dev", "/proc", "/sys"]
            .iter()
            .find(|folder| crate::model::edits::lies_in(path, folder))
            .map(|folder| format!("{path:?} is in {folder}, which the runtime makes"))
    })
}

/// Checks the name of a library, which has no folder.
pub(super) fn check_soname(name: &str) -> Option<String> {
    let plain = !name.contains('/') && check_parts(name).is_none();
    (!plain).then(|| format!("{name:?} is not the name of a library, like libcuda.so.1"))
}

/// Checks `units`, a pattern of device nodes.
pub(super) fn check_units(units: &str) -> Option<String> {
    check_device(units).or_else(|| {
        // With a pattern that matches nothing, every node is a control node and given to everyone.
        (!glob::is_pattern(units) || glob::has_open_bracket(units))
            .then(|| format!("{units:?} is not a pattern of names under /dev, like nvidia[0-9]*"))
    })
}

/// False only if no node can match both the pattern and a line of `devices`.
pub(super) fn may_match(units: &str, device: &str) -> bool {
    let (units, device) = (device_name(units), device_name(device));
    if !glob::is_pattern(device) {
        return glob::matches(units, device);
    }
    // Only the beginnings of two patterns are compared, so that none is refused wrongly.
    let (one, other) = (literal(units), literal(device));
    one.starts_with(other) || other.starts_with(one)
}

/// The text before a pattern's first special character.
fn literal(pattern: &str) -> &str {
    pattern.split(['*', '?', '[']).next().unwrap_or_default()
}

pub(super) fn check_device(device: &str) -> Option<String> {
    let name = device_name(device);
    if name.starts_with('/') {
        Some(format!("{device:?} is neither a name under /dev nor a path that begins with /dev/"))
    } else {
        check_parts(name)
    }
}
