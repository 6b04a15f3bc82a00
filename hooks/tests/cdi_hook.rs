//! `nvidia-cdi-hook`, by itself and under a real runtime.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use oci_decorator::host::ldcache::{merge, parse, write, Addition, Cache};
use serde_json::{json, Value};

use crate::support::{code, need, program, runtime, stderr, stdout, Tree};

/// A bundle whose image has a loader, and a library that is there as if it was mounted.
fn setup() -> Tree {
    let tree = Tree::new();
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.file("bundle/rootfs/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n");
    tree.library("bundle/rootfs/opt/d/libx.so.5", "libx.so.1", &[]);
    config(&tree, "rootfs");
    tree
}

fn config(tree: &Tree, root: &str) {
    tree.file("bundle/config.json", json!({"root": {"path": root}}).to_string());
}

/// Runs the hook as runtimes do at that stage. What it must not use exists, and is wrong.
fn hook(tree: &Tree, words: &[&str]) -> std::process::Output {
    use std::io::Write;
    let state = json!({"id": "c", "pid": 1, "status": "creating", "bundle": tree.path("bundle")});
    let mut child = program("nvidia-cdi-hook")
        .args(words)
        .current_dir(tree.path("bundle/rootfs"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(state.to_string().as_bytes());
    child.wait_with_output().unwrap()
}

fn works(tree: &Tree, words: &[&str]) {
    let output = hook(tree, words);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{words:?}");
}

#[test]
fn links_are_made_within_the_root() {
    let tree = setup();
    let outside = Tree::new();
    tree.link("bundle/rootfs/out", &outside.shown());
    let words =
        ["create-symlinks", "--link", "libx.so.5::/opt/d/libx.so", "--link=../a::/new/folder/b"];
    for _ in 0..2 {
        works(&tree, &words);
    }
    let lead = |path: &str| std::fs::read_link(tree.path("bundle/rootfs").join(path)).unwrap();
    assert_eq!(lead("opt/d/libx.so").to_str(), Some("libx.so.5"));
    assert_eq!(lead("new/folder/b").to_str(), Some("../a"));
    // A file is the image's own. A folder of the host is out of reach.
    let output =
        hook(&tree, &["create-symlinks", "--link", "x::/etc/ld.so.conf", "--link", "x::/out/evil"]);
    assert_eq!(code(&output), 0);
    assert!(
        stderr(&output).contains("the image has a file or folder of that name"),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("/out/evil"), "{}", stderr(&output));
    assert_eq!(outside.listing(), Vec::<String>::new());
}

/// With those above them, in the image only. What is there stays.
#[test]
fn directories_are_made_within_the_root() {
    let tree = setup();
    let outside = Tree::new();
    tree.link("bundle/rootfs/out", &outside.shown());
    for _ in 0..2 {
        works(&tree, &["create-directories", "--path=/opt/new/empty", "--path", "/opt/d"]);
    }
    assert!(tree.path("bundle/rootfs/opt/new/empty").is_dir());
    assert!(tree.path("bundle/rootfs/opt/d/libx.so.5").is_file());
    let output = hook(&tree, &["create-directories", "--path=/out/evil", "--path=/etc/ld.so.conf"]);
    assert_eq!(code(&output), 0);
    assert_eq!(outside.listing(), Vec::<String>::new());
    assert!(tree.path("bundle/rootfs/etc/ld.so.conf").is_file());
}

#[test]
fn the_cache_is_merged_once_however_often_a_container_starts() {
    let tree = setup();
    let words = ["update-ldcache", "--folder", "/opt/d", "--ldconfig-path", "@/sbin/ldconfig"];
    works(&tree, &words);
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/opt/d/libx.so.5\0"), "{cache}");
    let drop_in = tree.text("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf");
    assert!(drop_in.ends_with("/opt/d\n"), "{drop_in}");
    let listing = tree.listing();
    for _ in 0..44 {
        works(&tree, &words);
    }
    assert_eq!(tree.listing(), listing);
    assert_eq!(tree.text("bundle/rootfs/etc/ld.so.cache"), cache);
}

#[test]
fn newer_libraries_of_the_image_come_first_and_only_where_they_are_newer() {
    let tree = setup();
    tree.library("bundle/rootfs/opt/d/libcuda.so.1", "libcuda.so.1", &[]);
    let compat = "bundle/rootfs/usr/local/cuda/compat";
    tree.library(&format!("{compat}/libcuda.so.580.10.01"), "libcuda.so.1", &[]);
    tree.link(&format!("{compat}/libcuda.so.1"), "libcuda.so.580.10.01");
    let start = |driver: &str| {
        works(&tree, &["enable-cuda-compat", &format!("--host-driver-version={driver}")]);
        works(&tree, &["update-ldcache", "--folder", "/opt/d"]);
        let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
        let ours = cache.find("/usr/local/cuda/compat/libcuda.so.1\0");
        let theirs = cache.find("/opt/d/libcuda.so.1\0").unwrap();
        (ours, theirs)
    };
    assert_eq!(start("590.1").0, None);
    let drop_in = tree.path("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator-compat.conf");
    assert!(!drop_in.exists());
    start("535.1");
    let files: Vec<_> = tree.listing();
    start("535.1");
    assert_eq!(tree.listing(), files);
    assert!(drop_in.exists());
    // The order matters, because the loader takes the first entry.
    let bytes = std::fs::read(tree.path("bundle/rootfs/etc/ld.so.cache")).unwrap();
    let cache = parse(&bytes).unwrap();
    let first = cache.entries.iter().find(|e| e.soname == b"libcuda.so.1").unwrap();
    assert_eq!(String::from_utf8_lossy(first.path), "/usr/local/cuda/compat/libcuda.so.1");
    start("590.1");
    assert!(!drop_in.exists());
}

/// A copy of the library of the soname libx.so.1.
fn copy(tree: &Tree, path: &str) {
    let bytes = std::fs::read(tree.path("bundle/rootfs/opt/d/libx.so.5")).unwrap();
    tree.file(&format!("bundle/rootfs{path}"), bytes);
}

fn mounted(tree: &Tree, paths: &[String]) {
    let mounts: Vec<_> =
        paths.iter().map(|it| json!({"destination": it, "type": "bind"})).collect();
    let config = json!({"root": {"path": "rootfs"}, "mounts": mounts});
    tree.file("bundle/config.json", config.to_string());
}

/// The image's own cache decides about the folders that it knows.
#[test]
fn in_folders_that_the_image_knows_only_mounted_files_are_new() {
    let tree = setup();
    for folder in ["/usr/lib", "/opt/known", "/opt/new"] {
        // Of the libraries with one soname, the last name counts.
        for file in ["libz.so.1", "libmounted.so.5", "libother"] {
            copy(&tree, &format!("{folder}/{file}"));
        }
    }
    copy(&tree, "/opt/else/libmounted.so.5");
    let own = ["/opt/known/libown.so.1", "/opt/known/second.so"].map(|path| Addition {
        soname: "libown.so.1".to_owned(),
        path: path.to_owned(),
        flags: 0x303,
    });
    let cache = write(&merge(Cache::default(), &own)).unwrap();
    tree.file("bundle/rootfs/etc/ld.so.cache", cache);
    let mounts = ["/usr/lib/", "/opt/known/", "/opt/new/", "/opt/else/"].map(|folder| {
        ["libmounted.so.5", "libother", "libgone.so"].map(|file| format!("{folder}/{file}"))
    });
    mounted(&tree, &mounts.concat());
    works(&tree, &["update-ldcache", "--folder", "/usr/lib,/opt/known/", "--folder=/opt/new"]);
    let bytes = std::fs::read(tree.path("bundle/rootfs/etc/ld.so.cache")).unwrap();
    let entries = parse(&bytes).unwrap().entries;
    let mut listed: Vec<_> = entries.iter().map(|e| String::from_utf8_lossy(e.path)).collect();
    listed.sort();
    let expected = [
        "/opt/known/libmounted.so.5",
        "/opt/known/libown.so.1",
        "/opt/known/second.so",
        "/opt/new/libz.so.1",
        "/usr/lib/libmounted.so.5",
    ];
    assert_eq!(listed, expected);
    for folder in ["usr/lib", "opt/known", "opt/new"] {
        let link = tree.path(&format!("bundle/rootfs/{folder}/libx.so.1"));
        assert_eq!(std::fs::read_link(link).unwrap().to_str(), Some("libmounted.so.5"), "{folder}");
    }
    assert!(!tree.path("bundle/rootfs/opt/else/libx.so.1").exists());
}

/// If the file with the soname is mounted too, no link replaces it.
#[test]
fn only_needed_links_are_made_and_failures_are_reported() {
    for (second, said) in [("libx.so.1", 0), ("liby.so", 2)] {
        let tree = setup();
        for name in ["libx.so.1", second] {
            copy(&tree, &format!("/opt/d/{name}"));
        }
        mounted(&tree, &["libx.so.5", second].map(|name| format!("/opt/d/{name}")));
        let output = hook(&tree, &["update-ldcache", "--folder", "/opt/d"]);
        assert_eq!(stderr(&output).lines().count(), said, "{}", stderr(&output));
        assert!(tree.path("bundle/rootfs/opt/d/libx.so.1").is_file());
    }
}

#[test]
fn modes_are_changed_in_the_image_only() {
    let tree = setup();
    tree.link("bundle/rootfs/link", "opt/d/libx.so.5");
    let paths = "/link,/opt/../opt//,/none";
    let output = hook(&tree, &["chmod", "--mode", "751", "--path", paths]);
    let said = stderr(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("can't change the mode of /none"), "{said}");
    for path in ["opt/d/libx.so.5", "opt"] {
        let about = tree.path(&format!("bundle/rootfs/{path}")).metadata().unwrap();
        assert_eq!(about.permissions().mode() & 0o7777, 0o751, "{path}");
    }
}

/// Everything in the image is its author's, the number of its files too.
#[test]
fn a_folder_of_the_image_with_too_many_files_is_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let folders = ["/opt/d", "/usr/local/cuda/compat"];
    // Names that are not UTF-8 take as long to read.
    for filler in [&b"x"[..], b"\xff"] {
        let tree = setup();
        let drop_in = "bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator-compat.conf";
        tree.file(drop_in, "/usr/local/cuda/compat\n");
        for folder in folders {
            let folder = tree.folder(&format!("bundle/rootfs{folder}"));
            tree.library("image/libcuda.so.580.1", "libcuda.so.1", &[]);
            std::fs::copy(tree.path("image/libcuda.so.580.1"), folder.join("libcuda.so.580.1"))
                .unwrap();
            for number in 0..20_000 {
                let name = [&filler.repeat(240)[..], number.to_string().as_bytes()].concat();
                let name = std::ffi::OsStr::from_bytes(&name);
                std::fs::hard_link(tree.path("bundle/config.json"), folder.join(name)).unwrap();
            }
        }
        for (words, left_out) in [
            (&["update-ldcache", "--folder", "/opt/d"][..], &folders[..]),
            (&["enable-cuda-compat", "--host-driver-version=535.1"], &folders[1..]),
        ] {
            let output = hook(&tree, words);
            assert_eq!(code(&output), 0, "{words:?}");
            let said = stderr(&output);
            let missing = left_out.iter().find(|folder| !said.contains(**folder));
            assert_eq!(missing, None, "{said}");
        }
        let cache = tree.path("bundle/rootfs/etc/ld.so.cache");
        let cache = std::fs::read(cache).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&cache).contains("libcuda.so.580.1"));
    }
}

#[test]
fn the_hosts_root_is_refused_and_so_is_what_is_not_understood() {
    let tree = setup();
    for root in ["", "/", "//", "/.", "/tmp/.."] {
        config(&tree, root);
        let output = hook(&tree, &["update-ldcache", "--folder", "/opt/d"]);
        assert_eq!(code(&output), 1, "{root}");
        assert!(
            root.is_empty() == stderr(&output).contains("root.path \"\"")
                && stderr(&output).contains("has the root.path"),
            "{root} {}",
            stderr(&output)
        );
    }
    works(&tree, &["update-application-profile", "--new=option", "--other", "x"]);
    // What a newer version of NVIDIA's program knows stops no container; a mistake does.
    for (words, expected) in [
        (&["fly"][..], 0),
        (&["fly", "--to", "x", "--container-spec=/nowhere"], 0),
        (&[], 0),
        (&["--quick"], 0),
        (&["chmod", "--fly"], 2),
        (&["update-ldcache", "--folder", "relative"], 2),
    ] {
        let output = hook(&tree, words);
        assert_eq!(code(&output), expected, "{words:?}");
        assert!(stderr(&output).lines().count() == 1, "{}", stderr(&output));
    }
    assert!(stdout(&hook(&tree, &["--version"])).contains("NVIDIA CDI Hook"));
    config(&tree, "rootfs");
    let state = tree.file("state", json!({"bundle": tree.path("bundle")}).to_string());
    let state = state.display().to_string();
    works(&tree, &["create-symlinks", "--container-spec", &state, "--link", "x::/y"]);
    works(&tree, &["chmod", "--mode", "700", "--path", "/opt/d"]);
    let mode = std::fs::metadata(tree.path("bundle/rootfs/opt/d")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o700);
}

/// In a mount namespace, as at that stage. This machine has no such driver, so that a plain
/// folder stands for /proc.
#[test]
fn the_drivers_settings_are_covered_by_a_file_of_ours() {
    if !need::root("mounts") {
        return;
    }
    let tree = setup();
    let own = "A: 1\nModifyDeviceFiles: 1\nB: 2\n";
    tree.file("bundle/rootfs/proc/driver/nvidia/params", own);
    tree.file("bundle/rootfs/proc/driver/nvidia/version", "");
    let state = tree.file("state", json!({"bundle": tree.path("bundle")}).to_string());
    tree.link("nvidia-cdi-hook", env!("CARGO_BIN_EXE_oci-decorator"));
    let script = "set -e
        mount --make-rprivate /
        for _ in 1 2; do ./nvidia-cdi-hook disable-device-node-modification --container-spec state; done
        cd bundle/rootfs/proc/driver/nvidia
        cat params; ls; (echo x >params) 2>&1 | grep -o 'Read-only' || true
        grep -c \"$PWD\" /proc/self/mountinfo";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .current_dir(tree.0.path())
        .output()
        .unwrap();
    let new = own.replace("Files: 1", "Files: 0");
    let expected = format!("{new}params\nversion\nRead-only\n1\n");
    assert_eq!((stdout(&output), stderr(&output)), (expected, String::new()));
    assert!(state.exists());
    assert_eq!(tree.text("bundle/rootfs/proc/driver/nvidia/params"), own);
}

/// A user's own mounts: a volume, and a file over the driver's settings.
#[test]
fn what_the_user_mounted_stays_as_it_is() {
    if !need::root("mounts") {
        return;
    }
    let tree = setup();
    tree.file("bundle/rootfs/vol/x", "");
    tree.file("volume/x", "");
    tree.file("bundle/rootfs/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n");
    tree.folder("memory");
    tree.file("state", json!({"bundle": tree.path("bundle")}).to_string());
    tree.link("nvidia-cdi-hook", env!("CARGO_BIN_EXE_oci-decorator"));
    let script = "set -e
        mount --make-rprivate /
        mount --bind volume bundle/rootfs/vol
        mount -t tmpfs none memory
        echo 'ModifyDeviceFiles: 1' >memory/params
        mount --bind memory/params bundle/rootfs/proc/driver/nvidia/params
        ./nvidia-cdi-hook chmod --mode 777 --path /vol/x --container-spec state
        ./nvidia-cdi-hook disable-device-node-modification --container-spec state
        cat bundle/rootfs/proc/driver/nvidia/params
        stat -c %a volume/x";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .current_dir(tree.0.path())
        .output()
        .unwrap();
    let expected = "ModifyDeviceFiles: 1\n644\n".to_owned();
    assert_eq!((stdout(&output), code(&output)), (expected, 0), "{}", stderr(&output));
}

/// As runc starts the hook where the container's ids may not enter the user's home: in the container's
/// root, of which the mounts are known. Elsewhere, nothing is known.
#[test]
fn a_bundle_that_the_container_cannot_read() {
    if !need::root("mounts") {
        return;
    }
    let tree = setup();
    for folder in ["memory", "bundle/rootfs/new", "bundle/rootfs/vol", "bundle/rootfs/proc"] {
        tree.folder(folder);
    }
    tree.file("state", json!({"bundle": tree.path("bundle")}).to_string());
    let script = r#"set -e
        mount --make-rprivate /
        exec 9<"$1"
        chmod 700 bundle
        chown -R 12345:12345 bundle/rootfs
        mount --bind bundle/rootfs bundle/rootfs
        mount -t tmpfs -o mode=777 none bundle/rootfs/new
        mount -t tmpfs -o mode=777 none memory
        mount --bind memory bundle/rootfs/vol
        # Of a disk from elsewhere: its name is no UTF-8.
        odd=$(printf 'd\351sk')
        mkdir "$odd"
        mount -t tmpfs none "$odd"
        hook() (
            cd "$1"
            setpriv --reuid=12345 --regid=12345 --clear-groups bash -c \
                'exec -a nvidia-cdi-hook /proc/self/fd/9 create-symlinks --link x::/opt/y --link x::/new/y --link x::/vol/y'
        )
        tried() { hook "$1" <state 2>/dev/null && code=0 || code=$?; echo "$code"; }
        tried bundle/rootfs
        mount -t proc proc bundle/rootfs/proc
        tried bundle/rootfs/new
        tried bundle/rootfs
        cd bundle/rootfs
        find opt/y new/y vol/y -maxdepth 0 2>/dev/null || true"#;
    let output = Command::new("unshare")
        .args(["-m", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_oci-decorator")])
        .current_dir(tree.0.path())
        .output()
        .unwrap();
    let expected = "1\n1\n0\nopt/y\nnew/y\n".to_owned();
    assert_eq!((stdout(&output), code(&output)), (expected, 0), "{}", stderr(&output));
}

#[test]
fn a_real_runtime_starts_a_container_with_every_hook() {
    let Some(program) = runtime::find("runc") else {
        return;
    };
    let tree = setup();
    let mut spec = runtime::bundle(&tree, &["LD_PRELOAD=/evil.so"]);
    let mounts = spec["mounts"].as_array_mut().unwrap();
    let source = tree.path("bundle/rootfs/opt/d/libx.so.5");
    mounts.push(json!({"destination": "/usr/lib/libx.so.5", "type": "bind", "source": source, "options": ["bind", "ro"]}));
    let hook = |words: &[&str]| {
        let args = [&["nvidia-cdi-hook"], words].concat();
        json!({"path": env!("CARGO_BIN_EXE_oci-decorator"), "args": args, "env": []})
    };
    spec["hooks"]["createContainer"] = Value::Array(vec![
        hook(&[
            "create-symlinks",
            "--link",
            "libx.so.5::/usr/lib/libx.so",
            "--link",
            "../null::/dev/by/x",
        ]),
        hook(&["update-ldcache", "--folder", "/usr/lib"]),
        hook(&["disable-device-node-modification"]),
        hook(&["disable-device-node-modification"]),
    ]);
    tree.file("bundle/config.json", spec.to_string());
    let container = match runtime::create(&mut Command::new(program), &tree) {
        Ok(container) => container,
        Err(problem) => panic!("{problem}"),
    };
    let lead = |path: &str| std::fs::read_link(container.path(path)).unwrap();
    assert_eq!(lead("/usr/lib/libx.so").to_str(), Some("libx.so.5"));
    assert_eq!(lead("/usr/lib/libx.so.1").to_str(), Some("libx.so.5"));
    assert_eq!(lead("/dev/by/x").to_str(), Some("../null"), "a file system that is new");
    drop(container);
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/usr/lib/libx.so.5\0"), "{cache}");
    let after = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!after.contains(&tree.shown()), "a mount is left: {after}");
}
