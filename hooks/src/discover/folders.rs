//! Folders of a vendor's tree that could be mounted as they are.

use std::collections::BTreeMap;

use super::host::Tree;
use crate::edits::Mount;
use crate::rootfs::split;

/// Below this, what is saved isn't worth another lookup.
const MIN_FILES: usize = 8;

/// Those in which every name is the target of one of these mounts, and comes from that
/// very folder.
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
            whole.then(|| Mount {
                source: source.clone(),
                target: folder.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::host::Host;

    #[test]
    fn only_folders_without_anything_else_are_whole() {
        let tree = tempfile::tempdir().unwrap();
        let store = tree.path().join("store/lib");
        std::fs::create_dir_all(&store).unwrap();
        let names: Vec<String> = (0..MIN_FILES).map(|i| format!("lib{i}.so")).collect();
        let mounts = || -> Vec<Mount> {
            let one = |name: &String| Mount {
                source: store.join(name).display().to_string(),
                target: format!("/lib/{name}"),
            };
            names.iter().map(one).collect()
        };
        for name in &names {
            std::fs::write(store.join(name), "").unwrap();
        }
        let host = Host::open(tree.path()).unwrap();
        let whole = |mounts: &[Mount]| {
            let vendor = host.tree(Some("/store")).unwrap();
            whole_folders(&vendor, mounts)
        };
        let found = whole(&mounts());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].source, store.display().to_string());
        assert_eq!(found[0].target, "/lib");
        assert!(whole(&mounts()[1..]).is_empty());
        std::fs::write(store.join("more"), "").unwrap();
        assert!(whole(&mounts()).is_empty());
    }
}
