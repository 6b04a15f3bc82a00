//! Safe access to a file tree that others control. The kernel resolves every path as if the
//! tree were `/` (openat2, `RESOLVE_IN_ROOT`), and the result is a descriptor, never a path
//! to be resolved again. `container` is a container's root, and creates files in one.

pub mod container;

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, CWD};
use rustix::io::Errno;
use rustix::mount::{open_tree, OpenTreeFlags};

use crate::error::{Error, Result};

pub use container::Rootfs;

/// How often a lookup is tried again when a rename elsewhere disturbed it
/// (openat2(2): `EAGAIN`).
const RETRIES: u32 = 64;

/// An open folder that serves as `/` for every lookup.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    /// Lookups stay within the folder's own mount. A lookup that would leave it uses a
    /// clone of the mount that has no other mounts on it.
    bare: Option<OnceCell<Option<OwnedFd>>>,
}

impl Root {
    /// Opens the folder itself; this path is the caller's own and trusted.
    /// Errors: `NOSYS` where openat2(2) is missing, see [`cannot_open`].
    pub fn open(path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty());
        let opens = || rustix::fs::open(path, flags, Mode::empty()).is_ok();
        opened.map(Self::new).map_err(|error| refused(error, opens))
    }

    fn new(fd: OwnedFd) -> Self {
        Self { fd, bare: None }
    }

    /// The same root without anything that is mounted in it: lookups find the files beneath
    /// a mount point. Without the right to clone mounts (`CAP_SYS_ADMIN`, Linux 5.2), a
    /// path that leads there is an error, `EXDEV`.
    #[must_use]
    pub fn without_mounts(self) -> Self {
        Self { bare: Some(OnceCell::new()), ..self }
    }

    /// A folder of this tree as a tree of its own.
    pub fn sub(&self, path: &str) -> rustix::io::Result<Self> {
        self.open_in(path, OFlags::PATH | OFlags::DIRECTORY).map(Self::new)
    }

    /// Opens a path of the tree. Links are followed within the tree only.
    pub fn open_in(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match self.resolve(path, flags, within) {
            Err(Errno::XDEV) => match self.bare.as_ref().and_then(|bare| self.bare(bare)) {
                // On the clone too: with shared propagation, a mount may arrive there.
                Some(bare) => open(bare, path, flags, within | ResolveFlags::NO_XDEV),
                None => Err(Errno::XDEV),
            },
            other => other,
        }
    }

    /// Opens a path that must have no link in it (`ELOOP` if it has), and where mounts are
    /// left out no mount point (`EXDEV`).
    pub fn open_plain(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        self.resolve(path, flags, within)
    }

    fn resolve(
        &self,
        path: &str,
        flags: OFlags,
        mut within: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        within.set(ResolveFlags::NO_XDEV, self.bare.is_some());
        open(&self.fd, path, flags, within)
    }

    /// Made only when needed: the kernel waits for all processors to remove a clone, which
    /// takes as long as a quarter of a start.
    fn bare<'a>(&self, bare: &'a OnceCell<Option<OwnedFd>>) -> Option<&'a OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        bare.get_or_init(|| open_tree(&self.fd, "", flags).ok()).as_ref()
    }

    /// Reads a regular file of at most `limit` bytes.
    /// Errors: `INVAL` unless it is a regular file, `FBIG` for a larger one.
    pub fn read(&self, path: &str, limit: u64) -> rustix::io::Result<(Vec<u8>, Stat)> {
        read_regular(&self.open_in(path, OFlags::PATH)?, limit)
    }
}

fn open(
    root: &OwnedFd,
    path: &str,
    flags: OFlags,
    within: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    for _ in 0..RETRIES {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), within) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

impl AsFd for Root {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The meaning of an error of openat2 where open(2) may still succeed: filters of system
/// calls refuse unknown calls with `PERM`.
fn refused(error: Errno, opens: impl FnOnce() -> bool) -> Errno {
    if error == Errno::PERM && opens() {
        Errno::NOSYS
    } else {
        error
    }
}

/// Why a root can't be opened.
pub fn cannot_open(what: &str, path: &Path, error: Errno) -> Error {
    let path = path.display();
    if error == Errno::NOSYS {
        return Error::not_found(format!(
            "can't open {what} {path}: the system call openat2 is missing"
        ))
        .resolve("use Linux 5.6 or newer, and let no seccomp filter forbid openat2");
    }
    Error::not_found(format!("can't open {what} {path}: {error}"))
}

/// True if both descriptors refer to the same file.
pub fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Reads the file of an `O_PATH` descriptor: a regular file of at most `limit` bytes.
///
/// The file is opened only after it is known to be regular. Opening a device can have an
/// effect (a watchdog starts, a tape rewinds), and opening a FIFO would block.
/// Errors: `INVAL` unless it is a regular file, `FBIG` for a larger one.
pub fn read_regular(found: impl AsFd, limit: u64) -> rustix::io::Result<(Vec<u8>, Stat)> {
    let (fd, stat) = open_regular(found)?;
    read_whole(&fd, &stat, limit).map(|bytes| (bytes, stat))
}

/// Reads an open regular file of at most `limit` bytes. Errors: `FBIG` for a larger one.
pub fn read_whole(fd: &OwnedFd, stat: &Stat, limit: u64) -> rustix::io::Result<Vec<u8>> {
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > limit {
        return Err(Errno::FBIG);
    }
    let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        match rustix::io::read(fd, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => break, // It was truncated since.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Opens the file of an `O_PATH` descriptor for reading.
/// Errors: `INVAL` unless it is a regular file.
pub fn open_regular(found: impl AsFd) -> rustix::io::Result<(OwnedFd, Stat)> {
    let stat = rustix::fs::fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // For reading: that flag is 0.
    let fd = rustix::fs::open(own_link(&found), OFlags::CLOEXEC, Mode::empty())?;
    Ok((fd, stat))
}

/// The path by which this process can name the file of a descriptor.
fn own_link(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The path of an open file, as the kernel reports it.
pub fn path_of(fd: impl AsFd) -> Option<String> {
    rustix::fs::readlink(own_link(&fd), Vec::new()).ok().and_then(|path| path.into_string().ok())
}

/// proc(5), `/proc/PID/mountinfo`.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";

pub fn mountinfo() -> Result<String> {
    std::fs::read_to_string(MOUNTINFO)
        .map_err(|e| Error::failed(format!("can't read {MOUNTINFO}: {e}")))
}

/// One of the mounts. Blanks in paths are escaped (`\\040`).
#[derive(Debug)]
pub struct MountPoint<'a> {
    /// Major and minor number of the file system.
    pub file_system: &'a str,
    /// The mounted part of the file system.
    pub root: &'a str,
    pub point: &'a str,
    pub kind: &'a str,
    /// Those of the file system.
    pub options: &'a str,
}

impl<'a> MountPoint<'a> {
    /// Every mount of the file's text, in the order in which they were made.
    pub fn all(text: &'a str) -> impl Iterator<Item = Self> + Clone {
        text.lines().filter_map(Self::parse)
    }

    fn parse(line: &'a str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(2);
        let (file_system, root, point) = (front.next()?, front.next()?, front.next()?);
        let mut back = back.split(' ');
        let kind = back.next()?;
        Some(Self { file_system, root, point, kind, options: back.nth(1)? })
    }

    /// The place of a path of the file system. `None`: it lies outside of the mounted part.
    pub fn place_of(&self, path: &str) -> Option<PathBuf> {
        let within = Path::new(path).strip_prefix(self.root).ok()?;
        let plain = |part| matches!(part, Component::Normal(_));
        let inside = within.components().all(plain);
        inside.then(|| Path::new(self.point).join(within))
    }
}

/// Bytes to ask the kernel for in each call that lists a folder.
const LISTING_BUFFER: usize = 4096;
/// Bytes of an entry besides its name: getdents64(2), `struct linux_dirent64`.
const ENTRY_SIZE: usize = 19;
/// Bytes of entries up to which a folder is listed: some 100,000 names. An image may have millions.
const MAX_LISTING: usize = 4 << 20;

/// The names in an open folder that are UTF-8, sorted. `None`: more bytes of entries than `limit`.
fn names_within(folder: impl AsFd, limit: usize) -> rustix::io::Result<Option<Vec<String>>> {
    let mut buffer = [MaybeUninit::uninit(); LISTING_BUFFER];
    let mut entries = RawDir::new(folder, &mut buffer);
    let mut names = Vec::new();
    let mut size = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        size += ENTRY_SIZE + entry.file_name().to_bytes().len();
        if size > limit {
            return Ok(None);
        }
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    names.sort_unstable();
    Ok(Some(names))
}

/// The names in an open folder that are UTF-8, sorted. Errors: `FBIG` for a folder with more entries
/// than any folder of a host or of an honest image.
pub fn names_in(folder: impl AsFd) -> rustix::io::Result<Vec<String>> {
    names_within(folder, MAX_LISTING)?.ok_or(Errno::FBIG)
}

/// True for an open folder without entries: `.` and `..` are as long as all of them.
pub fn is_empty(folder: impl AsFd) -> rustix::io::Result<bool> {
    Ok(names_within(folder, 2 * ENTRY_SIZE + "...".len())?.is_some())
}

/// Links in one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;

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
pub fn open_trusted(path: &Path) -> rustix::io::Result<OpenedPath> {
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
        let mut walk = Self { at: slash()?, shown: "/".into(), steps: Vec::new(), problem: None };
        walk.judge(&rustix::fs::fstat(&walk.at)?);
        Ok(walk)
    }

    fn begin_again(&mut self) -> rustix::io::Result<()> {
        self.at = slash()?;
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

fn slash() -> rustix::io::Result<OwnedFd> {
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
    use std::fs::{create_dir, set_permissions, write, Permissions};
    use std::os::unix::fs::{chown, symlink, PermissionsExt};

    use super::*;

    #[test]
    fn only_a_filter_of_system_calls_hides_that_openat2_is_missing() {
        assert_eq!(refused(Errno::PERM, || true), Errno::NOSYS);
        assert_eq!(refused(Errno::PERM, || false), Errno::PERM);
        assert_eq!(refused(Errno::LOOP, || true), Errno::LOOP);
    }

    #[test]
    fn the_limit_counts_what_the_kernel_hands_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("name"), "").unwrap();
        let size: usize = [".", "..", "name"].iter().map(|name| 19 + name.len()).sum();
        let names = |limit| {
            let opened = std::fs::File::open(dir.path()).unwrap();
            names_within(opened, limit).unwrap().map(|all| all.len())
        };
        assert_eq!(names(size), Some(1));
        assert_eq!(names(size - 1), None);
    }

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
        open_trusted(path).unwrap().problem.map(|found| found.to_string())
    }

    #[test]
    fn as_many_links_are_followed_as_the_kernel_follows() {
        let (_dir, root) = tree();
        let mut last = root.join("a/b/file");
        for number in 0..=MAX_LINKS {
            assert_eq!(open_trusted(&last).is_ok(), std::fs::metadata(&last).is_ok(), "{number}");
            let link = root.join(number.to_string());
            symlink(&last, &link).unwrap();
            last = link;
        }
        assert_eq!(open_trusted(&last).unwrap_err(), Errno::LOOP);
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
            let found = open_trusted(&path).unwrap();
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
        assert_eq!(open_trusted(&root.join("loop")).unwrap_err(), Errno::LOOP);
        assert_eq!(open_trusted(&root.join("none")).unwrap_err(), Errno::NOENT);
        assert_eq!(open_trusted(&root.join("a/b/file/x")).unwrap_err(), Errno::NOTDIR);
    }
}
