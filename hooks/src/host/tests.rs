use super::*;
use std::os::unix::fs::symlink;

/// A host with files in `store`, and links to them.
fn host() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    std::fs::create_dir_all(store.join("lib")).unwrap();
    std::fs::create_dir_all(store.join("other")).unwrap();
    std::fs::write(store.join("lib/file"), "content").unwrap();
    std::fs::write(store.join("other/file"), "other").unwrap();
    let link = |target: &str, name: &str| symlink(target, store.join(name)).unwrap();
    link("file", "lib/link");
    link("../other/file", "lib/across");
    link("/other/file", "lib/absolute");
    link("..", "lib/up");
    link("self", "lib/self");
    link("lib", "folder-link");
    link("/etc/passwd", "lib/out");
    for i in 0..=MAX_LINKS {
        link(&format!("chain{}", i + 1), &format!("lib/chain{i}"));
    }
    link("file", &format!("lib/chain{}", MAX_LINKS + 1));
    dir
}

fn found(tree: &Tree, path: &str) -> std::result::Result<(String, bool, String), Errno> {
    let found = tree.find(path)?;
    let mut content = String::new();
    if let Ok(fd) = found.open() {
        std::io::Read::read_to_string(&mut std::fs::File::from(fd), &mut content).unwrap();
    }
    Ok((found.source.clone().unwrap(), found.is_link, content))
}

#[test]
fn short_and_long_way_find_the_same() {
    let dir = host();
    let host = Host::open(dir.path()).unwrap();
    let shown = dir.path().display();
    let cases: [(&str, &str, bool, &str); 7] = [
        ("/lib/file", "lib/file", false, "content"),
        ("/lib/link", "lib/file", true, "content"),
        ("/lib/across", "other/file", true, "other"),
        ("/lib/absolute", "other/file", true, "other"),
        ("/folder-link/file", "lib/file", false, "content"),
        ("/folder-link/link", "lib/file", true, "content"),
        ("/lib/chain0", "lib/file", true, "content"),
    ];
    let tree = host.tree(Some("/store")).unwrap();
    for (path, source, is_link, content) in cases {
        let expected = format!("{shown}/store/{source}");
        let expected = (expected, is_link, content.to_owned());
        assert_eq!(found(&tree, path), Ok(expected), "{path}");
    }
}

#[test]
fn links_stay_within_the_tree() {
    let dir = host();
    let host = Host::open(dir.path()).unwrap();
    let tree = host.tree(Some("/store")).unwrap();
    assert_eq!(tree.find("/lib/out").unwrap_err(), Errno::NOENT);
    assert_eq!(tree.find("/lib/self").unwrap_err(), Errno::LOOP);
    assert_eq!(tree.find("/gone/file").unwrap_err(), Errno::NOENT);
    assert_eq!(tree.find("/lib/file/x").unwrap_err(), Errno::NOTDIR);
    let up = tree.find("/lib/up").unwrap();
    assert_eq!(up.kind, FileType::Directory);
    assert_eq!(up.open().unwrap_err(), Errno::INVAL);
}

#[test]
fn boards_are_known_by_two_files() {
    for (path, text, expected) in [
        ("etc/nv_tegra_release", "# R35", true),
        ("sys/devices/soc0/family", "Tegra\n", true),
        ("sys/devices/soc0/family", "i.MX\n", false),
        ("etc/os-release", "", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        let host = Host::open(dir.path()).unwrap();
        assert_eq!(host.is_tegra(), expected, "{path} {text}");
    }
}
