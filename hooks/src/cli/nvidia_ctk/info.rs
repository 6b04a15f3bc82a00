//! `nvidia-ctk info`: the driver, the devices, and the settings that count.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::system::gpus;
use super::{help, no_more, parse};
use crate::cli::go_flags::{Known, Takes};
use crate::cli::install_links::own_program;
use crate::cli::print;
use crate::config::nvidia::{self, Loaded, Mode, Place};
use crate::config::settings;
use crate::engines::links::NAMES;
use crate::error::{exit, Result};
use crate::host::facts::MAX_SIZE;
use crate::host::Host;
use crate::spec::json::{quote, Json};

const KNOWN: &[Known] = &[
    (&["json"], Takes::Nothing),
    (&["config-file", "config"], Takes::Value),
    (&["help", "h"], Takes::Nothing),
];
/// Below the host's root.
const FACTS: &str = "run/oci-decorator/devices/nvidia.json";
const VERSION: &str = "/proc/driver/nvidia/version";

/// Runs the command. `named` is the file that the words before the command name.
pub fn run(words: &[OsString], named: Option<&Path>) -> Result<u8> {
    let words = parse(words, KNOWN, "info")?;
    if words.is_set("help") {
        return help("info");
    }
    no_more(&words)?;
    let place = super::config::place(words.value("config-file").map(Path::new).or(named));
    let report = Report::of(place)?;
    print(&if words.is_set("json") {
        report.json()
    } else {
        report.text()
    })?;
    Ok(match report.loaded.problem {
        Some(_) => exit::USAGE,
        None => exit::DONE,
    })
}

struct Report {
    place: Place,
    loaded: Loaded,
    driver: Option<String>,
    /// A line for each device.
    devices: Vec<String>,
    links: Vec<PathBuf>,
}

impl Report {
    fn of(place: Place) -> Result<Self> {
        let settings = settings::load(settings::named_by_environment().as_deref()).settings;
        let facts = Host::open(&settings.root).ok();
        let facts = facts.and_then(|host| host.read(FACTS, MAX_SIZE).ok());
        let known = text_of(facts).as_deref().and_then(known_of);
        let version = || {
            let host = Host::open(Path::new("/")).ok()?;
            driver_of(&text_of(host.text_of_kernel(VERSION))?)
        };
        let (driver, devices) = known.unwrap_or_else(|| {
            let node = |minor| format!("/dev/nvidia{minor}");
            (None, gpus().into_iter().map(node).collect())
        });
        Ok(Self {
            loaded: nvidia::load(&place.path, place.named),
            place,
            driver: driver.or_else(version),
            devices,
            links: links_of(&own_program()?),
        })
    }

    fn text(&self) -> String {
        let config = &self.loaded.config;
        let there = if self.place.path.exists() {
            ""
        } else {
            " (not there: the defaults count)"
        };
        let mut lines = vec![
            format!("driver: {}", self.driver.as_deref().unwrap_or("not loaded")),
            format!("devices: {}", self.devices.len()),
        ];
        lines.extend(self.devices.iter().map(|device| format!("  {device}")));
        lines.push(format!("settings: {}{there}", self.place.path.display()));
        lines.push(format!("mode: {}", word_of(config.mode)));
        if let Some(problem) = &self.loaded.problem {
            let said = problem.lines().join("\n");
            lines.push(format!("mistake: {said}"));
        }
        lines.extend(
            self.loaded
                .warnings
                .iter()
                .map(|text| format!("warning: {text}")),
        );
        if !self.loaded.idle.is_empty() {
            lines.push("keys that have no effect here:".to_owned());
        }
        let idle = self
            .loaded
            .idle
            .iter()
            .map(|key| format!("  {key}: {}", why(key)));
        lines.extend(idle);
        lines.push(format!("links to this program: {}", self.links.len()));
        lines.extend(
            self.links
                .iter()
                .map(|link| format!("  {}", link.display())),
        );
        lines.join("\n") + "\n"
    }

    fn json(&self) -> String {
        let list = |items: &mut dyn Iterator<Item = String>| {
            let items: Vec<_> = items.map(|item| quote(&item)).collect();
            format!("[{}]", items.join(", "))
        };
        let idle = self.loaded.idle.iter();
        let idle: Vec<_> = idle
            .map(|key| format!("{}: {}", quote(key), quote(why(key))))
            .collect();
        let or_null = |text: Option<String>| text.map_or("null".to_owned(), |text| quote(&text));
        let problem = self.loaded.problem.as_ref().map(ToString::to_string);
        let is_there = self.place.path.exists();
        format!(
            "{{\"driver_version\": {}, \"devices\": {}, \"config\": {{\"path\": {}, \"exists\": {is_there}, \"mode\": {}, \"problem\": {}, \"warnings\": {}, \"without_meaning\": {{{}}}}}, \"links\": {}}}\n",
            or_null(self.driver.clone()),
            list(&mut self.devices.iter().cloned()),
            quote(&self.place.path.display().to_string()),
            quote(word_of(self.loaded.config.mode)),
            or_null(problem),
            list(&mut self.loaded.warnings.iter().cloned()),
            idle.join(", "),
            list(&mut self.links.iter().map(|link| link.display().to_string()))
        )
    }
}

fn text_of(bytes: Option<Vec<u8>>) -> Option<String> {
    String::from_utf8(bytes?).ok()
}

fn why(key: &str) -> &'static str {
    nvidia::without_meaning(key).unwrap_or_default()
}

fn word_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Auto => "auto",
        Mode::Legacy => "legacy",
        Mode::Csv => "csv",
        Mode::Cdi => "cdi",
        Mode::JitCdi => "jit-cdi",
    }
}

/// The driver's version and a line for each device, from the device facts.
fn known_of(text: &str) -> Option<(Option<String>, Vec<String>)> {
    let root: Json = serde_json::from_str(text).ok()?;
    let field = |of: &Json, name: &str| -> Option<String> {
        let Json::Object(members) = of else {
            return None;
        };
        let (_, value) = members.iter().find(|(key, _)| key == name)?;
        match value {
            Json::Text(text) => Some(text.to_string()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        }
    };
    let Json::Object(members) = &root else {
        return None;
    };
    let (_, devices) = members.iter().find(|(key, _)| key == "devices")?;
    let Json::Array(devices) = devices else {
        return None;
    };
    let line = |device: &Json| {
        let words = ["index", "uuid", "pci", "brand", "arch"];
        let words: Vec<_> = words
            .iter()
            .filter_map(|name| field(device, name))
            .collect();
        words.join(" ")
    };
    Some((
        field(&root, "driver_version"),
        devices.iter().map(line).collect(),
    ))
}

/// The version in the first line of the driver's file, which ends with a date.
fn driver_of(text: &str) -> Option<String> {
    let words = text.lines().next()?.split_whitespace();
    let is_version = |word: &&str| {
        word.split('.').count() > 1 && word.split('.').all(|part| part.parse::<u32>().is_ok())
    };
    words.into_iter().find(is_version).map(str::to_owned)
}

/// Links with NVIDIA's names in `PATH` that lead to this program.
fn links_of(program: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).collect::<Vec<_>>();
    let links = NAMES.iter().filter_map(|name| {
        let mut all = folders.iter().map(|folder| folder.join(name));
        // The first one in `PATH` is the one that runs.
        let first = all.find(|link| link.exists())?;
        (std::fs::canonicalize(&first).ok()? == program).then_some(first)
    });
    links.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_collected_is_shown() {
        let text = r#"{"driver_version": "535.1", "cuda_version": "12.2", "devices": [
            {"index": 0, "minor": 0, "uuid": "GPU-1", "pci": "0000:01:00.0", "brand": "Tesla", "arch": "8.0", "mig": []},
            {"index": 1}]}"#;
        let (driver, devices) = known_of(text).unwrap();
        assert_eq!(driver.as_deref(), Some("535.1"));
        assert_eq!(devices, ["0 GPU-1 0000:01:00.0 Tesla 8.0", "1"]);
        for broken in ["", "[]", "{}", "{\"devices\": 1}"] {
            assert_eq!(known_of(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_drivers_own_file_has_its_version() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jun 10 2025\nGCC version: 12.2.0\n";
        assert_eq!(driver_of(text).as_deref(), Some("535.261.03"));
        assert_eq!(driver_of("NVRM version: x86_64\n"), None);
        assert_eq!(driver_of(""), None);
    }
}
