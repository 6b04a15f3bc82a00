//! Images that try to lead us to the host, through a real runtime and both front ends that
//! write into a container's root. Whatever the image contains, the host stays as it is, and
//! the container starts or is refused with one line.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::{code, is_quick, make_folders_above, program, runtime, stderr, Tree};

const VENDOR: &str = r#"{
    "activation_flag": "OCI_X", "driver_feature": ["run"], "root": "/store",
    "inventory": {"run": {
        "devices": ["xnull"],
        "libraries": ["/opt/x/lib/libx.so.1", "/opt/x/lib/libx.so.1.2"],
        "directories": ["/opt/x/lib", "/opt/x/empty"],
        "binaries": ["/usr/bin/x-smi"]
    }}
}"#;

/// Every path of the image that one of the front ends looks at, and what it should be.
const PLACES: [(&str, Kind); 15] = [
    ("etc", Kind::Folder),
    ("etc/ld.so.cache", Kind::File),
    ("etc/ld.so.conf", Kind::File),
    ("etc/ld.so.conf.d", Kind::Folder),
    ("etc/ld.so.conf.d/00-oci-decorator.conf", Kind::File),
    ("etc/ld-musl-x86_64.path", Kind::File),
    ("etc/.oci-decorator.tmp", Kind::File),
    ("lib/ld-musl-x86_64.so.1", Kind::File),
    ("opt", Kind::Folder),
    ("opt/x/lib", Kind::Folder),
    ("opt/x/lib/libx.so.1", Kind::File),
    ("opt/x/empty", Kind::Folder),
    ("usr/bin", Kind::Folder),
    ("usr/bin/x-smi", Kind::File),
    ("dev", Kind::Folder),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Folder,
    File,
}

/// What the image has at a place instead.
#[derive(Debug, Clone, Copy)]
enum Trap {
    AbsoluteLink,
    RelativeLink,
    LinkThroughProc,
    LinkToItself,
    Fifo,
    Device,
    HugeFile,
    Folder,
}

const TRAPS: [Trap; 8] = [
    Trap::AbsoluteLink,
    Trap::RelativeLink,
    Trap::LinkThroughProc,
    Trap::LinkToItself,
    Trap::Fifo,
    Trap::Device,
    Trap::HugeFile,
    Trap::Folder,
];

impl Trap {
    fn set(self, tree: &Tree, place: &str, kind: Kind) {
        let path = tree.path(&format!("bundle/rootfs/{place}"));
        make_folders_above(&path);
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir_all(&path);
        let canary = match kind {
            Kind::Folder => tree.path("canary"),
            Kind::File => tree.path("canary/file"),
        };
        let canary = canary.display().to_string();
        let node = |kind, numbers| {
            mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), numbers).unwrap();
        };
        let link = |target: &str| std::os::unix::fs::symlink(target, &path).unwrap();
        match self {
            Self::AbsoluteLink => link(&canary),
            Self::RelativeLink => link(&format!("{}{canary}", "../".repeat(12))),
            Self::LinkThroughProc => link(&format!("/proc/self/root{canary}")),
            Self::LinkToItself => link(path.file_name().unwrap().to_str().unwrap()),
            Self::Fifo => node(FileType::Fifo, 0),
            Self::Device => node(FileType::CharacterDevice, makedev(1, 3)),
            Self::HugeFile => {
                let file = fs::File::create(&path).unwrap();
                file.set_len(1 << 40).unwrap();
            }
            Self::Folder => fs::create_dir_all(path.join("within")).unwrap(),
        }
    }
}

/// A host with a driver and a canary, and a bundle.
fn setup() -> (Tree, Value) {
    let tree = Tree::new();
    tree.file("host/etc/oci-decorator/oci-decorator.d/x.json", VENDOR);
    tree.library("host/store/opt/x/lib/libx.so.1.2", "libx.so.1", &[]);
    tree.link("host/store/opt/x/lib/libx.so.1", "libx.so.1.2");
    tree.file("host/store/usr/bin/x-smi", "");
    let mode = Mode::from_raw_mode(0o666);
    let node = tree.folder("host/dev").join("xnull");
    mknodat(CWD, node, FileType::CharacterDevice, mode, makedev(1, 3)).unwrap();
    tree.file("canary/file", "host");
    tree.file("canary/ld.so.cache", "host");
    tree.file("canary/libx.so.1", "host");
    let root = tree.path("host").display().to_string();
    tree.file("config.toml", format!("root = {root:?}\nruntimes = [\"runc\"]\n"));
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
    let spec = runtime::bundle(&tree, &["OCI_X="]);
    (tree, spec)
}

/// Everything about what must not change. Links are left out: with a link for its `/dev`,
/// runc itself follows that and leaves its own there (`fd`, `stdin`, …); we make none.
fn canary(tree: &Tree) -> Vec<(PathBuf, u64, i64, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(tree.path("canary")).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        let text = if about.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
        if !about.is_symlink() {
            found.push((path, about.ino(), about.ctime_nsec(), text));
        }
    }
    found.sort();
    found
}

/// Every place with every trap; each place with one trap where time is short.
fn cases() -> Vec<(&'static str, Kind, Trap)> {
    let places = PLACES.iter().enumerate();
    places
        .flat_map(|(at, (place, kind))| {
            let traps = if is_quick() { &TRAPS[at % TRAPS.len()..][..1] } else { &TRAPS[..] };
            traps.iter().map(move |trap| (*place, *kind, *trap))
        })
        .collect()
}

fn try_everything(start: fn(&Tree, Value) -> std::process::Output) {
    let mut started = 0;
    let cases = cases();
    for &(place, kind, trap) in &cases {
        let (tree, spec) = setup();
        trap.set(&tree, place, kind);
        let before = canary(&tree);
        let output = start(&tree, spec);
        let case = format!("{place} as {trap:?}: {}", stderr(&output));
        assert_eq!(canary(&tree), before, "{case}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&tree.shown()), "{case}\n{mounts}");
        if code(&output) == 0 {
            started += 1;
        } else {
            assert_eq!(runtime::errors_in(&stderr(&output)).len(), 1, "{case}");
        }
    }
    let all = cases.len();
    println!("{started} of {all} hostile images started, the others were refused");
    assert!(started > all / 2, "{started} of {all}: is the set-up broken?");
}

#[test]
fn through_the_runtime() {
    if runtime::find("runc").is_none() {
        return;
    }
    try_everything(|tree, spec| {
        tree.file("bundle/config.json", spec.to_string());
        let mut shim = program("oci-decorator-runtime");
        shim.env("OCI_DECORATOR_CONFIG", tree.path("config.toml"));
        runtime::run(&mut shim, tree)
    });
}

#[test]
fn through_the_hook() {
    if runtime::find("runc").is_none() {
        return;
    }
    try_everything(|tree, mut spec| {
        let config = tree.path("config.toml").display().to_string();
        spec["hooks"] = json!({"createRuntime": [{
            "path": env!("CARGO_BIN_EXE_oci-decorator"),
            "args": ["oci-decorator", "-config", config, "createRuntime"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        }]});
        tree.file("bundle/config.json", spec.to_string());
        runtime::run(&mut Command::new("runc"), tree)
    });
}
