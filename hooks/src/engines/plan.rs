//! Decides what an engine's file becomes. Pure, except for [`Job`], which reads, decides and
//! writes.

use std::path::{Path, PathBuf};

use super::lock::{self, Lock};
use super::record::{Entry, Record};
use super::{files, links, Beside, Engine, Wanted};
use crate::error::{Error, Result};

/// A file to change.
#[derive(Debug)]
pub struct Job {
    pub engine: Engine,
    pub file: PathBuf,
    /// Other files that the engine reads, see [`Beside`].
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

impl Job {
    /// Adds the runtime.
    pub fn enter(&self, wanted: &Wanted) -> Result<Done> {
        self.run(true, |text, entry| {
            entered(self.engine, text, entry, wanted, &self.others)
        })
    }

    /// Removes a runtime.
    pub fn take_out(&self, name: &str) -> Result<Done> {
        self.run(false, |text, entry| {
            taken_out(self.engine, text, entry, name)
        })
    }

    /// Reads, decides and writes while other processes wait.
    fn run(
        &self,
        makes_folders: bool,
        decide: impl Fn(Option<&str>, Option<&Entry>) -> super::Result<Plan>,
    ) -> Result<Done> {
        let lock = || lock::take(&[&self.record, &self.file], makes_folders);
        let held = (!self.is_dry).then(lock).transpose()?;
        let before = files::read(&self.file)?;
        let mut record = Record::load(&self.record)?;
        let entry = record.get(&self.file).cloned();
        let plan = decide(before.as_deref(), entry.as_ref());
        let mut plan = plan.map_err(|problem| refused(&self.file, &problem))?;
        if let Some(held) = &held {
            if let Some(new) = &mut plan.entry {
                new.folders = record.folders_for(held, &self.file);
            }
            self.make(held, &mut record, before.as_deref(), &plan, entry.as_ref())?;
        }
        Ok(Done {
            file: self.file.clone(),
            before,
            after: plan.after,
        })
    }

    /// Writes the record first, so that the next run understands a run that was killed in between.
    fn make(
        &self,
        held: &Lock,
        record: &mut Record,
        before: Option<&str>,
        plan: &Plan,
        old: Option<&Entry>,
    ) -> Result<()> {
        let keeps = plan.entry.is_some();
        if keeps && plan.entry.as_ref() != old {
            record.put(held, &self.file, plan.entry.clone())?;
        }
        match &plan.after {
            after if after.as_deref() == before => {}
            Some(text) => files::write(held, &self.file, text, None)?,
            None => {
                files::remove(held, &self.file)?;
                files::remove_folders(old.map_or(&[][..], |old| &old.folders));
            }
        }
        if !keeps && old.is_some() {
            record.put(held, &self.file, None)?;
        }
        Ok(())
    }
}

fn refused(file: &Path, problem: &str) -> Error {
    let shown = file.display();
    Error::failed(format!(
        "{shown} can't be changed: {problem}. The file is unchanged"
    ))
    .resolve(by_hand(file))
}

/// What to do about a file that the program can't change.
pub fn by_hand(file: &Path) -> String {
    format!(
        "correct the file, and run the command again: editor {}",
        file.display()
    )
}

/// The new text of a file, and its entry in the record.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    after: Option<String>,
    entry: Option<Entry>,
}

/// The plan that adds a runtime. Errors: the text can't be changed, or has a foreign runtime of
/// that name.
fn entered(
    engine: Engine,
    current: Option<&str>,
    entry: Option<&Entry>,
    wanted: &Wanted,
    others: &[String],
) -> super::Result<Plan> {
    let text = current.unwrap_or_default();
    let is_remembered = entry.is_some_and(|entry| entry.runtimes.contains(&wanted.name));
    let found = engine.program(text, &wanted.name)?;
    if let Some(program) = found.filter(|_| !is_remembered) {
        refuse_foreign(wanted, &program)?;
    }
    let original = original_of(engine, current, entry)?;
    let beside = Beside {
        original: original.as_deref(),
        written: entry
            .and_then(|entry| entry.written.first())
            .map(String::as_str),
        others,
    };
    let after = engine.with(text, wanted, &beside)?;
    if current == Some(after.as_str()) {
        return Ok(Plan {
            after: Some(after),
            entry: entry.cloned(),
        });
    }
    let mut entry = Entry {
        original,
        written: [Some(after.as_str()), current]
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect(),
        ..entry.cloned().unwrap_or_default()
    };
    if !is_remembered {
        entry.runtimes.push(wanted.name.clone());
    }
    Ok(Plan {
        after: Some(after),
        entry: Some(entry),
    })
}

/// Errors: the runtime of that name runs a program that is not ours.
fn refuse_foreign(wanted: &Wanted, program: &str) -> super::Result<()> {
    if program == wanted.program || links::is_name_of_ours(program) {
        return Ok(());
    }
    Err(format!(
        "it has a runtime {:?} that is not ours ({program:?}); choose another name with --runtime-name",
        wanted.name
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
        left = engine.without(&left, name, &beside(entry))?;
    }
    let is_gone = engine.is_empty(&left) && entry.original.is_none();
    Ok(Some(left).filter(|_| !is_gone))
}

fn beside(entry: &Entry) -> Beside<'_> {
    Beside {
        original: entry.original.as_deref(),
        written: entry.written.first().map(String::as_str),
        others: &[],
    }
}

/// The plan that removes a runtime. Errors: the text can't be read, or the runtime is not ours.
fn taken_out(
    engine: Engine,
    current: Option<&str>,
    entry: Option<&Entry>,
    name: &str,
) -> super::Result<Plan> {
    let Some(text) = current else {
        return Ok(Plan {
            after: None,
            entry: None,
        });
    };
    let nothing = Entry::default();
    let known = entry.unwrap_or(&nothing);
    let is_only = known.runtimes.iter().all(|other| other == name);
    if entry.is_some() && is_only && known.has_written(text) {
        return Ok(Plan {
            after: known.original.clone(),
            entry: None,
        });
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
    let mut beside = beside(known);
    if !known.runtimes.iter().all(|other| other == name) {
        // Settings that all our runtimes share, such as CDI, stay for the other runtimes.
        beside.written = None;
    }
    engine.without(text, name, &beside)
}

#[cfg(test)]
mod tests;
