//! `nvidia-ctk info`: the driver, the devices, and the settings that count.

use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use super::place_of;
use super::system::gpus;
use crate::cli::install_links::own_program;
use crate::cli::{print, JSON};
use crate::config::nvidia::{self, Loaded, Mode, Place};
use crate::config::settings;
use crate::engines::links::NAMES;
use crate::error::{exit, Result};
use crate::host::facts::{FactsState, Gpu};
use crate::host::Host;
use crate::spec::options::{value, Opt, Words};

pub const OPTIONS: &[Opt] = &[JSON, value(&["config-file", "config"])];
const VERSION: &str = "/proc/driver/nvidia/version";

pub fn run(words: &Words) -> Result<u8> {
    let report = Report::of(place_of(words))?;
    print(&if words.is_set("json") { report.json() } else { report.text() })?;
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
        let facts = Host::open(&settings.root).map(|host| host.facts("nvidia"));
        let (driver, devices) = if let Ok(FactsState::Facts(facts)) = facts {
            (facts.driver_version, facts.devices.iter().map(line_of).collect())
        } else {
            let node = |minor| format!("/dev/nvidia{minor}");
            (None, gpus().into_iter().map(node).collect())
        };
        let version = || driver_version(&Host::open(Path::new("/")).ok()?);
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
        let there = if self.place.path.exists() { "" } else { " (not there: the defaults count)" };
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
        lines.extend(self.loaded.warnings.iter().map(|text| format!("warning: {text}")));
        if !self.loaded.idle.is_empty() {
            lines.push("keys that have no effect here:".to_owned());
        }
        let idle = self.loaded.idle.iter().map(|key| format!("  {key}: {}", why(key)));
        lines.extend(idle);
        lines.push(format!("links to this program: {}", self.links.len()));
        lines.extend(self.links.iter().map(|link| format!("  {}", link.display())));
        lines.join("\n") + "\n"
    }

    fn json(&self) -> String {
        let Loaded { config, problem, warnings, idle } = &self.loaded;
        let idle: serde_json::Map<String, Value> =
            idle.iter().map(|key| (key.clone(), json!(why(key)))).collect();
        let document = json!({
            "driver_version": self.driver,
            "devices": self.devices,
            "config": {
                "path": self.place.path.display().to_string(),
                "exists": self.place.path.exists(),
                "mode": word_of(config.mode),
                "problem": problem,
                "warnings": warnings,
                "without_meaning": idle,
            },
            "links": self.links.iter().map(|link| link.display().to_string()).collect::<Vec<_>>(),
        });
        format!("{document}\n")
    }
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

fn line_of(gpu: &Gpu) -> String {
    let index = gpu.index.to_string();
    let texts = [&gpu.uuid, &gpu.pci, &gpu.brand, &gpu.arch];
    let texts = texts.into_iter().flatten().map(String::as_str);
    let words: Vec<&str> = std::iter::once(&*index).chain(texts).collect();
    words.join(" ")
}

/// The version of the driver that is loaded.
pub fn driver_version(host: &Host) -> Option<String> {
    driver_of(&host.text_of_kernel(VERSION)?)
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
