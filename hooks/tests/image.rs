//! What the runtime shim writes into a container's root, and what it leaves unchanged there.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::support::scene::{setup, shim, CONFIG_DIR, SPEC, VENDOR};
use crate::support::{code, make_folders_above, need, stderr, Tree};
use oci_decorator::host::ldcache;

/// A container that was committed to an image keeps what the runtime left in place of
/// mounted files: empty ones. The loader must not find those of a driver that is gone.
#[test]
fn an_image_made_of_a_decorated_container_takes_another_driver() {
    let tree = setup();
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    for stub in ["libx.so.1", "libx.so.1.2"] {
        tree.file(&format!("bundle/rootfs/opt/x/lib/{stub}"), "");
    }
    tree.library("bundle/rootfs/opt/x/lib/libown.so.1", "libown.so.1", &[]);
    tree.library("host/store/v2/opt/x/lib/liby.so.7", "liby.so.7", &[]);
    fs::remove_file(tree.path("host/store/current")).unwrap();
    tree.link("host/store/current", "v2");
    let other = VENDOR.replace("libgone.so", "liby.so.7");
    tree.file(&format!("{CONFIG_DIR}/x.json"), other);
    tree.file("bundle/config.json", SPEC);
    assert_eq!(code(&shim(&tree, &["create", "c2"])), 0);
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/opt/x/lib/liby.so.7\0"));
    assert!(!cache.contains("libx.so.1"), "{cache}");
    let drop_in = tree.text("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf");
    assert_eq!(drop_in.matches("/opt/x/lib\n").count(), 1);
}

/// Both files are the image's, and as large as they are read: a start that compared each
/// entry with each line would take a quarter of a minute.
#[test]
fn a_large_cache_and_a_long_list_of_folders_make_no_start_wait() {
    let tree = setup();
    let additions = [ldcache::Addition {
        soname: "liba.so".to_owned(),
        path: "/long/enough/liba.so".to_owned(),
        flags: 0x303,
    }];
    let one = ldcache::write(&ldcache::merge(ldcache::Cache::default(), &additions)).unwrap();
    let (header, rest) = one.split_at(48);
    let (entry, strings) = rest.split_at(24);
    let count = ((4 << 20) - one.len()) / 24;
    let shifted = |at: usize| {
        let old = u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap());
        (old + u32::try_from((count - 1) * 24).unwrap()).to_ne_bytes()
    };
    let entry = [&entry[..4], &shifted(4), &shifted(8), &entry[12..]].concat();
    let mut cache = header.to_vec();
    cache[20..24].copy_from_slice(&u32::try_from(count).unwrap().to_ne_bytes());
    cache.extend(entry.repeat(count));
    cache.extend(strings);
    tree.file("bundle/rootfs/etc/ld.so.cache", cache);
    let list = "/long/enougX\n".repeat(5000);
    let drop_in = "bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf";
    tree.file(drop_in, list);
    let started = Instant::now();
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    let written = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(written.contains("/opt/x/lib/libx.so.1\0"));
    assert_eq!(tree.text(drop_in).matches("enougX").count(), 1);
}

/// All of it is the author's of the container: a start that compared each mount with each other
/// one, or each name with each, would take minutes.
#[test]
fn a_long_specification_makes_no_start_wait() {
    let tree = setup();
    let many = |count: usize, item: &dyn Fn(usize) -> Value| (0..count).map(item).collect();
    let mut spec: Value = serde_json::from_str(SPEC).unwrap();
    let mount = |at| json!({"destination": format!("/mnt/{at}/../{at}/own"), "source": "/h"});
    spec["mounts"] = many(20_000, &mount);
    let node = |at| json!({"path": format!("/mnt/{at}/node"), "type": "p"});
    spec["linux"]["devices"] = many(20_000, &node);
    let rule = |_| json!({"allow": true, "type": "c", "major": 1, "minor": 5, "access": "rwm"});
    spec["linux"]["resources"]["devices"] = many(20_000, &rule);
    let names: Vec<String> = (0..60_000).map(|at| at.to_string()).collect();
    let list = format!("NVIDIA_VISIBLE_DEVICES={}", names.join(","));
    let entries = names.iter().map(|at| json!(format!("V{at}=1")));
    spec["process"]["env"] = entries.chain([json!("OCI_X=run"), json!(list)]).collect();
    tree.file("bundle/config.json", spec.to_string());
    let mut settings = tree.text("config.toml");
    for (interfaces, status) in [("", 0), ("interfaces = [\"nvidia\"]\n", 1)] {
        settings += interfaces;
        tree.file("config.toml", &settings);
        let started = Instant::now();
        assert_eq!(code(&shim(&tree, &["create", "c1"])), status);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

/// Makes the image hostile in one way; the host's canary must stay untouched
/// and the container must start or fail with one line.
#[test]
fn no_path_of_the_image_leads_to_the_host() {
    type Trap = fn(&Tree, &str);
    let traps: [(&str, Trap); 14] = [
        ("etc is an absolute link", |t, canary| {
            relink(t, "etc", canary);
        }),
        ("etc is a relative link", |t, _| {
            relink(t, "etc", "../../canary");
        }),
        ("etc leads through proc", |t, canary| {
            relink(t, "etc", &format!("/proc/self/root{canary}"));
        }),
        ("cache is an absolute link", |t, canary| {
            t.link("bundle/rootfs/etc/ld.so.cache", &format!("{canary}/ld.so.cache"));
        }),
        ("cache is a relative link", |t, _| {
            t.link("bundle/rootfs/etc/ld.so.cache", "../../../canary/ld.so.cache");
        }),
        ("cache is a folder", |t, _| {
            t.folder("bundle/rootfs/etc/ld.so.cache/x");
        }),
        ("cache is a fifo", |t, _| {
            fifo(t, "bundle/rootfs/etc/ld.so.cache");
        }),
        ("cache is huge", |t, _| {
            let file = t.file("bundle/rootfs/etc/ld.so.cache", "");
            fs::File::options().write(true).open(file).unwrap().set_len(1 << 40).unwrap();
        }),
        ("drop-in folder is a link", |t, canary| {
            t.link("bundle/rootfs/etc/ld.so.conf.d", canary);
        }),
        ("drop-in is a link", |t, canary| {
            let target = format!("{canary}/ld.so.cache");
            t.link("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf", &target);
        }),
        ("conf is a fifo", |t, _| {
            fs::remove_file(t.path("bundle/rootfs/etc/ld.so.conf")).unwrap();
            fifo(t, "bundle/rootfs/etc/ld.so.conf");
        }),
        ("the temporary is a link", |t, canary| {
            let target = format!("{canary}/ld.so.cache");
            t.link("bundle/rootfs/etc/.oci-decorator.tmp", &target);
        }),
        ("the temporary is a folder", |t, _| {
            t.folder("bundle/rootfs/etc/.oci-decorator.tmp/x");
        }),
        ("a bare folder leads out", |t, canary| {
            t.link("bundle/rootfs/opt", canary);
        }),
    ];
    for (name, trap) in traps {
        let tree = setup();
        tree.file("canary/ld.so.cache", "host");
        let canary = tree.path("canary").display().to_string();
        trap(&tree, &canary);
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
        assert_eq!(tree.text("canary/ld.so.cache"), "host", "{name}");
        let entries = fs::read_dir(tree.path("canary")).unwrap().count();
        assert_eq!(entries, 1, "{name}");
    }
}

fn relink(tree: &Tree, name: &str, target: &str) {
    let path = format!("bundle/rootfs/{name}");
    fs::remove_dir_all(tree.path(&path)).unwrap();
    tree.link(&path, target);
}

fn fifo(tree: &Tree, path: &str) {
    use rustix::fs::{mknodat, FileType, Mode, CWD};
    let path = tree.path(path);
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// Opening a device can have an effect (a watchdog starts, a tape rewinds), and a
/// FIFO holds its reader up. Every file of the image that is read is tried as either.
#[test]
fn no_device_and_no_fifo_of_the_image_is_ever_opened() {
    use rustix::fs::{inotify, makedev, mknodat, FileType, Mode, CWD};
    if !need::root("mknod") {
        return;
    }
    let files = [
        "etc/ld.so.cache",
        "etc/ld.so.conf",
        "etc/ld.so.conf.d/00-oci-decorator.conf",
        "etc/ld.so.conf.d/x.conf",
        "etc/ld-musl-x86_64.path",
        "etc/.oci-decorator.tmp",
    ];
    for (file, kind) in
        files.iter().flat_map(|f| [(f, FileType::CharacterDevice), (f, FileType::Fifo)])
    {
        let tree = setup();
        tree.file("bundle/rootfs/lib/ld-musl-x86_64.so.1", "");
        let path = tree.path(&format!("bundle/rootfs/{file}"));
        make_folders_above(&path);
        let _ = fs::remove_file(&path);
        // The same device as /dev/null: opening it succeeds, and would be noticed.
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), makedev(1, 3)).unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, &path, inotify::WatchFlags::OPEN).unwrap();
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(code(&output), 0, "{file}: {}", stderr(&output));
        let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        while let Ok(event) = events.next() {
            // Others say that the file was replaced.
            let opened = event.events().contains(inotify::ReadFlags::OPEN);
            assert!(!opened, "{file} was opened");
        }
    }
}
