//! The door to a file tree that somebody else controls: every path is resolved
//! by the kernel as if the tree were `/` (openat2, `RESOLVE_IN_ROOT`), and what
//! comes out is a descriptor, never a path to be resolved again.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// How often a lookup is tried again when a rename elsewhere disturbed it
/// (openat2(2): `EAGAIN`).
const RETRIES: u32 = 64;

/// An open folder that serves as `/` for every lookup.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
}

impl Root {
    /// Opens the folder itself; this path is the caller's own and trusted.
    pub fn open(path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map(|fd| Self { fd })
    }

    /// A folder of this tree as a tree of its own.
    pub fn sub(&self, path: &str) -> rustix::io::Result<Self> {
        self.open_in(path, OFlags::PATH | OFlags::DIRECTORY)
            .map(|fd| Self { fd })
    }

    /// Opens a path of the tree. Links are followed within the tree only.
    pub fn open_in(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        self.resolve(
            path,
            flags,
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    }

    /// The same for a path that must have no link in it (`ELOOP` if it has).
    pub fn open_plain(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        self.resolve(
            path,
            flags,
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
        )
    }

    fn resolve(
        &self,
        path: &str,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        for _ in 0..RETRIES {
            match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Reads a regular file of at most `limit` bytes.
    /// Errors: `ISDIR`-like kinds as `INVAL`, a larger file as `FBIG`.
    pub fn read(&self, path: &str, limit: u64) -> rustix::io::Result<(Vec<u8>, Stat)> {
        // Without NONBLOCK a FIFO of the image would hold the start up for ever.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        read_regular(self.open_in(path, flags)?, limit)
    }

    /// Makes a folder and its parents, mode 0755. What exists stays as it is.
    pub fn make_folder(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let folder = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_in(path, folder) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (parent, name) = split(path).ok_or(Errno::NOENT)?;
        let parent = self.make_folder(parent)?;
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.open_in(path, folder),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads an open file that must be regular and at most `limit` bytes long.
pub fn read_regular(fd: OwnedFd, limit: u64) -> rustix::io::Result<(Vec<u8>, Stat)> {
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > limit {
        return Err(Errno::FBIG);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    File::from(fd)
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    if bytes.len() as u64 > limit {
        return Err(Errno::FBIG);
    }
    Ok((bytes, stat))
}

/// Where the kernel says that an open file lies.
pub fn path_of(fd: impl AsFd) -> Option<String> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::readlink(link, Vec::new())
        .ok()
        .and_then(|path| path.into_string().ok())
}

/// The folder and the last part of a path. `None` for `/` and the empty path.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_end_matches('/');
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    let folder = &path[..path.len() - name.len()];
    Some((if folder.is_empty() { "." } else { folder }, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_never_leave_the_tree() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "host").unwrap();
        let tree = tempfile::tempdir().unwrap();
        let target = outside.path().join("secret");
        symlink(&target, tree.path().join("absolute")).unwrap();
        symlink(
            "../../../../../../../../etc/passwd",
            tree.path().join("dots"),
        )
        .unwrap();
        symlink("/proc/self/root/etc/passwd", tree.path().join("magic")).unwrap();
        let root = Root::open(tree.path()).unwrap();
        for name in ["absolute", "dots", "magic", "../../etc/passwd"] {
            assert_eq!(root.read(name, 100).unwrap_err(), Errno::NOENT, "{name}");
        }
    }

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("file"), "12345").unwrap();
        std::fs::create_dir(tree.path().join("folder")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            tree.path().join("fifo"),
            FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        let root = Root::open(tree.path()).unwrap();
        assert_eq!(root.read("/file", 5).unwrap().0, b"12345");
        assert_eq!(root.read("/file", 4).unwrap_err(), Errno::FBIG);
        assert_eq!(root.read("folder", 9).unwrap_err(), Errno::INVAL);
        assert_eq!(root.read("fifo", 9).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn folders_are_made_inside_the_tree() {
        let tree = tempfile::tempdir().unwrap();
        symlink("/usr/real", tree.path().join("link")).unwrap();
        std::fs::create_dir_all(tree.path().join("usr/real")).unwrap();
        let root = Root::open(tree.path()).unwrap();
        root.make_folder("/link/a/b").unwrap();
        assert!(tree.path().join("usr/real/a/b").is_dir());
    }

    #[test]
    fn split_table() {
        assert_eq!(split("/a/b"), Some(("/a/", "b")));
        assert_eq!(split("a"), Some((".", "a")));
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/"), None);
    }
}
