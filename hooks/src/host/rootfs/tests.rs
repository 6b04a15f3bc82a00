use std::fs::{self, create_dir, set_permissions, write, Permissions};
use std::os::unix::fs::{chown, symlink, MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;
use crate::need;

#[test]
fn only_a_filter_of_system_calls_hides_that_openat2_is_missing() {
    assert_eq!(refused(Errno::PERM, || true), Errno::NOSYS);
    assert_eq!(refused(Errno::PERM, || false), Errno::PERM);
    assert_eq!(refused(Errno::LOOP, || true), Errno::LOOP);
}

#[test]
fn the_limit_counts_what_the_kernel_hands_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("name"), "").unwrap();
    let size: usize = [".", "..", "name"].iter().map(|name| 19 + name.len()).sum();
    let names = |limit| {
        let opened = std::fs::File::open(dir.path()).unwrap();
        names_within(opened, limit).unwrap().map(|all| all.len())
    };
    assert_eq!(names(size), Some(1));
    assert_eq!(names(size - 1), None);
}

fn mode(path: &Path, mode: u32) {
    set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A file in two folders, all trusted.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    mode(&path, 0o755);
    for folder in ["a", "a/b"] {
        create_dir(path.join(folder)).unwrap();
        mode(&path.join(folder), 0o755);
    }
    write(path.join("a/b/file"), "").unwrap();
    mode(&path.join("a/b/file"), 0o644);
    (dir, path)
}

fn problem(path: &Path) -> Option<String> {
    open_trusted(path).unwrap().problem.map(|found| found.to_string())
}

#[test]
fn as_many_links_are_followed_as_the_kernel_follows() {
    let (_dir, root) = tree();
    let mut last = root.join("a/b/file");
    for number in 0..=MAX_LINKS {
        assert_eq!(open_trusted(&last).is_ok(), std::fs::metadata(&last).is_ok(), "{number}");
        let link = root.join(number.to_string());
        symlink(&last, &link).unwrap();
        last = link;
    }
    assert_eq!(open_trusted(&last).unwrap_err(), Errno::LOOP);
    assert!(std::fs::metadata(&last).is_err());
}

#[test]
fn a_user_trusts_root_and_own_files() {
    let is_trusted = |uid| owner_is_trusted(uid, 1000, Some(65_534));
    assert_eq!([0, 1000, 65_534, 1001].map(is_trusted), [true, true, true, false]);
}

#[test]
fn every_step_of_the_way_counts() {
    let (_dir, root) = tree();
    let file = root.join("a/b/file");
    assert_eq!(problem(&file), None);
    for (step, bits, expected) in [
        ("a/b/file", 0o646, Some("is writable by everyone")),
        ("a/b", 0o777, Some("is writable by everyone")),
        ("a", 0o757, Some("is writable by everyone")),
        ("a", 0o1777, None),
        ("a/b/file", 0o1646, Some("is writable by everyone")),
    ] {
        let step = root.join(step);
        mode(&step, bits);
        let expected = expected.map(|problem| format!("{} {problem}", step.display()));
        assert_eq!(problem(&file), expected, "{bits:o}");
        mode(&step, 0o755);
    }
}

#[test]
fn other_owners_and_groups_are_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "chown needs root");
        return;
    }
    let (_dir, root) = tree();
    let (folder, file) = (root.join("a"), root.join("a/b/file"));
    let shown = folder.display();
    chown(&folder, Some(65534), None).unwrap();
    assert_eq!(problem(&file), Some(format!("{shown} is not owned by root")));
    chown(&folder, Some(0), Some(12345)).unwrap();
    assert_eq!(problem(&file), None);
    mode(&folder, 0o775);
    assert_eq!(problem(&file), Some(format!("{shown} is writable by a group")));
    chown(&folder, None, Some(0)).unwrap();
    assert_eq!(problem(&file), None, "root's own group");
    // Another user's link in a sticky folder is not trusted.
    mode(&folder, 0o1777);
    let link = root.join("a/link");
    symlink("b", &link).unwrap();
    assert_eq!(problem(&root.join("a/link/file")), None);
    std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
    let expected = format!("{} is not owned by root", link.display());
    assert_eq!(problem(&root.join("a/link/file")), Some(expected));
}

#[test]
fn links_are_followed_and_where_they_lead_counts() {
    let (_dir, root) = tree();
    create_dir(root.join("c")).unwrap();
    mode(&root.join("c"), 0o755);
    symlink("../a/./b", root.join("c/relative")).unwrap();
    symlink(root.join("a/b"), root.join("c/absolute")).unwrap();
    for name in ["relative", "absolute"] {
        let path = root.join("c").join(name).join("file");
        let found = open_trusted(&path).unwrap();
        let (own, other) =
            (rustix::fs::fstat(&found.fd).unwrap(), rustix::fs::stat(&path).unwrap());
        assert_eq!(own.st_ino, other.st_ino);
        assert_eq!(found.problem, None);
        mode(&root.join("a"), 0o777);
        let expected = format!("{} is writable by everyone", root.join("a").display());
        assert_eq!(problem(&path), Some(expected));
        mode(&root.join("a"), 0o755);
    }
    assert_eq!(problem(&root.join("a/../c/../a/b/file")), None);
    symlink("loop", root.join("loop")).unwrap();
    assert_eq!(open_trusted(&root.join("loop")).unwrap_err(), Errno::LOOP);
    assert_eq!(open_trusted(&root.join("none")).unwrap_err(), Errno::NOENT);
    assert_eq!(open_trusted(&root.join("a/b/file/x")).unwrap_err(), Errno::NOTDIR);
}

fn image() -> (tempfile::TempDir, Root) {
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
    let (dir, root) = image();
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("made");
    symlink(&target, dir.path().join("link")).unwrap();
    assert_eq!(root.make_file("/link").unwrap_err(), Errno::LOOP);
    assert!(!target.exists());
}

#[test]
fn a_file_is_no_folder() {
    let (dir, root) = image();
    fs::write(dir.path().join("file"), "").unwrap();
    assert_eq!(root.make_folder("/file").unwrap_err(), Errno::NOTDIR);
}

#[test]
fn a_link_that_is_right_stays_and_another_is_replaced() {
    let (dir, root) = image();
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
    let (dir, root) = image();
    std::os::unix::fs::chown(dir.path(), Some(1000), Some(1001)).unwrap();
    for target in ["a", "b"] {
        root.make_link("/link", target).unwrap();
        assert_eq!(owner(&dir.path().join("link")), (1000, 1001), "{target}");
    }
}
