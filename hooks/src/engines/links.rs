//! Links with the names of NVIDIA's programs, which this program replaces.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::host::files;

pub const NAMES: [&str; 8] = [
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-cli",
];
const OWN: [&str; 2] = ["oci-decorator", "oci-decorator-runtime"];

pub fn is_name_of_ours(program: &str) -> bool {
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| NAMES.contains(&name) || OWN.contains(&name))
}

pub struct Links<'a> {
    folder: &'a Path,
    program: &'a Path,
    pub target: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
enum LinkState {
    Missing,
    /// It leads to this program, or to an earlier installation of it.
    Ours,
    /// A link that leads nowhere, or to another of the names, such as the one that NVIDIA's package
    /// leaves until it is purged.
    Left,
    Foreign,
}

impl<'a> Links<'a> {
    /// In the program's folder the target is only a name, which also works if the folder is mounted
    /// elsewhere.
    pub fn new(folder: &'a Path, program: &'a Path) -> Self {
        let own = program.parent().map(std::fs::canonicalize);
        let is_beside = match (own, std::fs::canonicalize(folder)) {
            (Some(Ok(own)), Ok(folder)) => own == folder,
            _ => false,
        };
        let name = program.file_name().filter(|_| is_beside);
        Self { folder, program, target: name.map_or(program.to_owned(), PathBuf::from) }
    }

    /// Makes all links, or none. Returns those that were made.
    /// Errors: foreign files have the names; all of them are listed.
    pub fn install(&self) -> Result<Vec<PathBuf>> {
        let shown = self.folder.display();
        if !self.folder.is_dir() {
            return Err(Error::not_found(format!("{shown} is not a folder"))
                .resolve(format!("make it: mkdir -p {shown}")));
        }
        let _held = files::lock()?;
        let is_foreign = |path: &PathBuf| self.state_of(path) == LinkState::Foreign;
        refuse(&self.paths().into_iter().filter(is_foreign).collect::<Vec<_>>())?;
        let mut made = Vec::new();
        for path in self.paths() {
            match std::fs::read_link(&path) {
                Ok(target) if target == self.target => continue,
                Ok(_) => std::fs::remove_file(&path),
                Err(_) => Ok(()),
            }
            .and_then(|()| std::os::unix::fs::symlink(&self.target, &path))
            .map_err(|error| Error::of_file("make the link", &path, &error))?;
            made.push(path);
        }
        Ok(made)
    }

    /// Removes the links that lead to this program, and returns them. Other files stay.
    pub fn remove(&self) -> Result<Vec<PathBuf>> {
        let _held = files::lock()?;
        let is_ours = |path: &PathBuf| self.state_of(path) == LinkState::Ours;
        let ours: Vec<_> = self.paths().into_iter().filter(is_ours).collect();
        for path in &ours {
            let removed = std::fs::remove_file(path);
            removed.map_err(|error| Error::of_file("remove the link", path, &error))?;
        }
        Ok(ours)
    }

    fn paths(&self) -> [PathBuf; 8] {
        NAMES.map(|name| self.folder.join(name))
    }

    fn state_of(&self, path: &Path) -> LinkState {
        if std::fs::symlink_metadata(path).is_err() {
            return LinkState::Missing;
        }
        let Ok(target) = std::fs::read_link(path) else {
            return LinkState::Foreign;
        };
        let name = target.file_name().and_then(|name| name.to_str());
        let is_name = |names: &[&str]| name.is_some_and(|name| names.contains(&name));
        match std::fs::canonicalize(path) {
            Ok(to) if std::fs::canonicalize(self.program).is_ok_and(|own| own == to) => {
                LinkState::Ours
            }
            Err(_) if is_name(&OWN[..1]) => LinkState::Ours,
            Err(_) => LinkState::Left,
            // What becomes of that name becomes of this one.
            Ok(_) if is_name(&NAMES) && self.is_here(&target) => LinkState::Left,
            Ok(_) => LinkState::Foreign,
        }
    }

    /// True for a target in the folder of the links.
    fn is_here(&self, target: &Path) -> bool {
        let real = |folder: &Path| std::fs::canonicalize(folder).ok();
        let folder = self.folder.join(target).parent().and_then(real);
        folder.is_some() && folder == real(self.folder)
    }
}

fn refuse(foreign: &[PathBuf]) -> Result<()> {
    let Some(first) = foreign.first() else {
        return Ok(());
    };
    let shown: Vec<_> = foreign.iter().map(|path| path.display().to_string()).collect();
    let first = first.display();
    Err(Error::failed(format!(
        "nothing was changed, because these files belong to other programs: {}",
        shown.join(", ")
    ))
    .resolve(format!(
        "remove the package that brought them, which one of these names: dpkg -S {first}; rpm -qf {first}; or choose another folder: oci-decorator install-links /usr/local/bin"
    )))
}
