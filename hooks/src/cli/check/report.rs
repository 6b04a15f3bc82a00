//! The report of `oci-decorator check`, for people and for programs.

use std::fmt::Write;
use std::path::Path;

use serde::Serializer;
use serde_json::json;

use super::{interfaces, Findings, VendorReport};
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
            if file.ok {
                line(&mut out, &format!("{}: ok", file.path));
            }
            for mistake in &file.mistakes {
                line(&mut out, &format!("{}: {mistake}", file.path));
            }
        }
        if self.files.iter().any(|file| !file.ok) {
            line(&mut out, &self.correct_files());
        }
        match (&self.names.problem, &self.names.file) {
            (Some(problem), _) => error(&mut out, "", problem),
            (None, Some(file)) => line(&mut out, &format!("{file}: ok")),
            (None, None) => {}
        }
        for note in &self.names.notes {
            line(&mut out, note);
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
}

/// The items of a vendor in the report for programs.
pub fn items<S: Serializer>(items: &[Item], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(items.iter().map(|item| {
        json!({
            "feature": item.feature,
            "kind": item.kind.word(),
            "path": item.path,
            "present": item.found.is_ok(),
            "detail": item.found.as_ref().ok(),
            "problem": item.found.as_ref().err(),
        })
    }))
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
