//! Links with the names of NVIDIA's programs, which this program replaces.

use std::path::{Path, PathBuf};

use super::files::{draft_of, remove_drafts};
use super::lock::{self, Lock};
use super::owner::Owner;
use super::record::{Entry, Record};
use crate::error::{Error, Result};

/// The names of the links.
pub const NAMES: [&str; 7] = [
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-ctk",
    "nvidia-cdi-hook",
];
/// The name of the record, which lies beside the record of engines' files.
pub const RECORD: &str = "links.json";
/// errno(3): a link leads nowhere, or in a circle.
const NO_ENTRY: i32 = libc::ENOENT;
const LINK_LOOP: i32 = libc::ELOOP;
/// This program's own names.
const OWN: [&str; 2] = ["oci-decorator", "oci-decorator-runtime"];

/// True for the path or name of one of our programs.
pub fn is_name_of_ours(program: &str) -> bool {
    let name = Path::new(program)
        .file_name()
        .and_then(|name| name.to_str());
    name.is_some_and(|name| NAMES.contains(&name) || OWN.contains(&name))
}

/// The result for the links in a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// The target of the links.
    pub target: PathBuf,
    /// The paths of links that were made or removed.
    pub changed: Vec<PathBuf>,
    /// Notes about old links that were replaced, come back, or do not come back.
    pub notes: Vec<String>,
}

/// A link that a package left behind, and its target.
type Left = (PathBuf, PathBuf);

/// A folder for the links.
#[derive(Clone, Copy)]
pub struct Links<'a> {
    pub folder: &'a Path,
    /// Where the links lead.
    pub program: &'a Path,
    /// The record of the targets of old links that ours replace.
    pub record: &'a Path,
    /// Finds the owner of a file of the host.
    pub owner: fn(&Path) -> Owner,
}

impl Links<'_> {
    /// Makes all links, or none. A link that a package left behind is replaced and recorded.
    /// Errors: foreign files have the names; all of them are listed.
    pub fn install(&self) -> Result<Done> {
        let shown = self.folder.display();
        if !self.folder.is_dir() {
            return Err(Error::not_found(format!("{shown} is not a folder"))
                .resolve(format!("make it: mkdir -p {shown}")));
        }
        let held = self.hold(true)?;
        let target = target(self.folder, self.program);
        let (wanted, left) = self.look(&target)?;
        let mut record = Record::load(self.record)?;
        for (path, said) in &left {
            let entry = Entry {
                original: Some(said.display().to_string()),
                ..Entry::default()
            };
            record.put(&held, path, Some(entry))?;
        }
        make(&held, &target, &wanted).inspect_err(|_| {
            for (path, _) in &left {
                let _ = record.put(&held, path, None);
            }
        })?;
        let note = |(path, said): &Left| {
            let (path, said) = (path.display(), said.display());
            format!("{path} was a link to {said} that no package owns; `--remove` puts it back")
        };
        Ok(Done {
            target,
            changed: wanted,
            notes: left.iter().map(note).collect(),
        })
    }

    /// The links to make, and the targets of links that a package left behind.
    /// Errors: foreign files have the names.
    fn look(&self, target: &Path) -> Result<(Vec<PathBuf>, Vec<Left>)> {
        let (mut wanted, mut left, mut conflicts) = (Vec::new(), Vec::new(), Vec::new());
        for path in self.paths() {
            match self.what_is(&path) {
                Found::Others(hint) => conflicts.push((path, hint)),
                Found::Left(said) => {
                    left.push((path.clone(), said));
                    wanted.push(path);
                }
                Found::Ours(said) if said == target => {}
                Found::Ours(_) | Found::Nothing => wanted.push(path),
            }
        }
        refuse(&conflicts)?;
        Ok((wanted, left))
    }

    /// Removes the links that lead to this program, and restores the links that they replaced.
    /// Other files stay.
    pub fn remove(&self) -> Result<Done> {
        let held = self.hold(false)?;
        let mut record = Record::load(self.record)?;
        let (mut changed, mut notes) = (Vec::new(), Vec::new());
        for path in self.paths() {
            remove_drafts(&held, &path);
            let before = record.get(&path).and_then(|entry| entry.original.clone());
            let found = self.what_is(&path);
            notes.extend(
                before
                    .as_ref()
                    .and_then(|old| what_becomes(&path, old, &found)),
            );
            if matches!(found, Found::Ours(_)) {
                let done = match &before {
                    Some(old) => replace(&path, Path::new(old)),
                    None => std::fs::remove_file(&path),
                };
                done.map_err(|error| failed("remove", &path, &error))?;
                changed.push(path.clone());
            }
            if before.is_some() {
                record.put(&held, &path, None)?;
            }
        }
        Ok(Done {
            target: target(self.folder, self.program),
            changed,
            notes,
        })
    }

    fn paths(&self) -> [PathBuf; 7] {
        NAMES.map(|name| self.folder.join(name))
    }

    /// Locks the folder. Locks the record's folder only if there is or will be a record, because
    /// the host's state may be read-only.
    fn hold(&self, makes: bool) -> Result<Lock> {
        let is_left = |path: &PathBuf| matches!(self.what_is(path), Found::Left(_));
        let link = self.folder.join(NAMES[0]);
        if self.record.exists() || makes && self.paths().iter().any(is_left) {
            lock::take(&[&link, self.record], makes)
        } else {
            lock::take(&[&link], makes)
        }
    }

    fn what_is(&self, path: &Path) -> Found {
        if std::fs::symlink_metadata(path).is_err() {
            return Found::Nothing;
        }
        let Ok(said) = std::fs::read_link(path) else {
            return Found::Others(None);
        };
        let to = std::fs::canonicalize(path);
        let is_program = to
            .as_ref()
            .is_ok_and(|to| Some(to) == std::fs::canonicalize(self.program).ok().as_ref());
        let is_lost = to
            .as_ref()
            .is_err_and(|error| matches!(error.raw_os_error(), Some(NO_ENTRY | LINK_LOOP)));
        // A link to a removed installation leads nowhere.
        let is_old = is_lost && said.file_name().is_some_and(|name| name == OWN[0]);
        if is_program || is_old {
            return Found::Ours(said);
        }
        if !is_lost && !self.is_one_of_them(&said) {
            return Found::Others(None);
        }
        match (self.owner)(path) {
            Owner::Nothing => Found::Left(said),
            Owner::Package(package) => Found::Others(Some(format!(
                "remove the package {package}, which owns {}",
                path.display()
            ))),
            Owner::Alternatives(name) => Found::Others(Some(format!(
                "take it out of the alternatives: update-alternatives --remove-all {name}"
            ))),
            Owner::Unknown(problem) => Found::Others(Some(format!(
                "it is not known whether a package owns {0} ({problem}); if none does, rm {0}",
                path.display()
            ))),
        }
    }

    /// True for a link to another of the names in this folder, which becomes ours too or is refused
    /// separately.
    fn is_one_of_them(&self, said: &Path) -> bool {
        let to = self.folder.join(said);
        let name = to.file_name().and_then(|name| name.to_str());
        let own = |folder: &Path| std::fs::canonicalize(folder).ok();
        name.is_some_and(|name| NAMES.contains(&name))
            && to.parent().and_then(own) == own(self.folder)
    }
}

/// Refuses conflicts. Errors: there are some.
fn refuse(conflicts: &[(PathBuf, Option<String>)]) -> Result<()> {
    let Some((first, _)) = conflicts.first() else {
        return Ok(());
    };
    let shown: Vec<_> = conflicts
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    let mut hints = conflicts.iter().filter_map(|(_, hint)| hint.clone());
    let hint = hints.next().unwrap_or_else(|| {
        let first = first.display();
        format!("remove the package that brought them, which one of these names: dpkg -S {first}; rpm -qf {first}")
    });
    Err(Error::failed(format!(
        "nothing was changed, because these files belong to other programs: {}",
        shown.join(", ")
    ))
    .resolve(format!(
        "{hint}; or choose another folder: oci-decorator install-links /usr/local/bin"
    )))
}

/// The note about an old link that ours replaced.
fn what_becomes(path: &Path, old: &str, found: &Found) -> Option<String> {
    let path = path.display();
    match found {
        Found::Ours(_) => Some(format!("{path} is a link to {old} again")),
        Found::Left(said) if said == Path::new(old) => None,
        Found::Nothing => Some(format!(
            "{path} was removed by another program: its old link to {old} is not restored"
        )),
        Found::Left(_) | Found::Others(_) => Some(format!(
            "{path} belongs to another program now: its old link to {old} is not restored"
        )),
    }
}

fn make(held: &Lock, target: &Path, paths: &[PathBuf]) -> Result<()> {
    let mut made: Vec<(&PathBuf, Option<PathBuf>)> = Vec::new();
    for path in paths {
        remove_drafts(held, path);
        let old = std::fs::read_link(path).ok();
        if let Err(error) = replace(path, target) {
            for (path, old) in made {
                let _ = match old {
                    Some(old) => replace(path, &old),
                    None => std::fs::remove_file(path),
                };
            }
            return Err(failed("make", path, &error));
        }
        made.push((path, old));
    }
    Ok(())
}

/// Replaces a link by one rename.
fn replace(path: &Path, target: &Path) -> std::io::Result<()> {
    let draft = draft_of(path);
    std::os::unix::fs::symlink(target, &draft)?;
    std::fs::rename(&draft, path).inspect_err(|_| _ = std::fs::remove_file(&draft))
}

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::of_file(&format!("{verb} the link"), path, error)
}

enum Found {
    Nothing,
    /// A link to this program, with its target.
    Ours(PathBuf),
    /// A link that a package left behind, with its target.
    Left(PathBuf),
    /// A foreign file, with a special hint about what to do.
    Others(Option<String>),
}

/// The target of the links. In the program's folder it is only a name, which also works if the
/// folder is mounted elsewhere.
fn target(folder: &Path, program: &Path) -> PathBuf {
    let own = program.parent().map(std::fs::canonicalize);
    let is_beside = match (own, std::fs::canonicalize(folder)) {
        (Some(Ok(own)), Ok(folder)) => own == folder,
        _ => false,
    };
    match program.file_name() {
        Some(name) if is_beside => name.into(),
        _ => program.to_owned(),
    }
}

#[cfg(test)]
mod tests;
