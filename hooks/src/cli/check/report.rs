//! The report of `oci-decorator check`, for people and for programs.

use std::fmt::Write;

use serde_json::json;

use super::{asks, Answer, VendorReport};
use crate::log::printable;

impl Answer {
    /// The report as text.
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

    /// The report as one JSON document.
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

/// Adds a line to the report. A leading newline separates it from the line before.
fn line(out: &mut String, text: &str) {
    let (gap, text) = text.strip_prefix('\n').map_or(("", text), |t| ("\n", t));
    let _ = writeln!(out, "{gap}{}", printable(text));
}
