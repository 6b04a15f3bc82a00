//! Finds a program of the host that a configuration names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// The folders in which programs are looked up without a `PATH`, and the `PATH` of hooks that run
/// other programs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The possible paths of a program: an absolute path itself, or a name in each absolute folder of
/// the list. A relative folder would lie in the working folder, which is a bundle.
pub fn candidates(name: &str, search: &OsStr) -> Vec<PathBuf> {
    if name.starts_with('/') {
        return vec![name.into()];
    }
    let folders = std::env::split_paths(search).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).collect()
}

/// True for a file that this process may run.
pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|stat| stat.is_file())
        && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}
