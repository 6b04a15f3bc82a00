//! The names under which this program takes the place of NVIDIA's programs.

use std::path::{Path, PathBuf};

use super::files::{draft_of, remove_drafts};
use super::lock::{self, Lock};
use crate::error::{Error, Result};

/// Links that are made.
pub const NAMES: [&str; 7] = [
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-ctk",
    "nvidia-cdi-hook",
];
/// This program's own names.
const OWN: [&str; 2] = ["oci-decorator", "oci-decorator-runtime"];

/// True for a path or name of one of our programs.
pub fn is_name_of_ours(program: &str) -> bool {
    let name = Path::new(program)
        .file_name()
        .and_then(|name| name.to_str());
    name.is_some_and(|name| NAMES.contains(&name) || OWN.contains(&name))
}

/// What became of the links in a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// What the links say.
    pub target: PathBuf,
    /// Paths of those that were made or removed.
    pub changed: Vec<PathBuf>,
}

/// Makes all of the links, or none. Errors: files of others have the names, all of them named.
pub fn install(folder: &Path, program: &Path) -> Result<Done> {
    let shown = folder.display();
    if !folder.is_dir() {
        return Err(Error::not_found(format!("{shown} is not a folder"))
            .resolve(format!("make it: mkdir -p {shown}")));
    }
    let held = lock::take(&[&folder.join(NAMES[0])], false)?;
    let target = target(folder, program);
    let mut wanted = Vec::new();
    let mut conflicts = Vec::new();
    for path in NAMES.map(|name| folder.join(name)) {
        match what_is(&path, program) {
            Found::Others => conflicts.push(path.display().to_string()),
            Found::Ours(said) if said == target => {}
            Found::Ours(_) | Found::Nothing => wanted.push(path),
        }
    }
    if !conflicts.is_empty() {
        return Err(Error::failed(format!(
            "files of others have the names: {}",
            conflicts.join(", ")
        ))
        .resolve(format!(
            "remove the package that brought them (`dpkg -S {0}` or `rpm -qf {0}` says which), or take another folder; nothing was changed",
            conflicts[0]
        )));
    }
    make(&held, &target, &wanted)?;
    Ok(Done {
        target,
        changed: wanted,
    })
}

/// Removes the links that lead to this program; all else stays.
pub fn remove(folder: &Path, program: &Path) -> Result<Done> {
    let held = lock::take(&[&folder.join(NAMES[0])], false)?;
    let mut changed = Vec::new();
    for path in NAMES.map(|name| folder.join(name)) {
        remove_drafts(&held, &path);
        if matches!(what_is(&path, program), Found::Ours(_)) {
            std::fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))?;
            changed.push(path);
        }
    }
    Ok(Done {
        target: target(folder, program),
        changed,
    })
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

/// A link takes the place of another by one rename.
fn replace(path: &Path, target: &Path) -> std::io::Result<()> {
    let draft = draft_of(path);
    std::os::unix::fs::symlink(target, &draft)?;
    std::fs::rename(&draft, path).inspect_err(|_| _ = std::fs::remove_file(&draft))
}

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> Error {
    let shown = path.display();
    Error::failed(format!("can't {verb} the link {shown}: {error}")).resolve("run it as root")
}

enum Found {
    Nothing,
    /// A link to us; what it says.
    Ours(PathBuf),
    Others,
}

fn what_is(path: &Path, program: &Path) -> Found {
    if std::fs::symlink_metadata(path).is_err() {
        return Found::Nothing;
    }
    let Ok(said) = std::fs::read_link(path) else {
        return Found::Others;
    };
    let to = std::fs::canonicalize(path);
    let is_program = to
        .as_ref()
        .is_ok_and(|to| Some(to) == std::fs::canonicalize(program).ok().as_ref());
    // One of an installation that is gone leads nowhere.
    let is_left = to.is_err() && said.file_name().is_some_and(|name| name == OWN[0]);
    if is_program || is_left {
        Found::Ours(said)
    } else {
        Found::Others
    }
}

/// Beside the program, its name is enough, and holds when the folder is mounted elsewhere.
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
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn listing(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn host() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let program = dir.path().join("bin/oci-decorator");
        std::fs::write(&program, "x").unwrap();
        (dir, program)
    }

    #[test]
    fn links_come_once_and_go() {
        let (dir, program) = host();
        let bin = dir.path().join("bin");
        let done = install(&bin, &program).unwrap();
        assert_eq!(
            (done.target.to_str(), done.changed.len()),
            (Some("oci-decorator"), 7)
        );
        assert_eq!(listing(&bin).len(), 8);
        assert_eq!(
            std::fs::read_to_string(bin.join("nvidia-ctk")).unwrap(),
            "x"
        );
        assert_eq!(install(&bin, &program).unwrap().changed.len(), 0);
        assert_eq!(remove(&bin, &program).unwrap().changed.len(), 7);
        assert_eq!(listing(&bin), ["oci-decorator"]);
        assert_eq!(remove(&bin, &program).unwrap().changed.len(), 0);
    }

    #[test]
    fn elsewhere_they_are_absolute_and_old_ones_are_replaced() {
        let (dir, program) = host();
        let other = dir.path().join("other");
        let error = install(&other, &program).unwrap_err();
        assert!(error.message.ends_with("is not a folder"), "{error}");
        std::fs::create_dir(&other).unwrap();
        symlink("/gone/oci-decorator", other.join("nvidia-ctk")).unwrap();
        let done = install(&other, &program).unwrap();
        assert_eq!((&done.target, done.changed.len()), (&program, 7));
        assert_eq!(
            std::fs::read_link(other.join("nvidia-ctk")).unwrap(),
            program
        );
    }

    #[test]
    fn files_of_others_stay_and_then_there_is_no_link_at_all() {
        let (dir, program) = host();
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("nvidia-ctk"), "theirs").unwrap();
        symlink("nvidia-ctk", other.join("nvidia-cdi-hook")).unwrap();
        let error = install(&other, &program).unwrap_err();
        assert!(error.message.contains("/nvidia-ctk, "), "{error}");
        assert!(error.message.ends_with("/nvidia-cdi-hook"), "{error}");
        assert!(error.resolution.unwrap().contains("dpkg -S"));
        assert_eq!(remove(&other, &program).unwrap().changed.len(), 0);
        assert_eq!(listing(&other), ["nvidia-cdi-hook", "nvidia-ctk"]);
    }

    #[test]
    fn what_was_made_goes_where_the_rest_can_not_be_made() {
        let (dir, _) = host();
        let bin = dir.path().join("bin");
        let paths = [bin.join("one"), bin.join("two"), bin.join("none/three")];
        symlink("before", &paths[1]).unwrap();
        let held = lock::take(&[&paths[0]], false).unwrap();
        let error = make(&held, Path::new("oci-decorator"), &paths).unwrap_err();
        assert!(error.message.contains("none/three"), "{error}");
        assert_eq!(listing(&bin), ["oci-decorator", "two"]);
        assert_eq!(std::fs::read_link(&paths[1]).unwrap(), Path::new("before"));
    }

    #[test]
    fn names_of_ours() {
        for name in [
            "/usr/bin/oci-decorator-runtime",
            "nvidia-container-runtime",
            "/a/nvidia-ctk",
        ] {
            assert!(is_name_of_ours(name), "{name}");
        }
        for name in [
            "",
            "/",
            "/usr/bin/runc",
            "/oci-decorator/x",
            "oci-decorator-x",
        ] {
            assert!(!is_name_of_ours(name), "{name}");
        }
    }
}
