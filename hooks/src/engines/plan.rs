//! Decides what an engine's file becomes, and carries it out.

use std::path::{Path, PathBuf};

use super::record::{Entry, Record};
use super::{links, Engine, FileHistory, RuntimeEntry};
use crate::error::{Error, Result};
use crate::host::{files, lock};

/// A file to change.
#[derive(Debug)]
pub struct Job {
    pub engine: Engine,
    pub file: PathBuf,
    /// Other files that the engine reads, see [`FileHistory`].
    pub others: Vec<String>,
    pub record: PathBuf,
    /// Only report what would be done.
    pub is_dry: bool,
}

/// The result.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub file: PathBuf,
    /// The old text. `None`: there was no file.
    pub before: Option<String>,
    /// The new text. `None`: the file is removed.
    pub after: Option<String>,
}

impl Done {
    pub fn is_change(&self) -> bool {
        self.before != self.after
    }
}

/// The new text of a file, and its entry in the record.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub after: Option<String>,
    pub entry: Option<Entry>,
}

impl Job {
    pub fn add(&self, runtime: &RuntimeEntry) -> Result<Done> {
        change(&self.file, &self.record, self.is_dry, |text, entry| {
            added(self.engine, text, entry, runtime, &self.others)
                .map_err(|problem| refused(&self.file, &problem))
        })
    }

    pub fn remove(&self, name: &str) -> Result<Done> {
        change(&self.file, &self.record, self.is_dry, |text, entry| {
            removed(self.engine, text, entry, name).map_err(|problem| refused(&self.file, &problem))
        })
    }
}

/// Reads a file, decides with its text and its entry in the record, and writes, while other
/// processes wait.
pub fn change(
    file: &Path,
    record: &Path,
    is_dry: bool,
    decide: impl FnOnce(Option<&str>, Option<&Entry>) -> Result<Plan>,
) -> Result<Done> {
    // The record's keys are absolute paths.
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let _held = (!is_dry).then(lock::take).transpose()?;
    let before = files::read(&file)?;
    let mut record = Record::load(record)?;
    let old = record.get(&file).cloned();
    let Plan { after, mut entry } = decide(before.as_deref(), old.as_ref())?;
    let done = Done { file, before, after };
    if is_dry {
        return Ok(done);
    }
    let file = &done.file;
    if let Some(new) = &mut entry {
        new.folders = record.folders_for(file);
    }
    let entry = entry.filter(|entry| *entry != Entry::default());
    let is_kept = entry.is_some();
    // The record comes first, so that the next run understands a run that was killed in between.
    if is_kept && entry != old {
        record.put(file, entry)?;
    }
    match &done.after {
        _ if !done.is_change() => {}
        Some(text) => files::write(file, text, None)?,
        None => {
            files::remove(file)?;
            for folder in old.iter().flat_map(|old| old.folders.iter().rev()) {
                // It stays if it has other files.
                let _ = std::fs::remove_dir(folder);
            }
        }
    }
    if !is_kept && old.is_some() {
        record.put(file, None)?;
    }
    Ok(done)
}

fn refused(file: &Path, problem: &str) -> Error {
    let shown = file.display();
    Error::failed(format!("{shown} can't be changed: {problem}. The file is unchanged"))
        .resolve(by_hand(file))
}

/// What to do about a file that the program can't change.
pub fn by_hand(file: &Path) -> String {
    format!("correct the file, and run the command again: editor {}", file.display())
}

/// The plan that adds a runtime. Errors: the text can't be changed, or has a foreign runtime of
/// that name.
fn added(
    engine: Engine,
    current: Option<&str>,
    entry: Option<&Entry>,
    runtime: &RuntimeEntry,
    others: &[String],
) -> super::Result<Plan> {
    let text = current.unwrap_or_default();
    let is_remembered = entry.is_some_and(|entry| entry.runtimes.contains(&runtime.name));
    let found = engine.program(text, &runtime.name)?;
    if let Some(program) = found.filter(|_| !is_remembered) {
        refuse_foreign(runtime, &program)?;
    }
    let original = original_of(engine, current, entry)?;
    let history = FileHistory {
        original: original.as_deref(),
        written: entry.and_then(|entry| entry.written.first()).map(String::as_str),
        others,
    };
    let after = engine.with(text, runtime, &history)?;
    if current == Some(after.as_str()) {
        return Ok(Plan { after: Some(after), entry: entry.cloned() });
    }
    let mut entry = Entry {
        original,
        written: [Some(after.as_str()), current].into_iter().flatten().map(str::to_owned).collect(),
        ..entry.cloned().unwrap_or_default()
    };
    if !is_remembered {
        entry.runtimes.push(runtime.name.clone());
    }
    Ok(Plan { after: Some(after), entry: Some(entry) })
}

/// Errors: the runtime of that name runs a program that is not ours.
fn refuse_foreign(runtime: &RuntimeEntry, program: &str) -> super::Result<()> {
    if program == runtime.program || links::is_name_of_ours(program) {
        return Ok(());
    }
    Err(format!(
        "it has a runtime {:?} that is not ours ({program:?}); choose another name with --runtime-name",
        runtime.name
    ))
}

/// The file without our changes. If other programs changed it since, their text without our
/// runtimes counts.
fn original_of(
    engine: Engine,
    current: Option<&str>,
    entry: Option<&Entry>,
) -> super::Result<Option<String>> {
    let (Some(text), Some(entry)) = (current, entry) else {
        return Ok(current.map(str::to_owned));
    };
    if entry.has_written(text) {
        return Ok(entry.original.clone());
    }
    let mut left = text.to_owned();
    for name in &entry.runtimes {
        left = engine.without(&left, name, &history_of(entry))?;
    }
    let is_gone = engine.is_empty(&left) && entry.original.is_none();
    Ok(Some(left).filter(|_| !is_gone))
}

fn history_of(entry: &Entry) -> FileHistory<'_> {
    FileHistory {
        original: entry.original.as_deref(),
        written: entry.written.first().map(String::as_str),
        others: &[],
    }
}

/// The plan that removes a runtime. Errors: the text can't be read, or the runtime is not ours.
fn removed(
    engine: Engine,
    current: Option<&str>,
    entry: Option<&Entry>,
    name: &str,
) -> super::Result<Plan> {
    let Some(text) = current else {
        return Ok(Plan { after: None, entry: None });
    };
    let nothing = Entry::default();
    let known = entry.unwrap_or(&nothing);
    let is_only = known.runtimes.iter().all(|other| other == name);
    if entry.is_some() && is_only && known.has_written(text) {
        return Ok(Plan { after: known.original.clone(), entry: None });
    }
    let after = without(engine, text, known, name)?;
    let mut entry = entry.cloned();
    if let Some(entry) = &mut entry {
        entry.runtimes.retain(|other| other != name);
        entry.written = vec![after.clone(), text.to_owned()];
    }
    let was_made = match &entry {
        Some(entry) => entry.original.is_none(),
        // The file has our name and lies in a drop-in folder.
        None => matches!(engine, Engine::Crio | Engine::Podman),
    };
    Ok(Plan {
        entry: entry.filter(|entry| !entry.runtimes.is_empty()),
        after: Some(after).filter(|after| !(was_made && engine.is_empty(after))),
    })
}

/// The text without the runtime. Errors: the runtime is not ours.
fn without(engine: Engine, text: &str, known: &Entry, name: &str) -> super::Result<String> {
    let is_remembered = known.runtimes.iter().any(|other| other == name);
    let program = engine.program(text, name)?;
    let foreign = program.as_deref().filter(|p| !links::is_name_of_ours(p));
    if let (false, Some(program)) = (is_remembered, foreign) {
        return Err(format!("its runtime {name:?} is not ours ({program:?})"));
    }
    if !is_remembered && program.is_none() {
        return Ok(text.to_owned());
    }
    let mut history = history_of(known);
    if !known.runtimes.iter().all(|other| other == name) {
        // Settings that all our runtimes share, such as CDI, stay for the other runtimes.
        history.written = None;
    }
    engine.without(text, name, &history)
}

#[cfg(test)]
mod tests;
