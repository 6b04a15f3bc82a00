//! `nvidia-container-cli configure`, as engines start it: LXC, enroot and Apptainer in the mount
//! namespace of the container, whose root is mounted already, and containerd's `ctr` with its process.

use std::fs;
use std::os::unix::fs::{lchown, PermissionsExt};
use std::process::{Command, Output};

use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};

use crate::support::{code, install_copy, need, program, stderr, stdout, Tree};

const NAME: &str = "nvidia-container-cli";
const VENDOR: &str = r#"{
    "activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"], "version": "535.261.03",
    "units": "nvidia[0-9]*", "interfaces": ["nvidia"],
    "inventory": {
        "compute": {"devices": ["nvidiactl", "nvidia[0-9]*"], "libraries": ["/usr/lib/libcuda.so.1"]},
        "utility": {"devices": ["nvidiactl"], "binaries": ["/usr/bin/nvidia-smi"]}
    }
}"#;

/// A host whose GPUs are the nodes of other devices, which can be read, and an image.
fn setup() -> Tree {
    let tree = Tree::new();
    tree.file("host/etc/oci-decorator/oci-decorator.d/nvidia.json", VENDOR);
    tree.library("host/usr/lib/libcuda.so.1", "libcuda.so.1", &[]);
    tree.file("host/usr/bin/nvidia-smi", "the driver's");
    tree.folder("host/dev");
    for (name, minor) in [("nvidiactl", 3), ("nvidia0", 5), ("nvidia1", 5)] {
        let path = tree.path("host/dev").join(name);
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(1, minor)).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
    }
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    tree.folder("bundle/rootfs/dev");
    tree.file("config.toml", format!("root = \"{}/host\"\n", tree.shown()));
    // A copy: another user has no way to where this was compiled.
    install_copy(env!("CARGO_BIN_EXE_oci-decorator"), &tree.path(&format!("bin/{NAME}")));
    tree
}

/// Configures the image twice in a mount namespace with a `/dev` of its own, and prints what is in it.
fn script(tree: &Tree, words: &str) -> std::path::PathBuf {
    let shown = tree.shown();
    tree.script(
        "configure",
        &format!(
            "set -eu
            root={shown}/bundle/rootfs
            mount --bind $root $root
            mount -t tmpfs -o mode=755 tmpfs $root/dev
            configure() {{
                {shown}/bin/{NAME} --debug={shown}/debug --oci-decorator-config={shown}/config.toml {words} $root
            }}
            configure
            mounts=$(wc -l </proc/self/mountinfo)
            configure
            [ \"$mounts\" = \"$(wc -l </proc/self/mountinfo)\" ]
            ls $root/dev
            head -c 3 $root/dev/nvidia0 | wc -c
            sed -n \"s|.* $root/usr/[^ ]*/\\([^ ]* ro,nosuid,nodev\\).*|\\1|p\" /proc/self/mountinfo | sort
            /sbin/ldconfig -pC $root/etc/ld.so.cache | grep -o 'libcuda.*'"
        ),
    )
}

const WORDS: &str = "--user --load-kmods configure --no-cgroups --ldconfig=@/sbin/ldconfig \
    --device=0 --compute --utility --require='driver>=535'";
const EXPECTED: &str = "nvidia0\nnvidiactl\n3\nlibcuda.so.1 ro,nosuid,nodev\nnvidia-smi ro,nosuid,nodev\nlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\n";

#[test]
fn a_root_is_filled_in_the_mount_namespace_of_its_engine() {
    if !need::root("mount namespaces") || !need::need(cfg!(target_arch = "x86_64"), "x86-64") {
        return;
    }
    let user = ["setpriv", "--reuid=100000", "--regid=100000", "--clear-groups"];
    let enters = ["unshare", "--user", "--map-root-user", "--mount"];
    for words in [&["unshare", "--mount"][..], &enters, &[&user[..], &enters].concat()] {
        let enter = |program: &std::path::Path| {
            Command::new(words[0]).args(&words[1..]).arg(program).output().unwrap()
        };
        let may = enter("true".as_ref()).status.success();
        if !need::need(may, "user namespaces of users") {
            continue;
        }
        let tree = setup();
        fs::set_permissions(tree.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        tree.file("debug", "");
        if words[0] == "setpriv" {
            // The image is the user's, and the host is root's.
            let listing = tree.listing();
            let image = listing.iter().filter(|path| !path.starts_with("host"));
            for path in image.filter(|path| *path != "config.toml") {
                lchown(tree.path(path), Some(100_000), Some(100_000)).unwrap();
            }
        }
        let output = enter(&script(&tree, WORDS));
        assert_eq!(stdout(&output), EXPECTED, "{words:?} {output:?}");
        assert_eq!(code(&output), 0, "{words:?} {output:?}");
        assert!(tree.text("debug").contains("OCI_NVIDIA gives compute, utility"));
        let left = tree.listing();
        assert!(!left.iter().any(|path| path.starts_with("bundle/rootfs/dev/")), "{left:?}");
    }
}

#[test]
fn a_root_is_filled_in_the_mount_namespace_of_a_process() {
    if !need::root("mount namespaces") {
        return;
    }
    let tree = setup();
    let shown = tree.shown();
    let script = tree.script(
        "of-a-process",
        &format!(
            "unshare --mount sleep 60 & pid=$!
            until [ \"$(readlink /proc/$pid/ns/mnt)\" != \"$(readlink /proc/$$/ns/mnt)\" ]; do sleep 0.02; done
            {shown}/bin/{NAME} --oci-decorator-config={shown}/config.toml configure --pid=$pid \
                --no-cgroups --device=1 --utility --compute {shown}/bundle/rootfs
            code=$?
            ls /proc/$pid/root{shown}/bundle/rootfs/dev
            cat /proc/$pid/root{shown}/bundle/rootfs/usr/bin/nvidia-smi
            kill $pid
            exit $code"
        ),
    );
    let output = Command::new(script).output().unwrap();
    assert_eq!(stdout(&output), "nvidia1\nnvidiactl\nthe driver's", "{output:?}");
    assert_eq!(code(&output), 0, "{output:?}");
    assert_eq!(tree.text("bundle/rootfs/usr/bin/nvidia-smi"), "");
}

fn configure(tree: &Tree, words: &[&str]) -> Output {
    let config = format!("--oci-decorator-config={}/config.toml", tree.shown());
    let mut command = program(NAME);
    command.args([&config, "configure"]).args(words).arg(tree.path("bundle/rootfs"));
    command.output().unwrap()
}

/// Engines show one line of an error. The host's own root is never filled.
#[test]
fn what_is_refused() {
    if !need::root("device nodes") {
        return;
    }
    let tree = setup();
    let own = format!("--pid={}", std::process::id());
    for (words, expected) in [
        (&["--device=0"][..], "--pid or --no-cgroups is missing"),
        (&["--no-cgroups", "--device=7"], "asks for the device \"7\""),
        (&["--no-cgroups", "--device=0", "--require=driver>=600"], "NVIDIA_REQUIRE_0"),
        (&["--no-cgroups", "--device=0", "--mig-config=all"], "is for privileged containers only"),
        (&["--no-cgroups", &own, "--device=0"], "has no mount namespace of its own"),
        (&["--no-cgroups", "/", "--device=0"], "unexpected word"),
    ] {
        let output = configure(&tree, words);
        let message = stderr(&output);
        assert_ne!(code(&output), 0, "{words:?}");
        assert!(message.contains(expected) && message.lines().count() == 1, "{message}");
    }
    assert_eq!(tree.listing().iter().filter(|path| path.contains("rootfs/dev/")).count(), 0);
}
