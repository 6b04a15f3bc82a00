//! The report of `oci-decorator check`, for people and for programs.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use super::{interfaces, FileReport, Findings, VendorReport};
use crate::config::settings::DEFAULT_CONFIG_DIR;
use crate::error::Error;
use crate::host::inventory::Item;
use crate::log::printable;

impl Findings {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some(problem) = &self.settings_problem {
            error(&mut out, "", problem);
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
        if self.files.iter().any(|file| !file.mistakes.is_empty()) {
            line(&mut out, &self.correct_files());
        }
        match (&self.names.problem, &self.names.file) {
            (Some(problem), _) => error(&mut out, "", problem),
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
        if let Some(refused) = &self.refused {
            error(&mut out, "start refused: ", refused);
        }
        if let Some(unanswered) = &self.unanswered {
            error(&mut out, "", unanswered);
        }
        let lines = self.names.all.iter().flat_map(interfaces::NameResult::lines);
        lines.for_each(|text| line(&mut out, &text));
        out
    }

    /// What to do about mistakes in vendor files.
    fn correct_files(&self) -> String {
        let mut text =
            "What to do: correct these files, then check them: oci-decorator check".to_owned();
        if Path::new(&self.config_dir) != Path::new(DEFAULT_CONFIG_DIR) {
            text.push_str(" --config-dir ");
            text.push_str(&self.config_dir);
        }
        text
    }

    /// The report as one JSON document.
    pub fn json(&self) -> String {
        let file = |file: &FileReport| {
            json!({
                "path": file.path,
                "ok": file.mistakes.is_empty(),
                "activation_flag": file.activation_flag,
                "mistakes": file.mistakes,
            })
        };
        let document = json!({
            "config_dir": self.config_dir,
            "root": self.root,
            "settings_problem": self.settings_problem,
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "policy": self.policy.to_string(),
            "ignored": self.ignored,
            "vendors": self.vendors.iter().map(VendorReport::json).collect::<Vec<_>>(),
            "refused": self.refused,
            "unanswered": self.unanswered,
            "nvidia_config": self.names.file,
            "nvidia_problem": self.names.problem,
            "names": self.names.all.iter().map(interfaces::NameResult::json).collect::<Vec<_>>(),
        });
        format!("{document:#}\n")
    }
}

impl VendorReport {
    fn write(&self, out: &mut String) {
        let version = self.version.as_deref().unwrap_or("version unknown");
        let features = self.features.join(", ");
        line(out, &format!("\n{} ({}, {version}): {features}", self.activation_flag, self.name));
        if let Some(problem) = &self.problem {
            error(out, "  ", problem);
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
        let item = |item: &Item| {
            json!({
                "feature": item.feature,
                "kind": item.kind.word(),
                "path": item.path,
                "present": item.found.is_ok(),
                "detail": item.found.as_ref().ok(),
                "problem": item.found.as_ref().err(),
            })
        };
        json!({
            "vendor": self.name,
            "activation_flag": self.activation_flag,
            "version": self.version,
            "features": self.features,
            "problem": self.problem,
            "items": self.items.iter().map(item).collect::<Vec<_>>(),
        })
    }
}

/// Adds an error, with what to do on a line of its own.
fn error(out: &mut String, before: &str, error: &Error) {
    let indent = if before.starts_with(' ') { "  " } else { "" };
    let lines = error.lines();
    for (at, text) in lines.iter().enumerate() {
        let before = if at == 0 { before } else { indent };
        line(out, &format!("{before}{text}"));
    }
}

/// Adds a line to the report. A leading newline separates it from the line before.
fn line(out: &mut String, text: &str) {
    let (gap, text) = text.strip_prefix('\n').map_or(("", text), |t| ("\n", t));
    let _ = writeln!(out, "{gap}{}", printable(text));
}
