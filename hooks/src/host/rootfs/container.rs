//! A container's root, for every front end that looks into one or writes there.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    chownat, fchmod, fchown, fstat, readlinkat, renameat, statat, symlinkat, unlinkat, AtFlags,
    FileType, Gid, Mode, OFlags, Stat, Uid,
};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::host::rootfs::{cannot_open, is_empty, is_same, Root};
use crate::model::edits::{is_plain, lies_in, split, At, Image};

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
}

impl Rootfs {
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

impl Root {
    /// Makes a symbolic link and its folder, in place of an older link; never through one.
    /// Errors: `EXIST` where a file or folder has the name.
    pub fn make_link(&self, path: &str, target: &str) -> rustix::io::Result<()> {
        let (folder, name) = split(path).ok_or(Errno::INVAL)?;
        let folder = self.make_folder(folder)?;
        match readlinkat(&folder, name, Vec::new()) {
            Ok(there) if there.as_bytes() == target.as_bytes() => return Ok(()),
            Ok(_) => {}
            Err(Errno::NOENT) => match symlinkat(target, &folder, name) {
                Ok(()) => return own_link(&folder, name),
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
        own_link(folder, TEMPORARY_LINK)?;
        match renameat(folder, TEMPORARY_LINK, folder, name) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn own_link(folder: &OwnedFd, name: &str) -> rustix::io::Result<()> {
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
mod tests {
    use std::fs;
    use std::os::unix::fs::{symlink, MetadataExt};
    use std::path::Path;

    use crate::host::rootfs::container::*;
    use crate::need;

    fn tree() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    fn owner(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid())
    }

    #[test]
    fn a_file_is_never_made_through_a_link() {
        let (dir, root) = tree();
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().join("made");
        symlink(&target, dir.path().join("link")).unwrap();
        assert_eq!(root.make_file("/link").unwrap_err(), Errno::LOOP);
        assert!(!target.exists());
    }

    #[test]
    fn a_file_is_no_folder() {
        let (dir, root) = tree();
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(root.make_folder("/file").unwrap_err(), Errno::NOTDIR);
    }

    #[test]
    fn a_link_that_is_right_stays_and_another_is_replaced() {
        let (dir, root) = tree();
        let link = dir.path().join("link");
        let number = || fs::symlink_metadata(&link).unwrap().ino();
        root.make_link("/link", "a").unwrap();
        let first = number();
        root.make_link("/link", "a").unwrap();
        assert_eq!(number(), first);
        root.make_link("/link", "b").unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("b"));
    }

    #[test]
    fn a_link_has_the_owner_of_its_folder() {
        if !need::root("files of another user") {
            return;
        }
        let (dir, root) = tree();
        std::os::unix::fs::chown(dir.path(), Some(1000), Some(1001)).unwrap();
        for target in ["a", "b"] {
            root.make_link("/link", target).unwrap();
            assert_eq!(owner(&dir.path().join("link")), (1000, 1001), "{target}");
        }
    }
}
