//! Which names the loader is to find, and at which paths.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::edits::Library;
use crate::ldcache::{compare_names, Addition};
use crate::rootfs::split;

/// What `ldconfig` would record for these libraries (glibc `elf/ldconfig.c`,
/// `search_dir`): each soname once a folder, and unversioned links by their name.
/// Where nothing lies at the soname's own path, the entry names the file itself.
pub fn additions(libraries: &[Library]) -> Vec<Addition> {
    let paths: FxHashSet<&str> = libraries.iter().map(|l| l.path.as_str()).collect();
    let mut places: FxHashMap<(&str, &str, u32), usize> = FxHashMap::default();
    let mut additions: Vec<Addition> = Vec::new();
    for library in libraries {
        let Some((folder, name)) = split(&library.path) else {
            continue;
        };
        let soname = if is_development_link(library, name) {
            name
        } else {
            library.soname.as_str()
        };
        let named = [folder, soname].concat();
        let path = if paths.contains(named.as_str()) {
            named
        } else {
            library.path.clone()
        };
        let addition = Addition {
            soname: soname.to_owned(),
            path,
            flags: library.flags,
        };
        match places.get(&(folder, soname, library.flags)) {
            Some(&place) if is_newer(&addition, &additions[place]) => additions[place] = addition,
            Some(_) => {}
            None => {
                places.insert((folder, soname, library.flags), additions.len());
                additions.push(addition);
            }
        }
    }
    additions
}

fn is_newer(one: &Addition, other: &Addition) -> bool {
    compare_names(one.path.as_bytes(), other.path.as_bytes()).is_gt()
}

/// `libcuda.so` beside the soname `libcuda.so.1`.
fn is_development_link(library: &Library, name: &str) -> bool {
    let unversioned = name.strip_suffix(".so").is_some();
    library.is_link && unversioned && library.soname.starts_with(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(path: &str, soname: &str, is_link: bool) -> Library {
        Library {
            path: path.to_owned(),
            soname: soname.to_owned(),
            flags: 0x303,
            is_link,
        }
    }

    fn listed(libraries: &[Library]) -> Vec<String> {
        additions(libraries)
            .into_iter()
            .map(|a| format!("{} {}", a.soname, a.path))
            .collect()
    }

    #[test]
    fn a_single_file_is_named_itself() {
        let file = library("/d/libcuda.so.396.26", "libcuda.so.1", false);
        assert_eq!(listed(&[file]), ["libcuda.so.1 /d/libcuda.so.396.26"]);
    }

    #[test]
    fn the_newest_of_several_files_is_named() {
        let file = |version: &str| library(&format!("/d/libx.so.1.{version}"), "libx.so.1", false);
        let listed = listed(&[file("9"), file("10"), file("2")]);
        assert_eq!(listed, ["libx.so.1 /d/libx.so.1.10"]);
    }

    #[test]
    fn links_count_as_ldconfig_counts_them() {
        let libraries = [
            library("/d/libcuda.so", "libcuda.so.1", true),
            library("/d/libcuda.so.396.26", "libcuda.so.1", false),
            library("/d/libcuda.so.1", "libcuda.so.1", true),
            library("/e/libcuda.so", "libcuda.so.1", false),
        ];
        assert_eq!(
            listed(&libraries),
            [
                "libcuda.so /d/libcuda.so",
                "libcuda.so.1 /d/libcuda.so.1",
                "libcuda.so.1 /e/libcuda.so"
            ]
        );
    }
}
