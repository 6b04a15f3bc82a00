use super::*;
use crate::host::elf::tests::sample;
use crate::host::ldcache::{merge, parse, write, Addition, Cache};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::PathBuf;

use serde_json::{json, Value};
use tempfile::TempDir;

const CONF: &str = "include ld.so.conf.d/*.conf\n";
const CACHE: &str = "etc/ld.so.cache";

/// A bundle whose image has a loader of glibc.
struct Bundle(TempDir);

/// Runs the work in a thread with its own mount namespace.
#[allow(unsafe_code)]
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use rustix::mount::{mount_change, MountPropagationFlags};
    use rustix::thread::{unshare_unsafe, UnshareFlags};
    let run = || {
        // SAFETY: descriptors stay shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Bundle {
    fn new() -> Self {
        let bundle = Self(tempfile::tempdir().unwrap());
        bundle.config(&json!({"root": {"path": "rootfs"}}));
        bundle.file("lib64/ld-linux-x86-64.so.2", "");
        bundle.file("etc/ld.so.conf", CONF);
        bundle
    }

    fn config(&self, config: &Value) {
        fs::write(self.0.path().join("config.json"), config.to_string()).unwrap();
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join("rootfs").join(path)
    }

    fn file(&self, path: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), bytes).unwrap();
    }

    /// Adds a library with the soname libx.so.1.
    fn library(&self, path: &str) {
        self.file(path, sample(62, true, "libm.so.6"));
    }

    /// The image's own cache lists these paths.
    fn cache(&self, paths: &[&str]) {
        let addition = |path: &&str| Addition {
            soname: "libown.so.1".to_owned(),
            path: (*path).to_owned(),
            flags: 0x303,
        };
        let additions: Vec<_> = paths.iter().map(addition).collect();
        self.file(CACHE, write(&merge(Cache::default(), &additions)).unwrap());
    }

    fn listed(&self) -> Vec<String> {
        let bytes = fs::read(self.at(CACHE)).unwrap_or_default();
        let cache = parse(&bytes).unwrap();
        let paths = cache.entries.iter().map(|e| e.path.to_vec());
        let mut paths: Vec<_> = paths.map(|path| String::from_utf8(path).unwrap()).collect();
        paths.sort();
        paths
    }

    fn run(&self, verb: &Verb) -> Result<Vec<String>> {
        let state = json!({"id": "c", "pid": 1, "bundle": self.0.path()}).to_string();
        // On a thread with its own umask.
        let notes = apart(|| run(verb, &state))?;
        Ok(notes.into_iter().map(|note| note.message).collect())
    }
}

fn is_root() -> bool {
    crate::need::root("namespaces")
}

/// The image's own cache decides about the folders that it knows.
#[test]
fn in_folders_that_the_image_knows_only_mounted_files_are_new() {
    if !is_root() {
        return;
    }
    let bundle = Bundle::new();
    for folder in ["usr/lib", "opt/known", "opt/new"] {
        // Of the libraries with one soname, the last name counts.
        for file in ["libz.so.1", "libmounted.so.5", "libother"] {
            bundle.library(&format!("{folder}/{file}"));
        }
    }
    bundle.library("opt/else/libmounted.so.5");
    bundle.cache(&["/opt/known/libown.so.1", "/opt/known/second.so"]);
    let mounts = ["/usr/lib/", "/opt/known/", "/opt/new/", "/opt/else/"].map(|folder| {
        ["libmounted.so.5", "libother", "libgone.so"]
            .map(|file| json!({"destination": format!("{folder}/{file}"), "type": "bind"}))
    });
    bundle.config(&json!({"root": {"path": "rootfs"}, "mounts": mounts.concat()}));
    let folders = ["/usr/lib", "/opt/known/", "/opt/new"].map(str::to_owned);
    assert_eq!(bundle.run(&Verb::UpdateLdcache(folders.into())), Ok(vec![]));
    let expected = [
        "/opt/known/libmounted.so.5",
        "/opt/known/libown.so.1",
        "/opt/known/second.so",
        "/opt/new/libz.so.1",
        "/usr/lib/libmounted.so.5",
    ];
    assert_eq!(bundle.listed(), expected);
    for folder in ["usr/lib", "opt/known", "opt/new"] {
        let target = fs::read_link(bundle.at(&format!("{folder}/libx.so.1"))).unwrap();
        assert_eq!(target, Path::new("libmounted.so.5"), "{folder}");
    }
    assert!(!bundle.at("opt/else/libx.so.1").exists());
}

/// If the file with the soname is mounted too, no link replaces it.
#[test]
fn only_needed_links_are_made_and_failures_are_reported() {
    if !is_root() {
        return;
    }
    for (second, notes) in [("libx.so.1", 0), ("liby.so", 1)] {
        let bundle = Bundle::new();
        bundle.library("opt/d/libx.so.5");
        bundle.library(&format!("opt/d/{second}"));
        bundle.file("opt/d/libx.so.1", sample(62, true, "libm.so.6"));
        let mounts = ["libx.so.5", second]
            .map(|name| json!({"destination": format!("/opt/d/{name}"), "type": "bind"}));
        bundle.config(&json!({"root": {"path": "rootfs"}, "mounts": mounts}));
        let said = bundle.run(&Verb::UpdateLdcache(vec!["/opt/d".to_owned()])).unwrap();
        assert_eq!(said.len(), 2 * notes, "{said:?}");
        assert!(bundle.at("opt/d/libx.so.1").is_file());
    }
}

#[test]
fn modes_are_changed_in_the_image_only() {
    if !is_root() {
        return;
    }
    let bundle = Bundle::new();
    bundle.file("opt/file", "");
    symlink("opt/file", bundle.at("link")).unwrap();
    let mode = |path: &str| fs::metadata(bundle.at(path)).unwrap().permissions().mode() & 0o7777;
    let verb = Verb::Chmod {
        mode: 0o751,
        paths: vec!["/link".to_owned(), "/opt/../opt//".to_owned(), "/none".to_owned()],
    };
    let notes = bundle.run(&verb).unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("can't change the mode of /none"), "{notes:?}");
    assert_eq!((mode("opt/file"), mode("opt")), (0o751, 0o751));
}
