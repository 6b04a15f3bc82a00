//! What the host has: the one way into a container's root, trust of files, device nodes, files and
//! libraries of an inventory, below the folder that is the host's root.

pub mod facts;
pub mod files;
pub mod ldcache;
pub mod libraries;
pub mod nodes;
pub mod resolve;
pub mod rootfs;

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::rootfs::{
    cannot_open, names_in, open_regular, open_trusted, path_of, Distrust, Root,
};
use crate::model::edits::{glob_matches, is_pattern, lies_in, split, Access, Device, Hook, Mount};

/// More than the kernel writes into any file that is read here.
const MAX_KERNEL_TEXT: u64 = 64 << 10;

/// The host's file tree.
#[derive(Debug)]
pub struct Host {
    pub(super) root: Root,
    /// The root as the caller wrote it, without a slash at the end.
    written: String,
    /// The root's path in the kernel, also without a slash at the end.
    real: String,
    /// The host's `/dev`, opened when the first device is looked up.
    dev: OnceCell<Option<OwnedFd>>,
}

impl Host {
    /// Errors: the root is not a folder, or can't be opened.
    pub fn open(root: &Path) -> Result<Self> {
        let opened = Root::open(root).map_err(|e| {
            let error = cannot_open("the host's root", root, e);
            match e {
                Errno::NOENT | Errno::NOTDIR => error.resolve(
                    "name a folder that exists, with --root or with \"root\" in config.toml",
                ),
                _ => error,
            }
        })?;
        let real = path_of(&opened).ok_or_else(|| {
            Error::failed(format!(
                "can't find the path of {}: /proc is missing, or the path is not UTF-8",
                root.display()
            ))
        })?;
        Ok(Self {
            root: opened,
            written: root.to_string_lossy().trim_end_matches('/').to_owned(),
            real: real.trim_end_matches('/').to_owned(),
            dev: OnceCell::new(),
        })
    }

    /// The tree with a vendor's files: a folder of the host, or the host's root.
    /// Errors: the driver is not installed.
    pub fn tree(&self, folder: Option<&str>) -> Result<Tree<'_>> {
        let Some(folder) = folder else {
            return Ok(Tree::new(self, None, self.written.clone()));
        };
        let sub = self.root.sub(folder).map_err(|error| {
            Error::not_found(format!(
                "the driver is not installed: can't open {}{folder}: {error}",
                self.written
            ))
            .resolve("install it (provision apply), or correct \"root\" in the vendor file")
        })?;
        let written = self.source(&sub).ok_or_else(|| {
            Error::failed(format!("can't find the path of {}{folder}", self.written))
        })?;
        Ok(Tree::new(self, Some(sub), written))
    }

    /// A path of the host with the root in front, unless it begins with the root already.
    pub fn on_host(&self, path: &str) -> String {
        if self.written.is_empty() || lies_in(path, &self.written) {
            path.to_owned()
        } else {
            format!("{}{path}", self.written)
        }
    }

    /// The status of a path of the host, which may begin with the root. Links are followed within
    /// the root.
    pub fn stat(&self, path: &str) -> rustix::io::Result<Stat> {
        rustix::fs::fstat(self.root.open_in(self.within(path), OFlags::PATH)?)
    }

    /// The real path of a file of the host; `path` may begin with the root. For a root other than
    /// `/`, links are followed here and within that root, so that no link leads out of it when the
    /// result is opened.
    pub fn real(&self, path: &str) -> rustix::io::Result<String> {
        if self.written.is_empty() {
            return Ok(path.to_owned());
        }
        let opened = self.root.open_in(self.within(path), OFlags::PATH)?;
        self.source(opened).ok_or(Errno::NOENT)
    }

    /// True if something exists at the path, even a link to nothing.
    pub fn is_there(&self, path: &str) -> bool {
        let itself = OFlags::PATH | OFlags::NOFOLLOW;
        self.root.open_in(self.within(path), itself).is_ok()
    }

    /// The path below the root, of a path that may begin with the root.
    pub(super) fn within<'p>(&self, path: &'p str) -> &'p str {
        if !self.written.is_empty() && lies_in(path, &self.written) {
            &path[self.written.len()..]
        } else {
            path
        }
    }

    /// The real path of a folder of the host. For a root other than `/`, no link leads out of it.
    /// `None`: the folder does not exist.
    pub fn folder(&self, path: &Path) -> Option<PathBuf> {
        self.real(path.to_str()?).ok().map(PathBuf::from)
    }

    /// Reads a regular file of at most `limit` bytes.
    /// Errors: `INVAL` for what is no regular file, `FBIG` for a larger one.
    pub fn read_file(&self, path: &str, limit: u64) -> rustix::io::Result<(Vec<u8>, Stat)> {
        self.root.read(path, limit)
    }

    /// Why a user other than root may have written the file at a path. Every folder and link in the
    /// path counts. `None`: only root can have written it.
    pub fn distrust(&self, path: &str) -> rustix::io::Result<Option<Distrust>> {
        let shown = self.shown(path);
        if self.shown("").is_empty() {
            return open_trusted(Path::new(&shown)).map(|found| found.problem);
        }
        // Links are followed within the root.
        let found = self.root.open_in(path, OFlags::PATH)?;
        let place = self.source(found).ok_or(Errno::NOENT)?;
        open_trusted(Path::new(&place)).map(|found| found.problem)
    }

    /// Reads a file of the kernel, such as one of `/proc`, which does not report its size.
    pub fn text_of_kernel(&self, path: &str) -> Option<String> {
        let found = self.root.open_in(path, OFlags::PATH).ok()?;
        let (fd, _) = open_regular(found).ok()?;
        let mut bytes = Vec::new();
        let mut file = File::from(fd).take(MAX_KERNEL_TEXT);
        file.read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn names_in(&self, folder: &str) -> rustix::io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        names_in(self.root.open_in(folder, flags)?)
    }

    /// The target of the link at a path. `None`: it is not a link.
    pub fn link(&self, path: &str) -> Option<String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = self.root.open_in(path, flags).ok()?;
        let target = rustix::fs::readlinkat(fd, "", Vec::new()).ok()?;
        let target = target.into_string().ok()?;
        Some(target).filter(|target| !target.is_empty())
    }

    /// True on NVIDIA's Jetson boards, whose driver is part of their system.
    pub fn is_tegra(&self) -> bool {
        let family = || {
            let text = self.text_of_kernel("sys/devices/soc0/family")?;
            Some(text.to_ascii_lowercase().starts_with("tegra"))
        };
        self.tree(None).is_ok_and(|tree| tree.find("/etc/nv_tegra_release").is_ok())
            || family().unwrap_or_default()
    }

    /// The path of an open file, with the root as the caller wrote it.
    pub(super) fn source(&self, fd: impl AsFd) -> Option<String> {
        let path = path_of(fd)?;
        let rest = path.strip_prefix(&self.real)?;
        Some(format!("{}{rest}", self.written))
    }

    /// A path of the host, with the root as the caller wrote it.
    pub fn shown(&self, path: &str) -> String {
        format!("{}{path}", self.written)
    }

    /// The nodes that a device name, path or pattern stands for, by their paths in a container, or why
    /// there is none.
    pub fn devices(&self, wanted: &str) -> Vec<(String, Result<Device, String>)> {
        let name = wanted.strip_prefix("/dev/").unwrap_or(wanted);
        let names = if is_pattern(name) { self.expand(name) } else { vec![name.to_owned()] };
        let paths = names.into_iter().map(|name| format!("/dev/{name}"));
        let with_node = |path: String| {
            let found = self.device(&path);
            (path, found)
        };
        paths.map(with_node).collect()
    }

    /// Only what are nodes.
    pub fn nodes(&self, wanted: &str) -> impl Iterator<Item = Device> {
        self.devices(wanted).into_iter().filter_map(|(_, found)| found.ok())
    }

    fn device(&self, path: &str) -> Result<Device, String> {
        let stat = self.stat_device(path).map_err(|error| match error {
            Errno::NOENT => "the host has no such device".to_owned(),
            error => error.to_string(),
        })?;
        let Some((kind, major, minor)) = numbers(&stat) else {
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            return Err(if is_folder {
                format!("is a folder; \"{path}/*\" names its nodes")
            } else {
                "is not a device node".to_owned()
            });
        };
        Ok(Device {
            source: format!("{}{path}", self.written),
            path: path.to_owned(),
            kind,
            major,
            minor,
            mode: stat.st_mode & 0o777,
            uid: Some(stat.st_uid),
            gid: Some(stat.st_gid),
            access: Access::ALL,
        })
    }

    fn stat_device(&self, path: &str) -> rustix::io::Result<Stat> {
        let name = path.trim_start_matches("/dev/");
        if let (Some(dev), false) = (self.dev(), name.contains('/')) {
            let stat = rustix::fs::statat(dev, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                return Ok(stat);
            }
        }
        let fd = self.root.open_in(path, OFlags::PATH)?;
        rustix::fs::fstat(fd)
    }

    fn dev(&self) -> Option<&OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let open = || self.root.open_in("dev", flags).ok();
        self.dev.get_or_init(open).as_ref()
    }

    /// The names under `/dev` that match a pattern, sorted.
    fn expand(&self, pattern: &str) -> Vec<String> {
        let mut names = vec![String::new()];
        for part in pattern.split('/') {
            names = names.iter().flat_map(|folder| self.expand_part(folder, part)).collect();
        }
        names
    }

    fn expand_part(&self, folder: &str, part: &str) -> Vec<String> {
        let join =
            |name: &str| format!("{folder}{}{name}", if folder.is_empty() { "" } else { "/" });
        if !is_pattern(part) {
            return vec![join(part)];
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(opened) = self.root.open_in(&format!("dev/{folder}"), flags) else {
            return Vec::new();
        };
        let names = names_in(&opened).unwrap_or_default().into_iter();
        let names = names.filter(|name| !name.starts_with('.') && glob_matches(part, name));
        names.map(|name| join(&name)).collect()
    }
}

/// The kind and the numbers of a device node. `None`: it is none.
pub fn numbers(stat: &Stat) -> Option<(char, u32, u32)> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        _ => return None,
    };
    Some((kind, rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
}

/// Links within one folder that are followed without openat2.
const MAX_LINKS: u32 = 8;
/// Longer than any name: limits.h, `NAME_MAX`.
const MAX_NAME: usize = 256;
/// With fewer files, a mount of the whole folder saves less than it costs.
const MIN_FILES: usize = 8;

/// The real path of this program's file.
pub fn own_program() -> Result<PathBuf> {
    let path = std::env::current_exe();
    path.map_err(|e| Error::failed(format!("can't find this program's own path: {e}")))
}

/// A hook that runs this program. Errors: the program's path can't be found.
pub fn own_hook(stage: &str, args: Vec<String>) -> Result<Hook> {
    Ok(Hook {
        stage: stage.to_owned(),
        path: own_program()?.to_string_lossy().into_owned(),
        args,
        // Without an environment, a runtime may pass the container's on.
        env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        timeout: None,
    })
}

// The files of one vendor. Most paths name a file, or a link to another name, in a folder whose path
// has no links. Such a folder is opened once for all its files. A file then costs one system call.
// Every other path takes longer: openat2 opens it, and /proc tells the result's path.

/// The file tree of one vendor.
#[derive(Debug)]
pub struct Tree<'a> {
    host: &'a Host,
    sub: Option<Root>,
    /// Its path, without links below the host's root, which is as the caller wrote it.
    written: String,
    /// Folders that are open already, by their paths in the inventory.
    folders: RefCell<Vec<(String, Rc<OwnedFd>)>>,
}

#[derive(Debug)]
pub struct TreeEntry {
    pub kind: FileType,
    /// The path to mount it from: without links, and beginning with the host's root as the caller
    /// wrote it. `None`: not valid UTF-8.
    pub source: Option<String>,
    /// The path itself is a symbolic link.
    pub is_link: bool,
    place: Handle,
}

#[derive(Debug)]
enum Handle {
    /// In this folder; the last part of the source is its name.
    Named(Rc<OwnedFd>),
    /// By a descriptor with `O_PATH`.
    Open(OwnedFd),
}

impl TreeEntry {
    /// Opens it for reading. Errors: `INVAL` if it is not a regular file.
    pub fn open(&self) -> rustix::io::Result<OwnedFd> {
        match &self.place {
            Handle::Open(fd) => open_regular(fd).map(|(fd, _)| fd),
            Handle::Named(_) if self.kind != FileType::RegularFile => Err(Errno::INVAL),
            Handle::Named(folder) => {
                let (_, name) = self.source.as_deref().and_then(split).ok_or(Errno::NOENT)?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
                rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())
            }
        }
    }
}

impl<'a> Tree<'a> {
    pub(super) fn new(host: &'a Host, sub: Option<Root>, written: String) -> Self {
        Self { host, sub, written, folders: RefCell::default() }
    }

    /// Looks a path up without opening the file.
    pub fn find(&self, path: &str) -> rustix::io::Result<TreeEntry> {
        match self.find_in_folder(path) {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(Errno::LOOP) => self.find_through_links(path),
            Err(error) => Err(error),
        }
    }

    /// The source path of a folder of the tree, if its path has no link.
    pub fn source_of(&self, folder: &str) -> String {
        format!("{}{folder}", self.written)
    }

    /// The path in the inventory that a source path has.
    pub fn path_of<'p>(&self, source: &'p str) -> Option<&'p str> {
        source.strip_prefix(&self.written)
    }

    /// True if `known` is true for every name in a folder. Errors: `LOOP` if its path has a link.
    pub fn holds_only(
        &self,
        folder: &str,
        known: impl Fn(&str) -> bool,
    ) -> rustix::io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let names = names_in(self.root().open_plain(folder, flags)?)?;
        Ok(names.iter().all(|name| known(name)))
    }

    /// Looks a path up in its open folder. `None`, or `LOOP`: the path needs openat2.
    fn find_in_folder(&self, path: &str) -> rustix::io::Result<Option<TreeEntry>> {
        let Some((folder, name)) = split(path) else {
            return Ok(None);
        };
        let opened = self.folder(folder)?;
        let mut name = Cow::Borrowed(name);
        let mut buffer = [MaybeUninit::uninit(); MAX_NAME];
        for links in 0..MAX_LINKS {
            let stat = rustix::fs::statat(&opened, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind != FileType::Symlink {
                return Ok(Some(TreeEntry {
                    kind,
                    source: Some([&*self.written, folder, &*name].concat()),
                    is_link: links > 0,
                    place: Handle::Named(opened),
                }));
            }
            let (target, _) = rustix::fs::readlinkat_raw(&opened, &*name, &mut buffer)?;
            match std::str::from_utf8(target) {
                // A target that fills the buffer may be longer.
                Ok(target)
                    if target.len() < MAX_NAME
                        && !target.contains('/')
                        && !matches!(target, "." | "..") =>
                {
                    name = Cow::Owned(target.to_owned());
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Opens a folder. Errors: `LOOP` if its path has a link.
    fn folder(&self, path: &str) -> rustix::io::Result<Rc<OwnedFd>> {
        let mut known = self.folders.borrow_mut();
        if let Some((_, folder)) = known.iter().find(|(name, _)| name == path) {
            return Ok(Rc::clone(folder));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = Rc::new(self.root().open_plain(path, flags)?);
        known.push((path.to_owned(), Rc::clone(&folder)));
        Ok(folder)
    }

    fn find_through_links(&self, path: &str) -> rustix::io::Result<TreeEntry> {
        let fd = self.root().open_in(path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok(TreeEntry {
            kind: FileType::from_raw_mode(stat.st_mode),
            source: self.host.source(&fd),
            is_link: self.is_link(path),
            place: Handle::Open(fd),
        })
    }

    fn is_link(&self, path: &str) -> bool {
        self.root()
            .open_in(path, OFlags::PATH | OFlags::NOFOLLOW)
            .and_then(rustix::fs::fstat)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    fn root(&self) -> &Root {
        self.sub.as_ref().unwrap_or(&self.host.root)
    }
}

/// Folders of a vendor's tree that could be mounted whole: every name in them is the target of one
/// of these mounts, whose source lies in the same folder.
pub fn whole_folders(tree: &Tree, mounts: &[Mount]) -> Vec<Mount> {
    let mut by_folder: BTreeMap<&str, Vec<(&str, &Mount)>> = BTreeMap::new();
    for mount in mounts {
        if let Some((folder, name)) = split(&mount.target) {
            let folder = folder.trim_end_matches('/');
            by_folder.entry(folder).or_default().push((name, mount));
        }
    }
    by_folder
        .into_iter()
        .filter(|(folder, files)| !folder.is_empty() && files.len() >= MIN_FILES)
        .filter_map(|(folder, mut files)| {
            let source = tree.source_of(folder);
            let from_here = |m: &Mount| {
                split(&m.source).is_some_and(|(f, _)| f.trim_end_matches('/') == source)
            };
            files.sort_unstable_by_key(|(name, _)| *name);
            let known = |name: &str| files.binary_search_by_key(&name, |f| f.0).is_ok();
            let whole = files.iter().all(|(_, m)| from_here(m))
                && tree.holds_only(folder, known).is_ok_and(|only| only);
            whole.then(|| Mount { source: source.clone(), target: folder.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests;
