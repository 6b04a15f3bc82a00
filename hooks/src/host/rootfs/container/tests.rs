use super::*;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

#[test]
fn an_image_is_looked_at_within_its_root() {
    let tree = tempfile::tempdir().unwrap();
    for folder in ["usr/lib", "usr/empty"] {
        std::fs::create_dir_all(tree.path().join(folder)).unwrap();
    }
    let latin = std::ffi::OsStr::from_bytes(b"usr/latin/\xe9");
    std::fs::create_dir_all(tree.path().join(latin)).unwrap();
    symlink("usr/lib", tree.path().join("lib")).unwrap();
    symlink("/etc", tree.path().join("usr/lib/out")).unwrap();
    let image = Rootfs::open(tree.path()).unwrap();
    for (path, at, link, free) in [
        ("/usr", At::Something, None, false),
        ("/usr/empty", At::Something, None, true),
        ("/usr/gone", At::Nothing, None, true),
        ("/usr/latin", At::Something, None, false),
        ("/lib", At::Link, Some("usr/lib"), false),
        ("/usr/lib/out", At::Link, Some("/etc"), false),
        ("/usr/lib/out/passwd", At::Link, None, false),
    ] {
        assert_eq!(image.at(path), at, "{path}");
        assert_eq!(image.link(path).as_deref(), link, "{path}");
        assert_eq!(image.is_free(path), free, "{path}");
    }
}
