//! Where a program of the host is that a configuration names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Where programs are looked up when there is no `PATH`, and the `PATH` of hooks that programs
/// of others are run for.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where it may be: a path from the root is itself, and a name is in each folder of the list
/// that is such a path. Another folder would be looked up in the current one, which is a bundle.
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
