//! Mounts a folder once instead of each of its files.
//!
//! A runtime needs a tenth of a millisecond for a mount. If a folder of the driver has only files
//! of the inventory, and the image has nothing at its path, the container sees the same either way.

use super::present::Container;
use super::{lies_in, DescribedMount, Edits, Mount};

/// Replaces files with their whole folder, where that hides nothing of the image and none of the
/// container's own mounts.
pub(super) fn fold(edits: &mut Edits, container: &mut Container) {
    if edits.folders.is_empty() {
        return;
    }
    for folder in std::mem::take(&mut edits.folders) {
        let within = |m: &Mount| lies_in(&m.target, &folder.target);
        let own = |m: &Mount| lies_in(&m.source, &folder.source);
        let described = |m: &DescribedMount| lies_in(&m.target, &folder.target);
        let whole = edits.mounts.iter().filter(|m| within(m)).all(own)
            && !edits.described.iter().any(described);
        if whole && container.hides_nothing(&folder.target, &folder.source) {
            edits.mounts.retain(|m| !within(m));
            edits.mounts.push(folder);
        }
    }
    edits.sort();
}

#[cfg(test)]
mod tests {
    use super::super::paths::{At, Image};
    use super::super::present::{Mounted, Present};
    use super::*;

    /// An image that has only these folders.
    struct Holds(&'static [&'static str]);

    impl Image for Holds {
        fn at(&self, _: &str) -> At {
            At::Something
        }

        fn link(&self, _: &str) -> Option<String> {
            None
        }

        fn is_free(&self, folder: &str) -> bool {
            !self.0.iter().any(|path| *path != folder && lies_in(path, folder))
        }
    }

    fn mount(target: &str) -> Mount {
        Mount { source: format!("/h{target}"), target: target.to_owned() }
    }

    fn edits() -> Edits {
        Edits {
            mounts: vec![mount("/d/a"), mount("/d/b"), mount("/e/c")],
            folders: vec![mount("/d")],
            ..Edits::default()
        }
    }

    fn folded(edits: Edits, image: &'static [&str], present: &[(&str, &str)]) -> Vec<String> {
        let mounts = present.iter().map(|&(destination, source)| Mounted {
            destination: destination.into(),
            source: source.into(),
            is_new: false,
        });
        let present = Present { mounts: mounts.collect(), ..Present::default() };
        let (settled, _) = edits.settle(&present, &Holds(image));
        settled.mounts.iter().map(|m| m.target.clone()).collect()
    }

    #[test]
    fn a_folder_serves_where_it_hides_nothing() {
        let (whole, single) = (["/d", "/e/c"], ["/d/a", "/d/b", "/e/c"]);
        assert_eq!(folded(edits(), &[], &[]), whole);
        assert_eq!(folded(edits(), &["/d"], &[("/x", "/y")]), whole);
        assert_eq!(folded(edits(), &["/d/x"], &[]), single);
        assert_eq!(folded(edits(), &[], &[("/d/x", "/mine")]), single);
        let mut mixed = edits();
        mixed.mounts[1].source = "/other/b".to_owned();
        assert_eq!(folded(mixed, &[], &[]), single);
    }

    #[test]
    fn a_folder_of_an_earlier_start_is_found_again() {
        for image in [&["/d"][..], &["/d", "/d/a"]] {
            let found = folded(edits(), image, &[("/d", "/h/d"), ("/e/c", "/h/e/c")]);
            assert_eq!(found, Vec::<String>::new(), "{image:?}");
        }
    }
}
