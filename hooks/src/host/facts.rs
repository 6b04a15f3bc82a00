//! Device facts: what is known about a vendor's devices beyond their nodes. `provision` writes the
//! file when it loads a driver.

mod kernel;

use std::collections::BTreeMap;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Host;
use crate::host::rootfs::read_regular;
use crate::host::trust::untrusted;
use crate::model::edits::paths::split;
use crate::spec::json::Json;

/// The folder of the files, below the host's root.
pub const FOLDER: &str = "/run/oci-decorator/devices";
/// What to do about facts that can't be used.
pub const WRITE_AGAIN: &str = "write the device facts again: `provision devices --rescan`";
/// A change of this file makes `provision-devices.path` have the facts written again.
const REFRESH: (&str, &str) = ("run/oci-decorator", "refresh");
/// Largest file that is read, in bytes. A device takes some hundred bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// A vendor's devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub source: Option<Source>,
    pub driver_version: Option<String>,
    pub cuda_version: Option<String>,
    pub devices: Vec<Gpu>,
    /// The writer found out everything.
    pub is_whole: bool,
}

/// Where the facts come from. `None`: NVIDIA's driver, in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// NVIDIA's files in `/proc`, which know no parts.
    Proc,
    /// The kernel's graphics nodes.
    Sysfs,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    pub index: u32,
    pub minor: u32,
    pub uuid: Option<String>,
    /// `0000:01:00.0`
    pub pci: Option<String>,
    pub brand: Option<String>,
    /// Compute capability: `8.0`.
    pub arch: Option<String>,
    pub mig: Vec<Mig>,
}

/// A MIG partition, which can be used like a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mig {
    /// Its number on its device.
    pub index: Option<u32>,
    pub uuid: Option<String>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// Names under `/dev`.
    pub nodes: Vec<String>,
}

/// The facts file of a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactsState {
    Absent,
    Facts(Facts),
    /// The path of the file, and why it can't be used.
    Broken(String),
}

impl FactsState {
    pub fn facts(&self) -> Option<&Facts> {
        match self {
            Self::Facts(facts) => Some(facts),
            _ => None,
        }
    }
}

impl Host {
    /// Reads the facts about a vendor's devices, and compares them with the kernel. No link in the path is followed, and only root may
    /// be able to change the file and the folders above it.
    pub fn facts(&self, vendor: &str) -> FactsState {
        let path = format!("{FOLDER}/{vendor}.json");
        let broken =
            |problem: &str| FactsState::Broken(format!("{}: {problem}", self.shown(&path)));
        let bytes = match self.trusted_bytes(&path) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(problem)) => return broken(&problem),
            Err(Errno::NOENT) => return FactsState::Absent,
            Err(Errno::INVAL) => return broken("not a regular file"),
            Err(Errno::FBIG) => return broken(&format!("larger than {MAX_SIZE} bytes")),
            Err(error) => return broken(&format!("can't be read: {error}")),
        };
        match std::str::from_utf8(&bytes)
            .map_err(|e| e.to_string())
            .and_then(parse)
        {
            Ok(facts) => match self.contradicts(&facts) {
                None => FactsState::Facts(facts),
                Some(reason) => {
                    self.have_facts_written();
                    broken(&format!("out of date: {reason}"))
                }
            },
            Err(problem) => broken(&problem),
        }
    }

    /// Has the facts written again, where `provision`'s units are at work and this is root.
    fn have_facts_written(&self) {
        let (folder, name) = REFRESH;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let Ok(folder) = self.root.open_plain(folder, flags) else {
            return;
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // systemd watches for the end of the write.
        let _ = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o644));
    }

    /// The inner error says why a user other than root may have written the file.
    fn trusted_bytes(&self, path: &str) -> rustix::io::Result<Result<Vec<u8>, String>> {
        let mut step = path;
        while let Some((folder, _)) = split(step) {
            let stat = rustix::fs::fstat(self.root.open_plain(step, OFlags::PATH)?)?;
            if let Some(problem) = untrusted(&stat) {
                return Ok(Err(format!("{step} {problem}")));
            }
            step = folder;
        }
        let fd = self.root.open_plain(path, OFlags::PATH)?;
        read_regular(&fd, MAX_SIZE).map(|(bytes, _)| Ok(bytes))
    }
}

/// Reads the text. Unknown members are for other programs.
fn parse(text: &str) -> Result<Facts, String> {
    let value: Json = serde_json::from_str(text).map_err(|e| format!("not valid JSON: {e}"))?;
    let Json::Object(_) = value else {
        return Err(format!("expected an object, found {}", value.kind()));
    };
    let mut facts = Facts {
        source: match text_of(&value, "source")?.as_deref() {
            Some("proc") => Some(Source::Proc),
            Some("sysfs") => Some(Source::Sysfs),
            _ => None,
        },
        is_whole: list_of(&value, "problems")?.is_empty(),
        driver_version: text_of(&value, "driver_version")?,
        cuda_version: text_of(&value, "cuda_version")?,
        devices: Vec::new(),
    };
    let (mut indices, mut minors) = (BTreeMap::new(), BTreeMap::new());
    for (at, device) in list_of(&value, "devices")?.iter().enumerate() {
        let gpu = gpu(device).map_err(|problem| format!("devices[{at}]: {problem}"))?;
        for (what, number, known) in [
            ("index", gpu.index, &mut indices),
            ("minor", gpu.minor, &mut minors),
        ] {
            if let Some(other) = known.insert(number, at) {
                return Err(format!(
                    "devices[{other}] and devices[{at}] have the same {what}, {number}"
                ));
            }
        }
        facts.devices.push(gpu);
    }
    Ok(facts)
}

fn gpu(value: &Json) -> Result<Gpu, String> {
    let mut gpu = Gpu {
        index: number_of(value, "index")?.ok_or("\"index\" is missing")?,
        minor: number_of(value, "minor")?.ok_or("\"minor\" is missing")?,
        uuid: text_of(value, "uuid")?,
        pci: text_of(value, "pci")?,
        brand: text_of(value, "brand")?,
        arch: text_of(value, "arch")?,
        mig: Vec::new(),
    };
    for (at, part) in list_of(value, "mig")?.iter().enumerate() {
        let mig = mig(part).map_err(|problem| format!("mig[{at}]: {problem}"))?;
        gpu.mig.push(mig);
    }
    Ok(gpu)
}

fn mig(value: &Json) -> Result<Mig, String> {
    let nodes = list_of(value, "nodes")?.iter().map(|node| {
        let node = node
            .text()
            .ok_or("\"nodes\": not every entry is a string")?;
        let name = node.strip_prefix("/dev/").unwrap_or(node);
        let plain = !name.split('/').any(|part| matches!(part, "" | "." | ".."));
        let plain = plain && !name.contains(|c: char| c.is_control());
        plain
            .then(|| name.to_owned())
            .ok_or(format!("{node:?} is not a name under /dev"))
    });
    Ok(Mig {
        index: number_of(value, "index")?,
        uuid: text_of(value, "uuid")?,
        gpu_instance: number_of(value, "gpu_instance")?,
        compute_instance: number_of(value, "compute_instance")?,
        nodes: nodes.collect::<Result<_, String>>()?,
    })
}

fn member<'j>(value: &'j Json, key: &str) -> Option<&'j Json<'j>> {
    let Json::Object(members) = value else {
        return None;
    };
    let mut members = members.iter().rev();
    let found = members
        .find(|(name, _)| name == key)
        .map(|(_, value)| value);
    found.filter(|value| **value != Json::Null)
}

fn wrong(key: &str, what: &str, found: &Json) -> String {
    format!("{key:?}: expected {what}, found {}", found.kind())
}

fn text_of(value: &Json, key: &str) -> Result<Option<String>, String> {
    let text = |found: &Json| match found.text() {
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong(key, "a string", found)),
    };
    let found = member(value, key).map(text).transpose()?;
    Ok(found.filter(|text| !text.is_empty()))
}

fn number_of(value: &Json, key: &str) -> Result<Option<u32>, String> {
    let number = |found: &Json| match found {
        Json::Number(number)
            if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number) =>
        {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It was compared.
            let number = *number as u32;
            Ok(number)
        }
        other => Err(wrong(key, "a whole number", other)),
    };
    member(value, key).map(number).transpose()
}

fn list_of<'j>(value: &'j Json, key: &str) -> Result<&'j [Json<'j>], String> {
    match member(value, key) {
        None => Ok(&[]),
        Some(Json::Array(items)) => Ok(items),
        Some(other) => Err(wrong(key, "a list", other)),
    }
}

#[cfg(test)]
mod tests;
