//! Reads the files of a folder of configuration. Whatever is wrong with one is its mistake, and all
//! mistakes of a file are collected: a user other than root may have written it, it can't be read,
//! and what its reader finds.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::host::rootfs::{names_in, open_regular, read_whole};
use crate::host::trust::{self, untrusted, Distrust};
use crate::model::vendor::Mistake;

/// Largest file that is read, in bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// A file as it was found.
#[derive(Debug)]
pub struct ConfigFile<T> {
    pub name: String,
    pub path: PathBuf,
    pub content: Result<T, Unusable>,
}

/// A file that can't be used.
#[derive(Debug)]
pub struct Unusable {
    pub mistakes: Vec<Mistake>,
    /// As much of its text as could be read, in which its purpose may be found.
    pub text: String,
}

/// Reads the files with these names, sorted. Errors: the folder can't be read.
pub fn read<T>(
    folder: &Path,
    is_wanted: impl Fn(&str) -> bool,
    parse: impl Fn(&str, &str) -> Result<T, Vec<Mistake>>,
) -> rustix::io::Result<Vec<ConfigFile<T>>> {
    let found = trust::open(folder)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&found.fd, ".", flags, Mode::empty())?;
    let mut names = names_in(&opened)?;
    // Editors and package managers leave files with a dot in front behind.
    names.retain(|name| !name.starts_with('.') && is_wanted(name));
    names.sort();
    let read = |name: String| {
        let path = folder.join(&name);
        let content = read_file(&opened, &path, &name, found.problem.as_ref());
        let content = content.and_then(|(text, mistakes)| match (parse(&name, &text), mistakes) {
            (Ok(content), mistakes) if mistakes.is_empty() => Ok(content),
            (parsed, mut mistakes) => {
                mistakes.extend(parsed.err().unwrap_or_default());
                Err(Unusable { mistakes, text })
            }
        });
        ConfigFile { name, path, content }
    };
    Ok(names.into_iter().map(read).collect())
}

/// The text, and the mistakes that are known without it.
fn read_file(
    folder: &OwnedFd,
    path: &Path,
    name: &str,
    distrust: Option<&Distrust>,
) -> Result<(String, Vec<Mistake>), Unusable> {
    let opened = open(folder, path, name).and_then(|opened| {
        let bytes = read_whole(&opened.fd, &opened.stat, MAX_SIZE)?;
        Ok((bytes, opened.distrust))
    });
    let (bytes, own) = opened.map_err(|error| {
        let (problem, text) = match error {
            Errno::INVAL => ("not a regular file".to_owned(), String::new()),
            Errno::FBIG => (format!("larger than {MAX_SIZE} bytes"), beginning(folder, path, name)),
            other => (format!("can't be read: {other}"), String::new()),
        };
        let mistakes = vec![Mistake::new("", problem)];
        Unusable { mistakes, text }
    })?;
    let mistake = |distrust: &Distrust| Mistake::new("", distrust.mistake_of(path));
    let mut mistakes: Vec<_> = distrust.into_iter().chain(&own).map(mistake).collect();
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, mistakes)),
        Err(error) => {
            mistakes.push(Mistake::new("", "not valid UTF-8"));
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            Err(Unusable { mistakes, text })
        }
    }
}

/// An open file, and why a user other than root may have written it.
struct Opened {
    fd: OwnedFd,
    stat: Stat,
    distrust: Option<Distrust>,
}

fn open(folder: &OwnedFd, path: &Path, name: &str) -> rustix::io::Result<Opened> {
    // Only regular files are opened, because opening a device can have an effect.
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
            let fd = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?;
            let stat = rustix::fs::fstat(&fd)?;
            let path = path.to_owned();
            let distrust = untrusted(&stat).map(|why| Distrust { path, why });
            Ok(Opened { fd, stat, distrust })
        }
        // Anyone who may change a folder in the link's path chooses its target.
        FileType::Symlink => {
            let found = trust::open(path)?;
            let (fd, stat) = open_regular(found.fd)?;
            let distrust = found.problem;
            Ok(Opened { fd, stat, distrust })
        }
        _ => Err(Errno::INVAL),
    }
}

/// The beginning of a file that is too large.
fn beginning(folder: &OwnedFd, path: &Path, name: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(opened) = open(folder, path, name) {
        // The bytes before an error are good enough.
        let _ = File::from(opened.fd).take(MAX_SIZE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_that_is_too_large_the_beginning_is_known() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x".repeat(1_048_577)).unwrap();
        let parse = |_: &str, _: &str| -> Result<(), _> { panic!("it is parsed") };
        let found = read(dir.path(), |_| true, parse).unwrap();
        let unusable = found[0].content.as_ref().unwrap_err();
        assert_eq!(unusable.text, "x".repeat(1_048_576));
    }
}
