//! Safe access to a file tree that others control. The kernel resolves every path as if the
//! tree were `/` (openat2, `RESOLVE_IN_ROOT`), and the result is a descriptor, never a path
//! to be resolved again. And whom a program that runs as root may trust with a file of the host.

use std::cell::{OnceCell, RefCell};
use std::ffi::OsString;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{
    chownat, fchmod, fchown, fstat, readlinkat, renameat, statat, symlinkat, unlinkat, AtFlags,
    FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Uid, CWD,
};
use rustix::io::Errno;
use rustix::mount::{open_tree, OpenTreeFlags};

use crate::error::{Error, Result};
use crate::model::edits::{is_plain, lies_in, split, At, Image};

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

/// Every mount of this process. A name in another encoding than UTF-8, such as that of a disk from
/// another system, has replacement characters, and is that of no mount that is looked for.
pub fn mountinfo() -> Result<String> {
    read_lossy(MOUNTINFO).map_err(|e| Error::failed(format!("can't read {MOUNTINFO}: {e}")))
}

/// A file of names that others chose, in whatever encoding.
pub fn read_lossy(path: impl AsRef<Path>) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
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

// Whom to trust: a file that only root may write can still be replaced by a user who may rename a folder
// above it. So a path is walked from `/`, by descriptors, and every folder and link in it counts.

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

/// Names of the root that this program itself runs in, and of the one that the host's
/// first process has: they differ in a chroot.
const OWN_ROOTS: [&str; 2] = ["/", "/proc/1/root"];

/// The folder of the last lookup that met no links.
type Last = (String, rustix::io::Result<OwnedFd>);

/// Two views of one folder.
#[derive(Debug)]
pub struct Rootfs {
    /// With everything that is mounted in it. Nothing is created here, because a mount may
    /// be a volume of the user.
    pub mounted: Root,
    /// The files of the image without anything that is mounted on them. For a mount point
    /// of the container, this view has the folder beneath it.
    pub files: Root,
    /// File systems that are made new for the container, by where they are mounted.
    new: Vec<(String, Root)>,
    /// Files are looked up in the order of their paths, many in the same folder.
    last: RefCell<Option<Last>>,
}

impl Rootfs {
    /// Errors: there is no such folder, or it is the root of this process.
    pub fn open(path: &Path) -> Result<Self> {
        let fail = |error| cannot_open("the container's root", path, error);
        let mounted = Root::open(path).map_err(fail)?;
        if is_own(&fstat(&mounted).map_err(fail)?) {
            return Err(Error::failed(format!(
                "the container's root {} is the root of the host or of this mount namespace: nothing is done to it",
                path.display()
            ))
            .resolve("give the container a root of its own; a hook belongs to the stage prestart or createRuntime"));
        }
        let files = mounted.sub(".").map_err(fail)?.without_mounts();
        Ok(Self { mounted, files, new: Vec::new(), last: RefCell::default() })
    }

    /// The root as its mounts show it, for an engine that does not say which of them are the user's:
    /// files are created in these too. Errors: as above.
    pub fn open_whole(path: &Path) -> Result<Self> {
        let rootfs = Self::open(path)?;
        let whole = rootfs.mounted.sub(".");
        let fail = |error| cannot_open("the container's root", path, error);
        Ok(Self { files: whole.map_err(fail)?, ..rootfs })
    }

    /// Allows files to be created in file systems that are new for the container. Missing
    /// ones are left out.
    pub fn open_new(&mut self, mounted: &[String]) {
        let open = |path: &String| {
            let root = self.mounted.sub(path).ok()?;
            Some((path.clone(), root.without_mounts()))
        };
        self.new = mounted.iter().filter_map(open).collect();
    }

    /// True for a path in one of the file systems that [`Self::open_new`] opened.
    pub fn is_in_new(&self, path: &str) -> bool {
        self.new.iter().any(|(new, _)| lies_in(path, new))
    }

    /// The root in which a path without links may be created, and its path in that root.
    pub fn writer<'a>(&'a self, path: &'a str) -> (&'a Root, &'a str) {
        let around = self.new.iter().filter(|(new, _)| lies_in(path, new));
        match around.max_by_key(|(new, _)| new.len()) {
            Some((new, root)) => (root, path[new.len()..].trim_start_matches('/')),
            None => (&self.files, path),
        }
    }

    fn kind_in(&self, folder: &str, name: &str) -> rustix::io::Result<Option<FileType>> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(path, _)| path != folder) {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            *last = Some((folder.to_owned(), self.files.open_plain(folder, flags)));
        }
        let (_, opened) = last.as_ref().ok_or(Errno::NOENT)?;
        let opened = opened.as_ref().map_err(|error| *error)?;
        let stat = statat(opened, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Some(FileType::from_raw_mode(stat.st_mode)))
    }
}

fn is_own(stat: &Stat) -> bool {
    OWN_ROOTS.iter().any(|own| rustix::fs::stat(*own).is_ok_and(|own| is_same(&own, stat)))
}

/// A mount that is already there doesn't belong to the image: it has no links, and isn't free.
impl Image for Rootfs {
    fn at(&self, path: &str) -> At {
        let found = match split(path).filter(|_| is_plain(path)) {
            Some((folder, name)) => self.kind_in(folder, name),
            None => self.files.open_plain(path, OFlags::PATH).map(|_| None),
        };
        match found {
            Ok(Some(FileType::Symlink)) | Err(Errno::LOOP) => At::Link,
            Err(Errno::NOENT) => At::Nothing,
            Ok(_) | Err(_) => At::Something,
        }
    }

    fn link(&self, path: &str) -> Option<String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let found = self.files.open_plain(path, flags).ok()?;
        let target = readlinkat(found, "", Vec::new()).ok()?;
        target.into_string().ok()
    }

    fn is_free(&self, folder: &str) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.files.open_plain(folder, flags) {
            Ok(folder) => is_empty(&folder) == Ok(true),
            Err(error) => error == Errno::NOENT,
        }
    }
}

// Creates folders, empty files and links in a container's root. They have the owner of
// the folder that they lie in, and the same mode whatever the umask of the engine.

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

impl Root {
    /// Makes a folder and its parents, mode 0755. Existing folders stay as they are.
    pub fn make_folder(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_in(path, folder) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (parent, name) = split(path).ok_or(Errno::NOENT)?;
        let parent = self.make_folder(parent)?;
        match rustix::fs::mkdirat(&parent, name, FOLDER_MODE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return self.open_in(path, folder),
            Err(error) => return Err(error),
        }
        // A process of another container could have replaced it by now, but only by a
        // folder that it may write to anyway.
        let made = open_made(&parent, name, OFlags::DIRECTORY)?;
        hand_over(&made, &fstat(&parent)?, FOLDER_MODE)?;
        Ok(made)
    }

    /// Makes an empty file and its folder, mode 0644, and never through a link.
    /// Returns an `O_PATH` descriptor. Errors: `LOOP` for a link that leads nowhere.
    pub fn make_file(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let (folder, name) = split(path).ok_or(Errno::INVAL)?;
        let folder = self.make_folder(folder)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made = match rustix::fs::openat(&folder, name, flags | OFlags::CLOEXEC, FILE_MODE) {
            // The path itself led nowhere, so this name is a link.
            Err(Errno::EXIST) => return Err(Errno::LOOP),
            other => other?,
        };
        hand_over(&made, &fstat(&folder)?, FILE_MODE)?;
        let opened = open_made(&folder, name, OFlags::PATH)?;
        if is_same(&fstat(&opened)?, &fstat(&made)?) {
            Ok(opened)
        } else {
            Err(Errno::LOOP)
        }
    }

    /// Makes a symbolic link and its folder, in place of an older link; never through one.
    /// Errors: `EXIST` where a file or folder has the name.
    pub fn make_link(&self, path: &str, target: &str) -> rustix::io::Result<()> {
        let (folder, name) = split(path).ok_or(Errno::INVAL)?;
        let folder = self.make_folder(folder)?;
        match readlinkat(&folder, name, Vec::new()) {
            Ok(there) if there.as_bytes() == target.as_bytes() => return Ok(()),
            Ok(_) => {}
            Err(Errno::NOENT) => match symlinkat(target, &folder, name) {
                Ok(()) => return hand_over_link(&folder, name),
                // Another start was here since.
                Err(Errno::EXIST) => return self.make_link(path, target),
                Err(error) => return Err(error),
            },
            Err(Errno::INVAL) => return Err(Errno::EXIST),
            Err(error) => return Err(error),
        }
        replace_link(&folder, name, target)
    }
}

/// Opens what was made just now, but no link that has replaced it.
fn open_made(folder: &OwnedFd, name: &str, kind: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = kind | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// The name of a link until it is in its place. The name is always the same, so that the
/// next start finds what a killed start left.
const TEMPORARY_LINK: &str = ".oci-decorator.link";
/// How often another start may take the temporary link away.
const LINK_TRIES: u32 = 16;

/// Replaces a link atomically, so that the name exists at every moment.
fn replace_link(folder: &OwnedFd, name: &str, target: &str) -> rustix::io::Result<()> {
    for _ in 0..LINK_TRIES {
        match symlinkat(target, folder, TEMPORARY_LINK) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                unlinkat(folder, TEMPORARY_LINK, AtFlags::empty())?;
                continue;
            }
            Err(error) => return Err(error),
        }
        hand_over_link(folder, TEMPORARY_LINK)?;
        match renameat(folder, TEMPORARY_LINK, folder, name) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn hand_over_link(folder: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let like = fstat(folder)?;
    let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    match chownat(folder, name, Some(owner), Some(group), flags) {
        // Without the right to change the owner, this process stays the owner. Another
        // start may have taken a temporary link.
        Err(Errno::PERM | Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Sets the owner and the mode of a new file or folder.
fn hand_over(new: &OwnedFd, like: &Stat, mode: Mode) -> rustix::io::Result<()> {
    let own = fstat(new)?;
    // First the mode: once another user owns the file, only root may change it.
    if Mode::from_raw_mode(own.st_mode & 0o777) != mode {
        fchmod(new, mode)?;
    }
    if (own.st_uid, own.st_gid) == (like.st_uid, like.st_gid) {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    match fchown(new, Some(owner), Some(group)) {
        // Without the right to change the owner, this process stays the owner.
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
