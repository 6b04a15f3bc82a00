//! One mount for a folder instead of one for each of its files.
//!
//! Runtimes take a tenth of a millisecond for a mount. Where a folder of the driver holds
//! nothing but what the inventory lists, and the image has nothing in its place, the
//! container sees the same either way.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::edits::{lies_in, Edits, Mount};
use crate::host::{names_in, Tree};
use crate::inroot::{split, Root};

/// Below this, what is saved isn't worth another lookup.
const MIN_FILES: usize = 8;

/// The folders of a vendor's tree that could be mounted as they are: every name in them
/// is the target of one of these mounts, and comes from that very folder.
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

/// Puts whole folders in place of their files, where nothing of the image or of the
/// engine's own mounts (destination and source) would be hidden.
pub fn fold(edits: &mut Edits, root: &Root, present: &[(Cow<str>, Cow<str>)]) {
    for folder in std::mem::take(&mut edits.folders) {
        let within = |m: &Mount| lies_in(&m.target, &folder.target);
        let own = |m: &Mount| lies_in(&m.source, &folder.source);
        let crossed = present.iter().any(|(destination, source)| {
            let ours = *destination == folder.target && *source == folder.source;
            !ours && (lies_in(destination, &folder.target) || lies_in(&folder.target, destination))
        });
        let whole = edits.mounts.iter().filter(|m| within(m)).all(own);
        if whole && !crossed && is_free(root, &folder.target) {
            edits.mounts.retain(|m| !within(m));
            edits.mounts.push(folder);
        }
    }
    edits.sort();
}

/// True where the image has no such folder, or an empty one.
fn is_free(root: &Root, path: &str) -> bool {
    match root.open_in(path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(folder) => names_in(&folder).is_ok_and(|names| names.is_empty()),
        Err(error) => error == Errno::NOENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    fn mount(target: &str) -> Mount {
        Mount {
            source: format!("/h{target}"),
            target: target.to_owned(),
        }
    }

    fn edits() -> Edits {
        Edits {
            mounts: vec![mount("/d/a"), mount("/d/b"), mount("/e/c")],
            folders: vec![mount("/d")],
            ..Edits::default()
        }
    }

    fn folded(edits: &mut Edits, image: &[&str], present: &[(&str, &str)]) -> Vec<String> {
        let tree = tempfile::tempdir().unwrap();
        for path in image {
            std::fs::create_dir_all(tree.path().join(path)).unwrap();
        }
        let present: Vec<_> = present.iter().map(|&(d, s)| (d.into(), s.into())).collect();
        fold(edits, &Root::open(tree.path()).unwrap(), &present);
        edits.mounts.iter().map(|m| m.target.clone()).collect()
    }

    #[test]
    fn a_folder_serves_where_it_hides_nothing() {
        let (whole, single) = (["/d", "/e/c"], ["/d/a", "/d/b", "/e/c"]);
        assert_eq!(folded(&mut edits(), &[], &[]), whole);
        assert_eq!(
            folded(&mut edits(), &["d"], &[("/d", "/h/d"), ("/x", "/y")]),
            whole
        );
        assert_eq!(folded(&mut edits(), &["d/x"], &[]), single);
        for present in [("/d", "/mine"), ("/d/a", "/mine"), ("/d/x", "/mine")] {
            assert_eq!(folded(&mut edits(), &[], &[present]), single, "{present:?}");
        }
        let mut mixed = edits();
        mixed.mounts[1].source = "/other/b".to_owned();
        assert_eq!(folded(&mut mixed, &[], &[]), single);
    }

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
