//! Which files a program that runs as root may trust.
//!
//! A file that only root may write can still be replaced by a user who may rename a folder above
//! it. So a path is walked from the root, by descriptors, and every folder and link in it counts.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Links in one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// The file that a path leads to.
#[derive(Debug)]
pub struct OpenedPath {
    /// Opened with `O_PATH`.
    pub fd: OwnedFd,
    /// The first step of the path that a user other than root may change.
    pub problem: Option<Distrust>,
}

/// A folder, link or file that a user other than root may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distrust {
    pub path: PathBuf,
    /// What is wrong with its owner or mode.
    pub why: &'static str,
}

impl Distrust {
    /// What to do about it.
    pub fn resolution(&self) -> String {
        let path = self.path.display();
        format!("correct the owner and the mode: chown -h root {path} && chmod go-w {path}")
    }

    /// The mistake of a file, in a message that begins with the file's name.
    pub fn mistake_of(&self, file: &Path) -> String {
        let resolution = self.resolution();
        if self.path == file {
            format!("{}; {resolution}", self.why)
        } else {
            format!("{self}; {resolution}")
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.why)
    }
}

/// Opens a file or folder, and examines every step of its path.
pub fn open(path: &Path) -> rustix::io::Result<OpenedPath> {
    let path = std::path::absolute(path).map_err(|_| Errno::NOENT)?;
    let mut walk = Walk::begin()?;
    walk.push(&path);
    let mut links = 0;
    while let Some(step) = walk.steps.pop() {
        if let Some(target) = walk.step(step)? {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            if target.is_absolute() {
                walk.begin_again()?;
            }
            walk.push(&target);
        }
    }
    Ok(OpenedPath { fd: walk.at, problem: walk.problem })
}

struct Walk {
    at: OwnedFd,
    shown: PathBuf,
    /// The remaining steps; the next one is the last.
    steps: Vec<OsString>,
    problem: Option<Distrust>,
}

impl Walk {
    fn begin() -> rustix::io::Result<Self> {
        let mut walk = Self { at: root()?, shown: "/".into(), steps: Vec::new(), problem: None };
        walk.judge(&rustix::fs::fstat(&walk.at)?);
        Ok(walk)
    }

    fn begin_again(&mut self) -> rustix::io::Result<()> {
        self.at = root()?;
        self.shown = "/".into();
        Ok(())
    }

    fn push(&mut self, path: &Path) {
        let steps = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        });
        self.steps.extend(steps);
    }

    /// Goes one step. For a link, returns its target.
    fn step(&mut self, name: OsString) -> rustix::io::Result<Option<PathBuf>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.at, &name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if name == ".." {
            self.shown.pop();
        } else {
            self.shown.push(name);
        }
        self.judge(&stat);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            self.at = fd;
            return Ok(None);
        }
        self.shown.pop();
        let target = rustix::fs::readlinkat(&fd, "", Vec::new())?;
        Ok(Some(OsString::from_vec(target.into_bytes()).into()))
    }

    fn judge(&mut self, stat: &Stat) {
        if self.problem.is_none() {
            let path = self.shown.clone();
            self.problem = untrusted(stat).map(|why| Distrust { path, why });
        }
    }
}

fn root() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty())
}

/// Why a root program must not trust this file, folder or link. `None`: it may.
pub fn untrusted(stat: &Stat) -> Option<&'static str> {
    let mode = stat.st_mode;
    let kind = FileType::from_raw_mode(mode);
    // In a sticky folder, users can't replace other users' files. A link has no mode.
    let keeps = kind == FileType::Directory && mode & 0o1000 != 0 || kind == FileType::Symlink;
    let own = rustix::process::geteuid().as_raw();
    if !owner_is_trusted(stat.st_uid, own, unmapped_root()) {
        Some("is not owned by root")
    } else if mode & 0o002 != 0 && !keeps {
        Some("is writable by everyone")
    } else if mode & 0o020 != 0 && stat.st_gid != 0 && !keeps {
        Some("is writable by a group")
    } else {
        None
    }
}

fn owner_is_trusted(uid: u32, own: u32, unmapped_root: Option<u32>) -> bool {
    uid == 0 || uid == own || Some(uid) == unmapped_root
}

/// As whom the host's root appears here. In a rootless engine's user namespace that is the overflow
/// user, and nothing there has more rights than the user. Where the host's root is mapped, other
/// users may appear as the overflow user, which is not trusted.
fn unmapped_root() -> Option<u32> {
    static UID: OnceLock<Option<u32>> = OnceLock::new();
    // The kernel's settings belong to the host's root.
    *UID.get_or_init(|| Some(rustix::fs::stat("/proc/sys/kernel").ok()?.st_uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, set_permissions, write, Permissions};
    use std::os::unix::fs::{chown, symlink, PermissionsExt};

    fn mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A file in two folders, all trusted.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        for folder in ["a", "a/b"] {
            create_dir(path.join(folder)).unwrap();
            mode(&path.join(folder), 0o755);
        }
        write(path.join("a/b/file"), "").unwrap();
        mode(&path.join("a/b/file"), 0o644);
        (dir, path)
    }

    fn problem(path: &Path) -> Option<String> {
        open(path).unwrap().problem.map(|found| found.to_string())
    }

    #[test]
    fn as_many_links_are_followed_as_the_kernel_follows() {
        let (_dir, root) = tree();
        let mut last = root.join("a/b/file");
        for number in 0..=MAX_LINKS {
            assert_eq!(open(&last).is_ok(), std::fs::metadata(&last).is_ok(), "{number}");
            let link = root.join(number.to_string());
            symlink(&last, &link).unwrap();
            last = link;
        }
        assert_eq!(open(&last).unwrap_err(), Errno::LOOP);
        assert!(std::fs::metadata(&last).is_err());
    }

    #[test]
    fn a_user_trusts_root_and_own_files() {
        let is_trusted = |uid| owner_is_trusted(uid, 1000, Some(65_534));
        assert_eq!([0, 1000, 65_534, 1001].map(is_trusted), [true, true, true, false]);
    }

    #[test]
    fn every_step_of_the_way_counts() {
        let (_dir, root) = tree();
        let file = root.join("a/b/file");
        assert_eq!(problem(&file), None);
        for (step, bits, expected) in [
            ("a/b/file", 0o646, Some("is writable by everyone")),
            ("a/b", 0o777, Some("is writable by everyone")),
            ("a", 0o757, Some("is writable by everyone")),
            ("a", 0o1777, None),
            ("a/b/file", 0o1646, Some("is writable by everyone")),
        ] {
            let step = root.join(step);
            mode(&step, bits);
            let expected = expected.map(|problem| format!("{} {problem}", step.display()));
            assert_eq!(problem(&file), expected, "{bits:o}");
            mode(&step, 0o755);
        }
    }

    #[test]
    fn other_owners_and_groups_are_not_trusted() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "chown needs root");
            return;
        }
        let (_dir, root) = tree();
        let (folder, file) = (root.join("a"), root.join("a/b/file"));
        let shown = folder.display();
        chown(&folder, Some(65534), None).unwrap();
        assert_eq!(problem(&file), Some(format!("{shown} is not owned by root")));
        chown(&folder, Some(0), Some(12345)).unwrap();
        assert_eq!(problem(&file), None);
        mode(&folder, 0o775);
        assert_eq!(problem(&file), Some(format!("{shown} is writable by a group")));
        chown(&folder, None, Some(0)).unwrap();
        assert_eq!(problem(&file), None, "root's own group");
        // Another user's link in a sticky folder is not trusted.
        mode(&folder, 0o1777);
        let link = root.join("a/link");
        symlink("b", &link).unwrap();
        assert_eq!(problem(&root.join("a/link/file")), None);
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        let expected = format!("{} is not owned by root", link.display());
        assert_eq!(problem(&root.join("a/link/file")), Some(expected));
    }

    #[test]
    fn links_are_followed_and_where_they_lead_counts() {
        let (_dir, root) = tree();
        create_dir(root.join("c")).unwrap();
        symlink("../a/./b", root.join("c/relative")).unwrap();
        symlink(root.join("a/b"), root.join("c/absolute")).unwrap();
        for name in ["relative", "absolute"] {
            let path = root.join("c").join(name).join("file");
            let found = open(&path).unwrap();
            let (own, other) =
                (rustix::fs::fstat(&found.fd).unwrap(), rustix::fs::stat(&path).unwrap());
            assert_eq!(own.st_ino, other.st_ino);
            assert_eq!(found.problem, None);
            mode(&root.join("a"), 0o777);
            let expected = format!("{} is writable by everyone", root.join("a").display());
            assert_eq!(problem(&path), Some(expected));
            mode(&root.join("a"), 0o755);
        }
        assert_eq!(problem(&root.join("a/../c/../a/b/file")), None);
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(open(&root.join("loop")).unwrap_err(), Errno::LOOP);
        assert_eq!(open(&root.join("none")).unwrap_err(), Errno::NOENT);
        assert_eq!(open(&root.join("a/b/file/x")).unwrap_err(), Errno::NOTDIR);
    }
}
