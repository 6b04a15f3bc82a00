//! Device facts: what is known about a vendor's devices beyond their nodes. `provision` writes the
//! file when it loads a driver.

mod kernel;

pub(super) use kernel::field;

use std::collections::BTreeMap;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::Host;
use crate::host::rootfs::read_regular;
use crate::host::trust::untrusted;
use crate::model::decide::units::{filled, Part};
use crate::model::edits::paths::split;

/// The folder of the files, below the host's root.
pub const FOLDER: &str = "/run/oci-decorator/devices";
/// What to do about facts that can't be used.
pub const WRITE_AGAIN: &str = "write the device facts again: `provision devices --rescan`";
/// A change of this file makes `provision-devices.path` have the facts written again.
const REFRESH: (&str, &str) = ("run/oci-decorator", "refresh");
/// Largest file that is read, in bytes. A device takes some hundred bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// A vendor's devices, as the file has them. Unknown members are for other programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub source: Option<FactsSource>,
    #[serde(deserialize_with = "filled")]
    pub driver_version: Option<String>,
    #[serde(deserialize_with = "filled")]
    pub cuda_version: Option<String>,
    pub devices: Vec<Gpu>,
    /// What the writer could not find out.
    pub problems: Vec<String>,
}

/// Where the facts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FactsSource {
    /// NVIDIA's files in `/proc`, which know no parts.
    Proc,
    /// The kernel's graphics nodes.
    Sysfs,
    /// NVIDIA's driver, in another way.
    #[serde(other)]
    Driver,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Gpu {
    pub index: u32,
    pub minor: u32,
    #[serde(default, deserialize_with = "filled")]
    pub uuid: Option<String>,
    /// `0000:01:00.0`
    #[serde(default, deserialize_with = "filled")]
    pub pci: Option<String>,
    #[serde(default, deserialize_with = "filled")]
    pub brand: Option<String>,
    /// Compute capability: `8.0`.
    #[serde(default, deserialize_with = "filled")]
    pub arch: Option<String>,
    #[serde(default)]
    pub mig: Vec<Part>,
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
    /// Reads the facts about a vendor's devices, and compares them with the kernel. No link in the
    /// path is followed, and only root may be able to change the file and the folders above it.
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
        match parse(&bytes) {
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
        let Ok(folder) = self.root.open_plain(folder, OFlags::PATH) else {
            return;
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // systemd watches for the end of the write. Truncating sets the time of the change, by which
        // a service that is writing facts sees that they have to be written again.
        let flags = flags | OFlags::TRUNC;
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

/// Reads the text. Errors: it is not one of facts, or two devices have the same number.
fn parse(text: &[u8]) -> Result<Facts, String> {
    let facts: Facts = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let (mut indices, mut minors) = (BTreeMap::new(), BTreeMap::new());
    for (at, gpu) in facts.devices.iter().enumerate() {
        for (what, number, known) in
            [("index", gpu.index, &mut indices), ("minor", gpu.minor, &mut minors)]
        {
            if let Some(other) = known.insert(number, at) {
                return Err(format!(
                    "devices[{other}] and devices[{at}] have the same {what}, {number}"
                ));
            }
        }
    }
    Ok(facts)
}
