//! `oci-decorator check`: what is wrong in the vendor files, and what a
//! container would get on this host.

mod asks;

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use crate::config::settings::Loaded;
use crate::config::vendor::Mistake;
use crate::config::vendor_dir;
use crate::decide::{decide, Choice, VendorFile};
use crate::discover::host::Host;
use crate::discover::inventory::{collect_one, Item, Report};
use crate::error::{exit, Error, Result};
use crate::frontends::scheduled::{self, Scheduled};
use crate::log::level::Level;
use crate::log::printable;
use crate::policy::Policy;

pub use asks::Said;

use asks::Answers;

/// What is to be checked.
#[derive(Debug)]
pub struct Question<'a> {
    pub loaded: &'a Loaded,
    /// What a container says. Nothing: what every feature of every vendor would get.
    pub said: Said<'a>,
    /// Where NVIDIA's `config.toml` is, if it is there.
    pub nvidia: &'a Path,
}

/// What was found.
#[derive(Debug)]
pub struct Answer {
    config_dir: String,
    root: String,
    settings_problem: Option<Error>,
    files: Vec<FileReport>,
    vendors: Vec<VendorReport>,
    policy: Policy,
    /// What the policy leaves out of the request.
    ignored: Vec<String>,
    /// Why a container with this environment would be refused.
    refused: Option<Error>,
    /// What it gets through the interfaces of others.
    foreign: Answers,
}

#[derive(Debug)]
struct FileReport {
    path: String,
    activation_flag: Option<String>,
    mistakes: Vec<Mistake>,
}

#[derive(Debug)]
struct VendorReport {
    name: String,
    activation_flag: String,
    version: Option<String>,
    features: Vec<String>,
    items: Vec<Item>,
    problem: Option<Error>,
}

/// Checks. Errors: the folder of vendor files or the root can't be read.
pub fn answer(question: &Question) -> Result<Answer> {
    let settings = &question.loaded.settings;
    let files = vendor_dir::read(&settings.config_dir)?;
    let host = Host::open(&settings.root)?;
    let mut ignored = Vec::new();
    let mut refused = None;
    let said = &question.said;
    let mut request = said.request();
    scheduled::reserve(&mut request, settings);
    let asks = !said.environment.is_empty() || !said.annotations.is_empty();
    let choices = if asks {
        match decide(&files, &request, &settings.policy) {
            Ok((choices, notes)) => {
                // The others are of broken files, which are listed.
                let notes = notes.into_iter().filter(|note| note.level == Level::Notice);
                ignored = notes.map(|note| note.message).collect();
                choices
            }
            Err(error) => {
                refused = Some(error);
                Vec::new()
            }
        }
    } else {
        everything(&files)
    };
    let mut vendors: Vec<VendorReport> = choices.iter().map(|c| vendor_report(&host, c)).collect();
    if asks && refused.is_none() {
        refused = vendors.iter().find_map(|v| v.problem.clone());
    }
    let scheduled = Scheduled::of(&request, &host, &files, &settings.policy);
    if let Some(scheduled) = scheduled.filter(|_| asks && refused.is_none()) {
        refused = limit(&scheduled, &host, &choices, &mut vendors, &mut ignored).err();
    }
    Ok(Answer {
        config_dir: settings.config_dir.display().to_string(),
        root: settings.root.display().to_string(),
        settings_problem: question.loaded.problem.clone(),
        files: file_reports(&files),
        vendors,
        policy: settings.policy.clone(),
        ignored,
        refused,
        foreign: Answers::of(said, question.loaded, question.nvidia),
    })
}

/// Takes out of the reports what only a scheduler gives. Errors: that refuses the start.
fn limit(
    scheduled: &Scheduled,
    host: &Host,
    choices: &[Choice],
    vendors: &mut [VendorReport],
    ignored: &mut Vec<String>,
) -> Result<()> {
    for (choice, report) in choices.iter().zip(vendors) {
        let (mut edits, _) = collect_one(host, choice, Report::Missing)?;
        let mut notes = Vec::new();
        let flag = &choice.vendor.activation_flag;
        let paths = scheduled.limit(flag, &mut edits, &mut notes)?;
        report.items.retain(|item| !paths.contains(&item.path));
        ignored.extend(notes.into_iter().map(|note| note.message));
    }
    Ok(())
}

fn everything(files: &[VendorFile]) -> Vec<Choice<'_>> {
    files
        .iter()
        .filter_map(|file| {
            let vendor = file.content.as_ref().ok()?;
            Some(Choice {
                file,
                vendor,
                features: vendor.feature_names().collect(),
            })
        })
        .collect()
}

fn file_reports(files: &[VendorFile]) -> Vec<FileReport> {
    let mut claimed: HashMap<&str, &str> = HashMap::new();
    files
        .iter()
        .map(|file| {
            let mut report = FileReport {
                path: file.path.clone(),
                activation_flag: None,
                mistakes: Vec::new(),
            };
            match &file.content {
                Ok(vendor) => {
                    let flag = vendor.activation_flag.as_str();
                    report.activation_flag = Some(flag.to_owned());
                    if let Some(other) = claimed.insert(flag, &file.path) {
                        let problem = format!("{flag} is claimed by {other} too");
                        report.mistakes.push(Mistake::new("activation_flag", problem));
                    }
                }
                Err(broken) => {
                    report.mistakes.clone_from(&broken.mistakes);
                    if broken.flags.is_empty() {
                        let problem = "no activation_flag can be found in it, so containers that ask for this vendor start without it";
                        report.mistakes.push(Mistake::new("", problem));
                    }
                }
            }
            report
        })
        .collect()
}

fn vendor_report(host: &Host, choice: &Choice) -> VendorReport {
    let (items, problem) = match collect_one(host, choice, Report::All) {
        Ok((_, items)) => (items, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    VendorReport {
        name: choice.file.name.clone(),
        activation_flag: choice.vendor.activation_flag.clone(),
        version: choice.vendor.version.clone(),
        features: choice.features.iter().map(|&f| f.to_owned()).collect(),
        items,
        problem,
    }
}

impl Answer {
    pub fn code(&self) -> u8 {
        let wrong = self.files.iter().any(|file| !file.mistakes.is_empty());
        if wrong || self.settings_problem.is_some() {
            exit::USAGE
        } else {
            let refused = self.refused.as_ref().map(|error| error.code);
            refused.unwrap_or_else(|| self.foreign.code())
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some(problem) = &self.settings_problem {
            line(&mut out, &problem.to_string());
        }
        if self.files.is_empty() {
            line(&mut out, &format!("{}: no vendor files", self.config_dir));
        }
        for file in &self.files {
            if file.mistakes.is_empty() {
                line(&mut out, &format!("{}: ok", file.path));
            }
            for mistake in &file.mistakes {
                line(&mut out, &format!("{}: {mistake}", file.path));
            }
        }
        match (&self.foreign.problem, &self.foreign.file) {
            (Some(problem), _) => line(&mut out, &problem.to_string()),
            (None, Some(file)) => line(&mut out, &format!("{file}: ok")),
            (None, None) => {}
        }
        line(&mut out, &format!("policy: {}", self.policy));
        for vendor in &self.vendors {
            vendor.write(&mut out);
        }
        for reason in &self.ignored {
            line(&mut out, reason);
        }
        if let Some(error) = &self.refused {
            line(&mut out, &format!("start refused: {error}"));
        }
        let lines = self.foreign.given.iter().flat_map(asks::Given::lines);
        lines.for_each(|text| line(&mut out, &text));
        out
    }

    /// The report for programs: one document.
    pub fn json(&self) -> String {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|file| {
                let mistakes: Vec<_> = file
                    .mistakes
                    .iter()
                    .map(|m| json!({"key": m.key, "problem": m.problem}))
                    .collect();
                json!({
                    "path": file.path,
                    "ok": file.mistakes.is_empty(),
                    "activation_flag": file.activation_flag,
                    "mistakes": mistakes,
                })
            })
            .collect();
        let document = json!({
            "config_dir": self.config_dir,
            "root": self.root,
            "settings_problem": self.settings_problem.as_ref().map(ToString::to_string),
            "files": files,
            "policy": self.policy.to_string(),
            "ignored": self.ignored,
            "vendors": self.vendors.iter().map(VendorReport::json).collect::<Vec<_>>(),
            "refused": self.refused.as_ref().map(ToString::to_string),
            "nvidia_config": self.foreign.file,
            "nvidia_problem": self.foreign.problem.as_ref().map(ToString::to_string),
            "names": self.foreign.given.iter().map(asks::Given::json).collect::<Vec<_>>(),
        });
        format!("{document:#}\n")
    }
}

impl VendorReport {
    fn write(&self, out: &mut String) {
        let version = self.version.as_deref().unwrap_or("version unknown");
        let features = self.features.join(", ");
        line(
            out,
            &format!(
                "\n{} ({}, {version}): {features}",
                self.activation_flag, self.name
            ),
        );
        if let Some(problem) = &self.problem {
            line(out, &format!("  {problem}"));
        }
        for item in &self.items {
            let (mark, detail) = match &item.found {
                Ok(detail) => ("ok     ", detail),
                Err(problem) => ("missing", problem),
            };
            let text = format!(
                "  {mark} {:<9} {} [{}] {detail}",
                item.kind.word(),
                item.path,
                item.feature
            );
            line(out, text.trim_end());
        }
    }

    fn json(&self) -> serde_json::Value {
        let items: Vec<_> = self
            .items
            .iter()
            .map(|item| {
                json!({
                    "feature": item.feature,
                    "kind": item.kind.word(),
                    "path": item.path,
                    "present": item.found.is_ok(),
                    "detail": item.found.as_ref().ok(),
                    "problem": item.found.as_ref().err(),
                })
            })
            .collect();
        json!({
            "vendor": self.name,
            "activation_flag": self.activation_flag,
            "version": self.version,
            "features": self.features,
            "problem": self.problem.as_ref().map(ToString::to_string),
            "items": items,
        })
    }
}

/// One line of the report; a leading newline sets it off from the one before.
fn line(out: &mut String, text: &str) {
    let (gap, text) = text.strip_prefix('\n').map_or(("", text), |t| ("\n", t));
    let _ = writeln!(out, "{gap}{}", printable(text));
}

#[cfg(test)]
mod tests;
