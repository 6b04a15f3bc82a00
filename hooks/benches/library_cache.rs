//! Compares our library cache with `ldconfig -r` of the same image with the driver's files
//! in it. The two run in turns; one JSON document has the medians.
//!
//! `cargo bench --bench library_cache -- HOST IMAGE`: HOST is the root of a host with
//! vendor files, of which every feature is used; IMAGE is a container's root. Both stay
//! unchanged. Needs root.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use oci_decorator::config::settings;
use oci_decorator::config::vendor::read;
use oci_decorator::host::resolve::resolve_all;
use oci_decorator::host::rootfs::Root;
use oci_decorator::host::{ldcache, Host};
use oci_decorator::model::edits::Edits;
use oci_decorator::model::vendor::Choice;
use rustix::mount::{MountFlags, UnmountFlags};

const ROUNDS: usize = 60;

fn main() {
    let words: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|word| word != "--bench").map(PathBuf::from).collect();
    let [host, image] = words.as_slice() else {
        eprintln!("usage: cargo bench --bench library_cache -- HOST IMAGE");
        return;
    };
    let with_driver = copy(image);
    install(&edits(host), with_driver.path());
    let (mut native, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let fresh = Container::new(image);
        native.push(timed(|| update(host, &fresh.root)));
        let fresh = Container::new(with_driver.path());
        peer.push(timed(|| ldconfig(&fresh.root)));
    }
    let (native, peer) = (median(native), median(peer));
    let ratio = native / peer;
    let libraries = edits(host).libraries.len();
    println!(
        "{{\"libraries\":{libraries},\"native_ms\":{native:.3},\"ldconfig_ms\":{peer:.3},\"ratio\":{ratio:.3}}}"
    );
}

/// The edits of every feature of every vendor of the host.
fn edits(host: &Path) -> Edits {
    let folder = settings::beneath(host, settings::DEFAULT_CONFIG_DIR);
    let files = read(&folder).expect("vendor files");
    let host = Host::open(host).expect("the host");
    let mut edits = Edits::default();
    for choice in files.iter().filter_map(Choice::whole) {
        edits.append(resolve_all(&host, &choice).expect("edits").0);
    }
    edits
}

/// Measures the way from the vendor files to the cache, with lookups and sonames.
fn update(host: &Path, image: &Path) {
    let root = Root::open(image).expect("the image");
    let notes = ldcache::update(&root, &edits(host).libraries);
    assert!(notes.is_empty(), "{notes:?}");
}

fn ldconfig(image: &Path) {
    let mut command = Command::new("/sbin/ldconfig");
    command.arg("-r").arg(image).stderr(Stdio::null());
    assert!(command.status().expect("ldconfig").success());
}

/// An image as a new container has it: the lower layer of an overlay.
struct Container {
    root: PathBuf,
    folder: tempfile::TempDir,
}

impl Container {
    fn new(image: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let part = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).expect("a folder");
            path
        };
        let (upper, work, root) = (part("upper"), part("work"), part("root"));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            image.display(),
            upper.display(),
            work.display()
        );
        let options = CString::new(options).expect("no NUL");
        let flags = MountFlags::empty();
        rustix::mount::mount("overlay", &root, "overlay", flags, options.as_c_str())
            .expect("an overlay");
        Self { root, folder }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let unmounted = rustix::mount::unmount(&self.root, UnmountFlags::DETACH);
        unmounted.unwrap_or_else(|e| panic!("{}: {e}", self.folder.path().display()));
    }
}

fn copy(image: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let source = image.join(".");
    let status = Command::new("cp").arg("-a").arg(source).arg(copy.path()).status();
    assert!(status.expect("cp").success());
    copy
}

/// Puts the driver's files where a container has them.
fn install(edits: &Edits, image: &Path) {
    for mount in &edits.mounts {
        let target = image.join(mount.target.trim_start_matches('/'));
        fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        fs::copy(&mount.source, target).expect("a copy");
    }
    let folders: std::collections::BTreeSet<_> =
        edits.libraries.iter().filter_map(|library| Path::new(&library.path).parent()).collect();
    let mut lines = String::new();
    for folder in folders {
        lines.push_str(&folder.display().to_string());
        lines.push('\n');
    }
    fs::write(image.join("etc/ld.so.conf.d/01-driver.conf"), lines).expect("a file");
}

fn timed(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
