use super::*;
use crate::error::exit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

#[test]
fn the_own_root_is_refused_by_any_name() {
    let tree = tempfile::tempdir().unwrap();
    let link = tree.path().join("link");
    symlink("/", &link).unwrap();
    let names = ["/", "/./", "/..", "/tmp/..", "/proc/self/root"].map(Path::new);
    // Not everyone may look there.
    let first = Path::new("/proc/1/root");
    let first = std::fs::metadata(first).is_ok().then_some(first);
    for path in names.into_iter().chain([&*link]).chain(first) {
        let error = Rootfs::open(path).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("nothing is done to it"), "{message}");
        assert_eq!(error.code, exit::FAILED);
    }
    assert!(Rootfs::open(tree.path()).is_ok());
    let gone = Rootfs::open(&tree.path().join("gone")).unwrap_err();
    assert_eq!(gone.code, exit::NOT_FOUND);
}

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

#[test]
fn files_are_made_in_the_innermost_new_file_system() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(tree.path().join("dev/shm")).unwrap();
    let mut rootfs = Rootfs::open(tree.path()).unwrap();
    let paths = ["/dev", "/dev/shm", "/gone"].map(str::to_owned);
    rootfs.open_new(&paths);
    for (path, expected, is_new) in [
        ("/dev/x0", "x0", true),
        ("/dev", "", true),
        ("/dev/shm/a/b", "a/b", true),
        ("/devices", "/devices", false),
        ("/gone/a", "/gone/a", false),
    ] {
        assert_eq!(rootfs.writer(path).1, expected, "{path}");
        assert_eq!(rootfs.is_in_new(path), is_new, "{path}");
    }
}

/// Opening a device or a FIFO can have an effect, so only folders are opened.
#[test]
fn nothing_is_opened_to_see_what_it_is() {
    use rustix::fs::{inotify, mknodat, Mode, CWD};
    let tree = tempfile::tempdir().unwrap();
    let fifo = tree.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    // With a writer there, opening it would not wait.
    let mut both = std::fs::File::options();
    let _writer = both.read(true).write(true).open(&fifo).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, &fifo, inotify::WatchFlags::OPEN).unwrap();
    let image = Rootfs::open(tree.path()).unwrap();
    for path in ["/fifo", "/fifo/x", "/fifo/x/y"] {
        assert_eq!(image.at(path), At::Something, "{path}");
        assert_eq!(image.link(path), None, "{path}");
        assert!(!image.is_free(path), "{path}");
    }
    assert!(image.files.make_folder("/fifo/x").is_err());
    let mut bytes = [0; 64];
    assert_eq!(rustix::io::read(&watch, &mut bytes), Err(Errno::AGAIN));
}
