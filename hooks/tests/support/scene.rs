//! A host with a driver, a bundle that asks for it, and a low-level runtime that only
//! writes down what it is given.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use super::{program, Tree};

pub const CONFIG_DIR: &str = "host/etc/oci-decorator/oci-decorator.d";
pub const VENDOR: &str = r#"{
    "version": "1.2",
    "log_level": "LOG_DEBUG",
    "activation_flag": "OCI_X",
    "driver_feature": ["run"],
    "root": "/store/current",
    "inventory": {
        "run": {
            "devices": ["null", "absent[0-9]"],
            "libraries": ["/opt/x/lib/libx.so.1", "/opt/x/lib/libx.so.1.2", "/opt/x/lib/libgone.so"],
            "directories": ["/opt/x/lib", "/opt/x/empty"]
        },
        "more": {"binaries": ["/usr/bin/x-smi"]}
    }
}"#;
pub const SPEC: &str = r#"{"ociVersion":"1.0.2","process":{"env":["PATH=/bin","OCI_X=run"]},"root":{"path":"rootfs"},"mounts":[{"destination":"/proc","type":"proc"}],"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}},"x-unknown":1.50}"#;

/// A host with a driver and a bundle whose image has a glibc loader.
pub fn setup() -> Tree {
    let tree = Tree::new();
    tree.file(&format!("{CONFIG_DIR}/x.json"), VENDOR);
    tree.library("host/store/v1/opt/x/lib/libx.so.1.2", "libx.so.1", &[]);
    tree.link("host/store/v1/opt/x/lib/libx.so.1", "libx.so.1.2");
    tree.file("host/store/v1/usr/bin/x-smi", "");
    tree.link("host/store/current", "v1");
    tree.folder("host/dev");
    tree.link("host/dev/null", "zero");
    if rustix::process::geteuid().is_root() {
        node(&tree);
    }
    tree.file("bundle/config.json", SPEC);
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    // It has the variables of the engine, too.
    tree.script(
        "bin/low",
        &format!(
            ": \"${{OCI_DECORATOR_CONFIG:?}}\"; echo \"low: $*\"; printf '%s' \"$0\" > {}/ran",
            tree.shown()
        ),
    );
    // The first that can be run, and is not this program itself.
    tree.file("bin/unable", "");
    tree.link("bin/self", env!("CARGO_BIN_EXE_oci-decorator"));
    tree.file(
        "config.toml",
        format!(
            "root = \"{0}/host\"\nruntimes = [\"absent\", \"unable\", \"self\", \"{0}/bin/low\"]\nlog-file = \"{0}/log\"\nlog-level = \"debug\"\n",
            tree.shown()
        ),
    );
    tree
}

fn node(tree: &Tree) {
    use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
    let path = tree.path("host/dev/zero");
    let mode = Mode::from_raw_mode(0o620);
    mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(1, 5)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o620)).unwrap();
}

/// Runs the shim in the bundle.
pub fn shim(tree: &Tree, words: &[&str]) -> Output {
    shim_in(tree, "bundle", words)
}

pub fn shim_in(tree: &Tree, folder: &str, words: &[&str]) -> Output {
    let path = format!("{}/bin:/usr/bin:/bin", tree.shown());
    program("/usr/bin/oci-decorator-runtime")
        .args(words)
        .env("PATH", path)
        .env("OCI_DECORATOR_CONFIG", tree.path("config.toml"))
        .current_dir(tree.path(folder))
        .output()
        .unwrap()
}
