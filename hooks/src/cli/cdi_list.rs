//! Lists the CDI devices that containers can name.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::config::cdi::folder::SpecFile;
use crate::error::{exit, Result};
use crate::frontends::cdi::{read, Registry};
use crate::host::Host;
use crate::log::printable;

/// The devices in the folders of a host.
#[derive(Debug)]
pub struct Listing {
    text: String,
    json: String,
    /// Files that can't be used, one for each line.
    pub problems: Vec<String>,
}

impl Listing {
    /// Reads the folders. Errors: the host's root or one of them can't be read.
    pub fn read(root: &std::path::Path, folders: &[PathBuf]) -> Result<Self> {
        let host = Host::open(root)?;
        let files = read(folders, &host)?;
        let listed = Registry::new(&files, folders).list();
        let mut text = String::new();
        let mut devices = Vec::new();
        let mut problems: Vec<String> = files.iter().filter_map(problem).collect();
        for device in &listed {
            devices.push(json!({
                "name": device.name,
                "file": device.file.display().to_string(),
                "conflicts": device.conflicts.iter().map(|p| p.display().to_string()).collect::<Vec<_>>(),
            }));
            if device.conflicts.is_empty() {
                text.push_str(&device.name);
                text.push('\n');
            } else {
                let others = device.conflicts.iter().map(|p| p.display().to_string());
                let others: Vec<_> = others.collect();
                let file = device.file.display();
                let others = others.join(", ");
                problems.push(format!(
                    "{}: {file} has it and so has {others}: neither counts",
                    device.name
                ));
            }
        }
        let document = json!({"devices": devices, "problems": problems});
        Ok(Self {
            text,
            json: format!("{document:#}\n"),
            problems,
        })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn json(&self) -> &str {
        &self.json
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

    /// A file that can't be used is wrong configuration.
    pub fn code(&self) -> u8 {
        if self.problems.is_empty() {
            exit::DONE
        } else {
            exit::USAGE
        }
    }
}

fn problem(file: &SpecFile) -> Option<String> {
    let broken = file.content.as_ref().err()?;
    let mistakes: Vec<_> = broken.mistakes.iter().map(ToString::to_string).collect();
    Some(format!("{}: {}", file.path.display(), mistakes.join("; ")))
}
