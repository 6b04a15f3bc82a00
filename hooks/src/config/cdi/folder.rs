//! Reads the folders of specifications. A later folder overrides an earlier one.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{name, parse, Document, Node, Syntax};
use crate::config::vendor::{summary, Mistake};
use crate::error::{Error, Result};
use crate::host::rootfs::listing::names_in;
use crate::host::rootfs::{open_regular, read_whole};
use crate::host::trust::{self, Distrust};

/// The folders that engines read, in ascending priority.
pub const DEFAULT: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Largest specification that is read, in bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// A file as it was found, with or without mistakes.
#[derive(Debug)]
pub struct SpecFile {
    pub path: PathBuf,
    /// The position of its folder. A higher one overrides a lower one.
    pub priority: usize,
    pub content: std::result::Result<Document, Broken>,
}

/// What is known about a file that can't be used.
#[derive(Debug)]
pub struct Broken {
    pub mistakes: Vec<Mistake>,
    /// The kind that its text appears to name.
    pub kind: Option<String>,
}

impl Broken {
    /// The first mistake, and how many more there are.
    pub fn summary(&self) -> String {
        summary(&self.mistakes)
    }
}

/// Reads every specification of the folders. A missing folder (`None`) has none.
/// Errors: a folder can't be read.
pub fn read(folders: &[Option<PathBuf>]) -> Result<Vec<SpecFile>> {
    let mut files = Vec::new();
    for (priority, folder) in folders.iter().enumerate() {
        if let Some(folder) = folder {
            read_folder(folder, priority, &mut files)?;
        }
    }
    Ok(files)
}

fn read_folder(folder: &Path, priority: usize, files: &mut Vec<SpecFile>) -> Result<()> {
    let shown = folder.display();
    let fail = |e: Errno| Error::failed(format!("can't read {shown}: {e}"));
    let found = match trust::open(folder) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        other => other.map_err(fail)?,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&found.fd, ".", flags, Mode::empty()).map_err(fail)?;
    let mut names = names_in(&opened).map_err(fail)?;
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    for name in names {
        let Some(syntax) = Syntax::of(&name) else {
            continue;
        };
        let path = folder.join(&name);
        let content = read_file(&opened, &name, &path, syntax, found.problem.as_ref());
        files.push(SpecFile {
            path,
            priority,
            content,
        });
    }
    Ok(())
}

fn read_file(
    folder: &OwnedFd,
    name: &str,
    path: &Path,
    syntax: Syntax,
    distrust: Option<&Distrust>,
) -> std::result::Result<Document, Broken> {
    let broken = |problem: String| Broken {
        mistakes: vec![Mistake::new("", problem)],
        kind: None,
    };
    let (bytes, own) = read_bytes(folder, name, path).map_err(|error| {
        broken(match error {
            Errno::INVAL => "not a regular file".to_owned(),
            Errno::FBIG => format!("larger than {MAX_SIZE} bytes"),
            other => format!("can't be read: {other}"),
        })
    })?;
    let text = String::from_utf8_lossy(&bytes);
    if let Some(problem) = distrust.or(own.as_ref()) {
        return Err(Broken {
            kind: kind_in(&text, syntax),
            ..broken(problem.mistake_of(path))
        });
    }
    let parsed = match &text {
        std::borrow::Cow::Borrowed(text) => parse(text, syntax),
        std::borrow::Cow::Owned(_) => Err(vec![Mistake::new("", "not valid UTF-8")]),
    };
    parsed.map_err(|mistakes| Broken {
        mistakes,
        kind: kind_in(&text, syntax),
    })
}

/// The bytes, and why a user other than root may have written them.
fn read_bytes(
    folder: &OwnedFd,
    name: &str,
    path: &Path,
) -> rustix::io::Result<(Vec<u8>, Option<Distrust>)> {
    let itself = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(folder, name, itself, Mode::empty())?;
    let stat = rustix::fs::fstat(&opened)?;
    let is_link = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink();
    let (fd, stat, problem) = if is_link {
        // Anyone who may change a folder in the link's path chooses its target.
        let found = trust::open(path)?;
        let (fd, stat) = open_regular(found.fd)?;
        (fd, stat, found.problem)
    } else {
        let (fd, stat) = open_regular(opened)?;
        let path = path.to_owned();
        let problem = trust::untrusted(&stat).map(|why| Distrust { path, why });
        (fd, stat, problem)
    };
    Ok((read_whole(&fd, &stat, MAX_SIZE)?, problem))
}

/// The kind that a text names, even if the text is malformed.
fn kind_in(text: &str, syntax: Syntax) -> Option<String> {
    let stated = Node::parse(text, syntax).ok();
    let stated = stated.as_ref().and_then(|node| node.member("kind")?.text());
    if let Some(kind) = stated {
        return Some(kind.to_owned());
    }
    text.split("kind").skip(1).find_map(|rest| {
        let rest = rest.trim_start_matches(['"', '\'']).trim_start();
        let rest = rest.strip_prefix(':')?.trim_start();
        let value = rest.trim_start_matches(['"', '\'']);
        let end = value.find(|c: char| !c.is_ascii_alphanumeric() && !"./_-".contains(c));
        let kind = &value[..end.unwrap_or(value.len())];
        name::is_kind(kind).then(|| kind.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    const GOOD: &str = r#"{"cdiVersion":"0.3.0","kind":"v.com/c","devices":[{"name":"d","containerEdits":{"env":["A=1"]}}]}"#;

    fn problem(file: &SpecFile) -> String {
        file.content
            .as_ref()
            .map_or_else(Broken::summary, |_| String::new())
    }

    #[test]
    fn files_of_a_folder_are_read_by_name_and_others_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["b.json", "a.json", "c.yaml", "d.yml", ".e.json", "f.txt"] {
            std::fs::write(path(name), GOOD).unwrap();
        }
        std::fs::create_dir(path("g.json")).unwrap();
        let huge = std::fs::File::create(path("h.json")).unwrap();
        huge.set_len(MAX_SIZE + 1).unwrap();
        std::fs::write(
            path("i.json"),
            b"{\"kind\": \"v.com/latin\", \"x\": \"\xfc\"}",
        )
        .unwrap();
        std::fs::write(path("j.json"), GOOD).unwrap();
        std::fs::set_permissions(path("j.json"), PermissionsExt::from_mode(0o666)).unwrap();
        symlink("a.json", path("k.json")).unwrap();
        let folders = [
            Some(dir.path().to_owned()),
            None,
            Some("/nowhere/cdi".into()),
        ];
        let files = read(&folders).unwrap();
        let found: Vec<_> = files
            .iter()
            .map(|f| (f.path.file_name().unwrap().to_str().unwrap(), problem(f)))
            .collect();
        let path = dir.path().join("j.json");
        let distrusted = format!(
            "is writable by everyone; correct the owner and the mode: chown -h root {0} && chmod go-w {0}",
            path.display()
        );
        let expected = [
            ("a.json", ""),
            ("b.json", ""),
            ("c.yaml", ""),
            ("g.json", "not a regular file"),
            ("h.json", "larger than 1048576 bytes"),
            ("i.json", "not valid UTF-8"),
            ("j.json", distrusted.as_str()),
            ("k.json", ""),
        ];
        let found: Vec<_> = found.iter().map(|(n, p)| (*n, p.as_str())).collect();
        assert_eq!(found, expected);
        let kind = |at: usize| files[at].content.as_ref().unwrap_err().kind.clone();
        assert_eq!(kind(5).as_deref(), Some("v.com/latin"));
        assert_eq!(kind(6).as_deref(), Some("v.com/c"));
    }

    /// A user who may write to the folder of a link's target can change the specification.
    #[test]
    fn where_a_link_leads_counts_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("cdi")).unwrap();
        std::fs::create_dir(path("open")).unwrap();
        std::fs::write(path("open/a.json"), GOOD).unwrap();
        symlink("../open/a.json", path("cdi/a.json")).unwrap();
        let read = || problem(&read(&[Some(path("cdi"))]).unwrap()[0]);
        assert_eq!(read(), "");
        std::fs::set_permissions(path("open"), PermissionsExt::from_mode(0o777)).unwrap();
        let found = read();
        assert!(found.contains("/open is writable by everyone"), "{found}");
    }

    #[test]
    fn the_kind_of_a_broken_text_is_found() {
        for (text, syntax, kind) in [
            ("{\"kind\" : \"a.com/b\", ", Syntax::Json, Some("a.com/b")),
            ("kind: a.com/b\n\t: x", Syntax::Yaml, Some("a.com/b")),
            ("  'kind': 'a/b'\n\t", Syntax::Yaml, Some("a/b")),
            ("mankind: x\n\t", Syntax::Yaml, None),
            ("", Syntax::Json, None),
        ] {
            assert_eq!(kind_in(text, syntax).as_deref(), kind, "{text}");
        }
    }
}
