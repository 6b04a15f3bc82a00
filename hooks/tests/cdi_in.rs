//! Specifications of CDI, read and applied to a spec that a real runtime then runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use oci_decorator::apply::spec::Spec;
use oci_decorator::apply::write_files;
use oci_decorator::frontends::{self, cdi};
use oci_decorator::host::rootfs::Rootfs;
use oci_decorator::host::Host;
use oci_decorator::log::{Level, Log};
use serde_json::{json, Value};

use crate::support::{code, runtime, stderr, stdout, Tree};

/// Edits the bundle as a front end does for a container that asks for these devices.
fn apply(tree: &Tree, names: &[&str]) -> String {
    let text = tree.text("bundle/config.json");
    let host = Host::open(&tree.path("host")).unwrap();
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let (edits, notes) = cdi::edits(&names, &[PathBuf::from("/etc/cdi")], &host).unwrap();
    assert_eq!(notes, []);
    let spec = Spec::parse(&text).unwrap();
    let rootfs = Rootfs::open(&tree.path("bundle/rootfs")).unwrap();
    let log = Log::new(Level::Error, None, "");
    let root = tree.path("host");
    let settled =
        frontends::settle(edits, spec.present().unwrap(), Some(&rootfs), &root, &log).unwrap();
    let edited = spec.edited(&settled).unwrap();
    write_files(&rootfs, &settled, &log);
    tree.file("bundle/config.json", &edited);
    edited
}

fn setup() -> Tree {
    let tree = Tree::new();
    tree.library("host/usr/lib/libx.so.5", "libx.so.1", &[]);
    tree.folder("host/dev");
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
    let yaml = "---
cdiVersion: 0.7.0
kind: v.com/gpu
containerEdits:
  env: [SEEN=common, OWN=theirs]
  mounts:
  - hostPath: /usr/lib/libx.so.5
    containerPath: /usr/lib/x/libx.so.5
    options: [ro, nosuid, nodev, rbind, rprivate]
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, create-symlinks, --link, 'libx.so.5::/usr/lib/x/libx.so', --link, '../zero::/dev/by/x']
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x]
devices:
- name: 0
  containerEdits:
    env: [DEVICE=0]
    additionalGids: [0, 44]
    deviceNodes:
    - {path: /dev/xzero, type: c, major: 1, minor: 5, permissions: r, fileMode: 0640, gid: 44}
    mounts:
    - {hostPath: tmpfs, containerPath: /scratch, type: tmpfs, options: [size=64k]}
";
    tree.file("host/etc/cdi/x.yaml", yaml);
    tree
}

#[test]
fn a_container_gets_what_its_device_says() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let Some(program) = runtime::find("runc") else {
        return;
    };
    let tree = setup();
    let spec = runtime::bundle(&tree, &["OWN=mine"]);
    tree.file("bundle/config.json", spec.to_string());
    let once = apply(&tree, &["v.com/gpu=0"]);
    assert_eq!(apply(&tree, &["v.com/gpu=0"]), once, "twice is once");
    let edited: Value = serde_json::from_str(&once).unwrap();
    // Here the program that edits is this test.
    let own = std::env::current_exe().unwrap().display().to_string();
    assert!(once.contains(&own));
    let once = once.replace(&own, env!("CARGO_BIN_EXE_oci-decorator"));
    tree.file("bundle/config.json", once);
    let expected = json!(["PATH=/bin", "OWN=theirs", "SEEN=common", "DEVICE=0"]);
    assert_eq!(edited["process"]["env"], expected);
    assert_eq!(edited["process"]["user"]["additionalGids"], json!([44]));
    // Only the hook that has to wait for /dev is left.
    assert_eq!(edited["hooks"]["createContainer"].as_array().unwrap().len(), 1);
    let container = match runtime::create(&mut Command::new(program), &tree) {
        Ok(container) => container,
        Err(problem) => panic!("{problem}"),
    };
    let node = std::fs::metadata(container.path("/dev/xzero")).unwrap();
    assert!(node.file_type().is_char_device());
    assert_eq!(
        (node.rdev(), node.mode() & 0o777, node.gid()),
        (rustix::fs::makedev(1, 5), 0o640, 44)
    );
    assert_eq!(container.mount("/scratch").unwrap().2, "tmpfs");
    assert!(container.mount("/usr/lib/x/libx.so.5").unwrap().0.contains(&"ro".to_owned()));
    let lead = |path: &str| std::fs::read_link(container.path(path)).unwrap();
    assert_eq!(lead("/usr/lib/x/libx.so"), Path::new("libx.so.5"));
    assert_eq!(lead("/usr/lib/x/libx.so.1"), Path::new("libx.so.5"));
    assert_eq!(lead("/dev/by/x"), Path::new("../zero"));
    drop(container);
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/usr/lib/x/libx.so"), "{cache}");
}

#[test]
fn a_later_folder_counts_more_and_two_files_of_one_are_a_conflict() {
    let tree = setup();
    let put = |path: &str, name: &str, value: &str| {
        let edits = json!({"env": [format!("A={value}")]});
        let devices = json!([{"name": name, "containerEdits": edits}]);
        let spec = json!({"cdiVersion": "0.5.0", "kind": "v.com/c", "devices": devices});
        tree.file(&format!("host/{path}"), spec.to_string());
    };
    let given = |name: &str| {
        let folders = ["/etc/cdi", "/run/cdi"].map(PathBuf::from);
        let found = cdi::edits(&[name.to_owned()], &folders, &Host::open(&tree.path("host"))?);
        found.map(|(edits, _)| edits.environment.concat())
    };
    for (path, name, value) in
        [("etc/cdi/a", "d", "etc"), ("run/cdi/b", "d", "run"), ("etc/cdi/c", "e", "etc")]
    {
        put(&format!("{path}.json"), name, value);
    }
    assert_eq!(given("v.com/c=d").unwrap(), "A=run");
    assert_eq!(given("v.com/c=e").unwrap(), "A=etc");
    put("etc/cdi/d.json", "e", "other");
    assert!(given("v.com/c=e").unwrap_err().to_string().contains("neither counts"));
    // A file of a later folder decides.
    put("run/cdi/d.json", "e", "late");
    assert_eq!(given("v.com/c=e").unwrap(), "A=late");
}

/// No mount of the spec could do what our hook does for the driver's settings.
#[test]
fn runc_refuses_mounts_below_proc() {
    let Some(program) = runtime::find("runc") else {
        return;
    };
    let tree = setup();
    let mut spec = runtime::bundle(&tree, &[]);
    let source = tree.file("params", "");
    let mount = json!({"destination": "/proc/driver/nvidia/params", "type": "bind", "source": source, "options": ["bind"]});
    spec["mounts"].as_array_mut().unwrap().push(mount);
    tree.file("bundle/config.json", spec.to_string());
    let output = runtime::run(&mut Command::new(program), &tree);
    assert_ne!(code(&output), 0, "{}", stdout(&output));
    // Its reason differs from version to version.
    assert!(stderr(&output).contains("/proc/driver/nvidia/params"), "{}", stderr(&output));
}
