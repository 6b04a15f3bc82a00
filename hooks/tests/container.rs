//! What is in a real container when its program starts, whichever front end put it there:
//! attributes of mounts, nodes, and which devices open.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::runtime::{self, Created};
use crate::support::{make_folders_above, program, Tree};

const VENDOR: &str = r#"{
    "activation_flag": "OCI_X", "driver_feature": ["run"], "root": "/store",
    "inventory": {"run": {
        "devices": ["x0", "xctl"],
        "libraries": ["/opt/x/lib/libx.so.1"],
        "miscellaneous": ["/opt/x/data"],
        "binaries": ["/usr/bin/x-smi"]
    }}
}"#;
/// Of no driver ("local use"): opening a node only shows whether the cgroup allows it.
const MAJOR: u32 = 126;

fn node(tree: &Tree, path: &str, kind: FileType, minor: u32, mode: u32) -> PathBuf {
    let path = tree.path(path);
    make_folders_above(&path);
    let bits = Mode::from_raw_mode(mode);
    mknodat(CWD, &path, kind, bits, makedev(MAJOR, minor)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

fn setup() -> Tree {
    let tree = Tree::new();
    tree.file("host/etc/oci-decorator/oci-decorator.d/x.json", VENDOR);
    tree.library("host/store/opt/x/lib/libx.so.1", "libx.so.1", &[]);
    tree.file("host/store/opt/x/data/a", "");
    tree.file("host/store/usr/bin/x-smi", "");
    let x0 = node(&tree, "host/dev/x0", FileType::CharacterDevice, 1, 0o640);
    std::os::unix::fs::chown(x0, Some(3), Some(4)).unwrap();
    node(&tree, "host/dev/xctl", FileType::BlockDevice, 2, 0o666);
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    let root = tree.path("host").display().to_string();
    tree.file("config.toml", format!("root = {root:?}\nruntimes = [\"runc\"]\n"));
    tree
}

/// A front end, and how a container is created by it.
type FrontEnd = (&'static str, fn(&Tree, Value) -> Result<Created<'_>, String>);

const FRONT_ENDS: [FrontEnd; 2] = [
    ("runtime", |tree, spec| {
        tree.file("bundle/config.json", spec.to_string());
        let mut shim = program("oci-decorator-runtime");
        shim.env("OCI_DECORATOR_CONFIG", tree.path("config.toml"));
        runtime::create(&mut shim, tree)
    }),
    ("hook", |tree, mut spec| {
        let config = tree.path("config.toml").display().to_string();
        spec["hooks"] = json!({"createRuntime": [{
            "path": env!("CARGO_BIN_EXE_oci-decorator"),
            "args": ["oci-decorator", "-config", config, "createRuntime"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        }]});
        tree.file("bundle/config.json", spec.to_string());
        // It lies on a shared mount, as systemd makes all mounts of a host; ours is private.
        let host = tree.path("host").display().to_string();
        let shared = "mount --bind \"$0\" \"$0\" && mount --make-shared \"$0\" && exec runc \"$@\"";
        let mut runc = Command::new("unshare");
        runc.args(["--mount", "sh", "-c", shared, &host]);
        runtime::create(&mut runc, tree)
    }),
];

#[test]
fn mounts_are_read_only_without_set_id_and_devices_and_private() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (front_end, create) in FRONT_ENDS {
        let tree = setup();
        let container = create(&tree, runtime::bundle(&tree, &["OCI_X=all"])).unwrap();
        for path in ["/opt/x/lib/libx.so.1", "/opt/x/data", "/usr/bin/x-smi"] {
            let (options, propagation, _) = container.mount(path).expect(path);
            for wanted in ["ro", "nosuid", "nodev"] {
                let found = options.iter().any(|option| option == wanted);
                assert!(found, "{front_end}: {path} is {options:?}");
            }
            assert_eq!(propagation, Vec::<String>::new(), "{front_end}: {path}");
            let written = fs::write(container.path(&format!("{path}/new")), "");
            assert!(written.is_err(), "{front_end}: {path}");
        }
        // The container can't change the files of a folder either.
        let file = fs::File::options().write(true).open(container.path("/opt/x/data/a"));
        let error = file.unwrap_err().raw_os_error();
        let read_only = rustix::io::Errno::ROFS;
        assert_eq!(error, Some(read_only.raw_os_error()), "{front_end}");
    }
}

#[test]
fn nodes_have_exactly_the_hosts_attributes() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (front_end, create) in FRONT_ENDS {
        let tree = setup();
        let container = create(&tree, runtime::bundle(&tree, &["OCI_X=all"])).unwrap();
        for (name, kind, minor, mode, owner) in
            [("x0", 0o020_000, 1, 0o640, (3, 4)), ("xctl", 0o060_000, 2, 0o666, (0, 0))]
        {
            let about = fs::symlink_metadata(container.path(&format!("/dev/{name}"))).unwrap();
            assert_eq!(about.mode(), kind | mode, "{front_end}: {name}");
            assert_eq!(about.rdev(), makedev(MAJOR, minor), "{front_end}: {name}");
            assert_eq!((about.uid(), about.gid()), owner, "{front_end}: {name}");
        }
    }
}

/// A requested character device and a requested block device open. Their neighbours, and the
/// other kind with the same numbers, don't.
#[test]
fn only_the_devices_that_were_asked_for_open() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (front_end, create) in FRONT_ENDS {
        let tree = setup();
        let nodes: Vec<PathBuf> = (0..4)
            .flat_map(|minor| {
                [('c', FileType::CharacterDevice), ('b', FileType::BlockDevice)].map(
                    |(letter, kind)| {
                        node(&tree, &format!("try/{letter}{minor}"), kind, minor, 0o666)
                    },
                )
            })
            .collect();
        for (environment, expected) in
            [(&["OCI_X=all"][..], vec!["try/c1", "try/b2"]), (&[], vec![])]
        {
            let container = create(&tree, runtime::bundle(&tree, environment)).unwrap();
            let expected: Vec<_> = expected.iter().map(|path| tree.path(path)).collect();
            assert_eq!(container.may_open(&nodes), expected, "{front_end}");
        }
    }
}

/// Nothing in the kernel's file systems is covered, wherever links of the image lead.
#[test]
fn nothing_is_mounted_into_proc_or_sys() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (front_end, create) in FRONT_ENDS {
        for (path, target) in [
            ("opt/x/data", "/proc/sys"),
            ("opt/x/data", "../../proc/1/fdinfo"),
            ("usr/bin/x-smi", "/proc/version"),
            ("opt/x/lib", "/proc/self/attr"),
        ] {
            let tree = setup();
            tree.link(&format!("bundle/rootfs/{path}"), target);
            let spec = runtime::bundle(&tree, &["OCI_X=all"]);
            let container = match create(&tree, spec) {
                Ok(container) => container,
                Err(message) => {
                    assert_eq!(runtime::errors_in(&message).len(), 1, "{front_end}: {message}");
                    continue;
                }
            };
            let file = format!("/proc/{}/mountinfo", container.pid);
            let mounts = fs::read_to_string(file).unwrap();
            let points = || mounts.lines().filter_map(|line| line.split(' ').nth(4));
            assert!(points().any(|point| point == "/proc"), "{mounts}");
            let covered = points().any(|point| point.starts_with("/proc/"));
            assert!(!covered, "{front_end}: {path} to {target}\n{mounts}");
        }
    }
}
