use super::*;
use std::fs;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::Path;

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
