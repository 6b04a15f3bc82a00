//! Lists the CDI devices that containers can name.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use super::print;
use crate::error::{exit, Result};
use crate::frontends::cdi::{read, Registry};
use crate::host::Host;
use crate::log::printable;

/// The devices in the folders of a host.
#[derive(Debug)]
pub struct Listing {
    devices: Vec<Value>,
    /// Files that can't be used, one for each line.
    problems: Vec<String>,
}

impl Listing {
    /// Reads the folders. Errors: the host's root or one of them can't be read.
    pub fn read(root: &Path, folders: &[PathBuf]) -> Result<Self> {
        let host = Host::open(root)?;
        let files = read(folders, &host)?;
        let (mut devices, mut problems) = (Vec::new(), Vec::new());
        for file in &files {
            if let Err(broken) = &file.content {
                let mistakes: Vec<_> = broken.mistakes.iter().map(ToString::to_string).collect();
                problems.push(format!("{}: {}", file.path.display(), mistakes.join("; ")));
            }
        }
        for device in Registry::new(&files, folders).list() {
            let (name, file) = (device.name, device.file.display().to_string());
            let conflicts = device.conflicts.iter().map(|path| path.display().to_string());
            let conflicts: Vec<_> = conflicts.collect();
            if !conflicts.is_empty() {
                let others = conflicts.join(", ");
                problems.push(format!("{name}: {file} has it and so has {others}: neither counts"));
            }
            devices.push(json!({"name": name, "file": file, "conflicts": conflicts}));
        }
        Ok(Self { devices, problems })
    }

    /// Prints the devices, and returns the exit code: a file that can't be used is wrong
    /// configuration.
    pub fn print(&self, is_json: bool) -> Result<u8> {
        print(&if is_json {
            let document = json!({"devices": self.devices, "problems": self.problems});
            format!("{document:#}\n")
        } else {
            let usable = self.devices.iter().filter(|device| device["conflicts"] == json!([]));
            let names = usable.filter_map(|device| device["name"].as_str());
            names.flat_map(|name| [name, "\n"]).collect()
        })?;
        Ok(if self.problems.is_empty() { exit::DONE } else { exit::USAGE })
    }

    /// Prints the files that can't be used, and what to do about them.
    pub fn complain(&self, program: &str) {
        let mut errors = std::io::stderr().lock();
        for problem in &self.problems {
            let _ = writeln!(errors, "{program}: {}", printable(problem));
        }
        if !self.problems.is_empty() {
            let _ = writeln!(
                errors,
                "What to do: correct or remove each of these files, then look again: {program} cdi list"
            );
        }
    }
}
