use super::super::paths::tests::Links;
use super::super::paths::Unseen;
use super::super::present::Mounted;
use super::*;
use std::collections::BTreeMap;

fn mount(target: &str) -> Mount {
    Mount { source: format!("/h{target}"), target: target.to_owned() }
}

fn user<'a>(destination: &'a str, source: &'a str) -> Mounted<'a> {
    Mounted { destination: destination.into(), source: source.into(), is_new: false }
}

fn tmpfs(destination: &str) -> Mounted<'_> {
    Mounted { is_new: true, ..user(destination, "tmpfs") }
}

fn library(path: &str) -> Library {
    Library { path: path.to_owned(), soname: "lib.so".to_owned(), flags: 0, is_link: false }
}

fn device(path: &str) -> Device {
    Device {
        source: path.to_owned(),
        path: path.to_owned(),
        kind: 'c',
        major: 195,
        minor: 0,
        mode: 0o666,
        uid: Some(0),
        gid: Some(0),
        access: crate::model::edits::Access::ALL,
    }
}

/// A library, a folder of data, and an empty directory.
fn edits() -> Edits {
    Edits {
        mounts: vec![mount("/usr/lib/liba.so"), mount("/opt/data")],
        directories: vec!["/opt/bare".to_owned()],
        libraries: vec![library("/usr/lib/liba.so")],
        ..Edits::default()
    }
}

struct Outcome {
    mounts: Vec<String>,
    libraries: usize,
    directories: usize,
    notes: Vec<String>,
}

fn settle(mounts: Vec<Mounted>, image: &dyn Image) -> Outcome {
    let present = Present { mounts, ..Present::default() };
    let (settled, notes) = edits().settle(&present, image);
    Outcome {
        mounts: settled.mounts.iter().map(|m| m.target.clone()).collect(),
        libraries: settled.libraries.len(),
        directories: settled.directories.len(),
        notes: notes.into_iter().map(|note| note.message).collect(),
    }
}

const LIBRARY: &str = "/usr/lib/liba.so";
const DATA: &str = "/opt/data";

#[test]
fn what_the_user_mounted_stays() {
    // The user's mount; our mounts that remain; the number of libraries and directories.
    type Case = (&'static str, &'static [&'static str], usize, usize);
    let cases: [Case; 14] = [
        ("/other", &[DATA, LIBRARY], 1, 1),
        ("/usr/lib/liba.so.1", &[DATA, LIBRARY], 1, 1),
        // At one of our paths, in any spelling. The user's own library is cached.
        (LIBRARY, &[DATA], 1, 1),
        ("/usr/lib/liba.so/", &[DATA], 1, 1),
        ("//usr/./lib/../lib//liba.so", &[DATA], 1, 1),
        ("usr/lib/liba.so", &[DATA], 1, 1),
        ("/opt/data", &[LIBRARY], 1, 1),
        // In one of our folders.
        ("/opt/data/mine", &[LIBRARY], 1, 1),
        ("/opt/data/a/../b", &[LIBRARY], 1, 1),
        // Around our paths.
        ("/usr/lib", &[DATA], 0, 1),
        ("/usr/", &[DATA], 0, 1),
        ("/opt", &[LIBRARY], 1, 0),
        ("/opt/bare", &[DATA, LIBRARY], 1, 0),
        ("/", &[], 0, 0),
    ];
    for (destination, mounts, libraries, directories) in cases {
        let found = settle(vec![user(destination, "/volume")], &Unseen);
        assert_eq!(found.mounts, mounts, "{destination}");
        assert_eq!(found.libraries, libraries, "{destination}");
        assert_eq!(found.directories, directories, "{destination}");
        let expected = usize::from(mounts.len() < 2);
        assert_eq!(found.notes.len(), expected, "{destination}: {:?}", found.notes);
    }
}

#[test]
fn notes_name_the_mount_and_what_is_left_out() {
    let found = settle(vec![user("/opt/", "/volume")], &Unseen);
    let expected = "the container's own mount /opt stays as it is: /opt/data and 1 more left out";
    assert_eq!(found.notes, [expected]);
}

#[test]
fn links_of_the_image_lead_to_what_is_mounted() {
    let image = Links([("/lib64", "usr/lib"), ("/data", "/opt/data")].into());
    for (destination, mounts) in [
        ("/lib64/liba.so", [DATA].as_slice()),
        ("/lib64", &[DATA]),
        ("/lib64/../lib/liba.so", &[DATA]),
        ("/data/mine", &[LIBRARY]),
        ("/lib64/other", &[DATA, LIBRARY]),
    ] {
        let found = settle(vec![user(destination, "/volume")], &image);
        assert_eq!(found.mounts, mounts, "{destination}");
    }
    // Our own path may have a link in it too.
    let image = Links([("/usr/lib", "/volume"), (DATA, "elsewhere")].into());
    let found = settle(vec![user("/volume", "/v"), user("/opt/elsewhere", "/e")], &image);
    assert_eq!(found.mounts, Vec::<String>::new());
    let found = settle(Vec::new(), &image);
    assert_eq!(found.mounts, ["/opt/elsewhere", "/volume/liba.so"]);
}

#[test]
fn links_that_a_mount_hides_lead_nowhere() {
    let image = Links([("/usr/lib", "/elsewhere"), ("/vol/in", "/usr/lib")].into());
    let found = settle(vec![user("/usr", "/volume")], &image);
    assert_eq!(found.mounts, [DATA]);
    // The second mount lies in the first, not in /usr/lib.
    let found = settle(vec![user("/vol", "/volume"), user("/vol/in", "/x")], &image);
    assert_eq!(found.mounts, ["/elsewhere/liba.so", DATA]);
    // A link into a mount is not followed further: what lies there is not the image's.
    let image = Links([("/to", "/vol"), ("/vol/in", "/usr/lib")].into());
    let found = settle(vec![user("/vol", "/volume"), user("/to/in", "/x")], &image);
    assert_eq!(found.mounts, [DATA, LIBRARY]);
}

/// If a link of the image leads to a folder that does not exist yet, our file is made there.
#[test]
fn what_is_made_behind_a_link_is_made_where_it_leads() {
    use crate::host::rootfs::Rootfs;
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(tree.path().join("usr/lib")).unwrap();
    std::os::unix::fs::symlink("usr/lib", tree.path().join("lib")).unwrap();
    let image = Rootfs::open(tree.path()).unwrap();
    for mounted in [vec![], vec![tmpfs("/dev")], vec![user("/usr/lib/other", "/volume")]] {
        let present = Present { mounts: mounted, ..Present::default() };
        let edits = Edits {
            mounts: vec![mount("/lib/new/liba.so"), mount("/opt/new/b"), mount("/lib/c.so")],
            ..Edits::default()
        };
        let (settled, notes) = edits.settle(&present, &image);
        let targets: Vec<_> = settled.mounts.iter().map(|m| m.target.as_str()).collect();
        assert_eq!(targets, ["/opt/new/b", "/usr/lib/c.so", "/usr/lib/new/liba.so"]);
        assert!(notes.is_empty(), "{notes:?}");
    }
}

#[test]
fn new_file_systems_take_ours_in() {
    let found = settle(vec![tmpfs("/opt"), tmpfs("/usr/lib/")], &Unseen);
    assert_eq!(found.mounts, [DATA, LIBRARY]);
    assert_eq!(found.notes, Vec::<String>::new());
    // At or in one of our paths, they stay like any other mount. The innermost mount decides.
    assert_eq!(settle(vec![tmpfs(DATA)], &Unseen).mounts, [LIBRARY]);
    assert_eq!(settle(vec![tmpfs("/opt/data/x")], &Unseen).mounts, [LIBRARY]);
    let nested = vec![tmpfs("/usr"), user("/usr/lib", "/volume")];
    assert_eq!(settle(nested, &Unseen).mounts, [DATA]);
    let nested = vec![user("/usr", "/volume"), tmpfs("/usr/lib")];
    assert_eq!(settle(nested, &Unseen).mounts, [DATA, LIBRARY]);
}

#[test]
fn what_is_there_already_is_not_mounted_again_and_nothing_is_said() {
    for mounts in [
        vec![user(LIBRARY, "/h/usr/lib/liba.so"), user(DATA, "/h/opt/data")],
        vec![user("/usr/lib", "/h/usr/lib"), user(DATA, "/h/opt/data")],
    ] {
        let found = settle(mounts, &Unseen);
        assert_eq!((found.mounts.len(), found.libraries), (0, 1));
        assert_eq!(found.notes, Vec::<String>::new());
    }
}

#[test]
fn a_library_cache_of_the_users_stays() {
    let image = Links([("/etc", "/private/etc")].into());
    for (destination, image, libraries) in [
        ("/etc", &Unseen as &dyn Image, 0),
        ("/etc/ld.so.cache", &Unseen, 0),
        ("/etc/ld.so.conf.d", &Unseen, 1),
        ("/etc/hosts", &Unseen, 1),
        ("/private/etc", &image, 0),
    ] {
        let found = settle(vec![user(destination, "/volume")], image);
        assert_eq!(found.mounts, [DATA, LIBRARY], "{destination}");
        assert_eq!(found.libraries, libraries, "{destination}");
        assert_eq!(found.notes.len(), 1 - libraries, "{destination}");
    }
    // A new file system hides the image's cache, although the user mounted no volume.
    let found = settle(vec![tmpfs("/etc")], &Unseen);
    assert_eq!((found.libraries, found.notes.len()), (1, 1));
    assert!(found.notes[0].contains("/etc is new and hides the library cache"));
    for mounts in [vec![tmpfs("/run")], vec![tmpfs("/etc/ld.so.conf.d")]] {
        assert!(settle(mounts, &Unseen).notes.is_empty());
    }
}

/// runc treats a destination that begins with the root's path on the host as a path below the root.
#[test]
fn destinations_below_the_roots_own_path_are_what_runc_makes_of_them() {
    let mut present = Present {
        mounts: vec![user("/b/rootfs/opt/x", "/mine"), user("/b/rootfsx/opt/x", "/mine")],
        ..Present::default()
    };
    present.add_below("/b/rootfs");
    let destinations: Vec<&str> = present.mounts.iter().map(|m| &*m.destination).collect();
    assert_eq!(destinations, ["/b/rootfs/opt/x", "/b/rootfsx/opt/x", "/opt/x"]);
    assert_eq!(present.mounts[2].source, "/mine");
}

#[test]
fn devices_of_the_users_stay_and_others_are_allowed() {
    let settle = |mounts: Vec<Mounted>, devices: &[&str]| {
        let present = Present {
            mounts,
            devices: devices.iter().map(|&path| path.to_owned().into()).collect(),
        };
        let edits =
            Edits { devices: vec![device("/dev/x0"), device("/dev/x1")], ..Edits::default() };
        let image = Links([("/nodes", "dev")].into());
        let (settled, _) = edits.settle(&present, &image);
        let path = |device: &Device| device.path.clone();
        let made: Vec<String> = settled.devices().iter().map(path).collect();
        let allowed: Vec<String> = settled.allowed().map(path).collect();
        (made, allowed)
    };
    let names = |names: &[&str]| -> Vec<String> { names.iter().map(|&n| n.to_owned()).collect() };
    let both = names(&["/dev/x0", "/dev/x1"]);
    assert_eq!(settle(vec![tmpfs("/dev")], &[]), (both.clone(), both.clone()));
    // The rights that the user gave count too.
    let one = names(&["/dev/x1"]);
    assert_eq!(settle(vec![], &["/dev//x0/"]), (one.clone(), one.clone()));
    assert_eq!(settle(vec![], &["/nodes/x0"]), (one.clone(), one.clone()));
    let nodes = vec![tmpfs("/dev"), user("/dev/x0", "/dev/x0")];
    assert_eq!(settle(nodes, &[]), (one, names(&["/dev/x1", "/dev/x0"])));
    assert_eq!(settle(vec![user("/dev/", "/dev")], &[]), (vec![], both));
}

/// A CDI document and an engine may both ask for the same tmpfs. That is no conflict.
#[test]
fn a_file_system_that_is_made_the_same_way_is_no_conflict() {
    for (mounted, notes) in
        [(tmpfs("/scratch"), 0), (Mounted { source: "other".into(), ..tmpfs("/scratch") }, 1)]
    {
        let edits = Edits {
            described: vec![DescribedMount {
                source: "tmpfs".to_owned(),
                kind: "tmpfs".to_owned(),
                ..described("/scratch")
            }],
            ..Edits::default()
        };
        let present = Present { mounts: vec![mounted], ..Present::default() };
        let (settled, found) = edits.settle(&present, &Unseen);
        assert!(settled.described().is_empty());
        assert_eq!(found.len(), notes, "{found:?}");
    }
}

/// runc removes `..` from the text first, crun follows the link first (both were tried).
#[test]
fn a_mount_behind_a_link_and_dots_is_where_either_runtime_puts_it() {
    let image = Links(BTreeMap::from([("/lib64", "usr/lib64")]));
    for destination in ["/lib64/../usr/lib", "/lib64/../lib"] {
        let found = settle(vec![user(destination, "/volume")], &image);
        assert_eq!(found.mounts, [DATA], "{destination}");
        assert_eq!(found.notes.len(), 1, "{destination}");
    }
}

fn described(target: &str) -> DescribedMount {
    DescribedMount {
        source: format!("/h{target}"),
        target: target.to_owned(),
        kind: String::new(),
        options: Vec::new(),
    }
}

fn link(path: &str) -> Link {
    Link { path: path.to_owned(), target: "x".to_owned() }
}

/// Mounts from CDI give way to the user's own, as our mounts do.
#[test]
fn described_mounts_and_links_hide_nothing_of_the_users() {
    let image = Links(BTreeMap::from([("/lib", "usr/lib"), ("/usr/lib/old", "libold.so")]));
    let edits = Edits {
        mounts: vec![mount("/opt/ours")],
        described: [
            "/lib/deep/libb.so",
            "/lib/liba.so",
            "/opt/ours",
            "/mine/in",
            "/user",
            "/again",
        ]
        .map(described)
        .into(),
        libraries: vec![library("/lib/liba.so"), library("/mine/in")],
        links: ["/lib/old", "/mine/link", "/user", "/dev/by/x", "/new"].map(link).into(),
        groups: vec![44],
        ..Edits::default()
    };
    let present = Present {
        mounts: vec![
            tmpfs("/dev"),
            user("/mine", "/volume"),
            user("/user", "/volume"),
            user("/again", "/h/again"),
        ],
        ..Present::default()
    };
    let (settled, notes) = edits.settle(&present, &image);
    let targets: Vec<_> = settled.described().iter().map(|m| m.target.as_str()).collect();
    assert_eq!(targets, ["/usr/lib/liba.so", "/usr/lib/deep/libb.so"]);
    let libraries: Vec<_> = settled.libraries().iter().map(|l| l.path.as_str()).collect();
    assert_eq!(libraries, ["/lib/liba.so"]);
    let paths = |links: &[Link]| links.iter().map(|l| l.path.clone()).collect::<Vec<_>>();
    // The image's link is replaced, and its target is not.
    assert_eq!(paths(settled.links()), ["/usr/lib/old", "/new"]);
    assert_eq!(paths(settled.late_links()), ["/dev/by/x"]);
    assert_eq!(settled.rest().groups, [44]);
    assert_eq!(notes.len(), 2, "{notes:?}");
}

/// An algorithm that is quadratic in the mounts would take minutes.
#[test]
fn many_mounts_and_devices_are_settled_in_no_time() {
    let paths: Vec<String> = (0..40_000).map(|at| format!("/mnt/{at}/own")).collect();
    let present = Present {
        mounts: paths.iter().map(|path| user(path, "/h")).collect(),
        devices: paths.iter().map(|path| path.as_str().into()).collect(),
    };
    let ours = (0..2_000).map(|at| format!("/mnt/{at}/ours"));
    let mut edits = edits();
    edits.mounts.extend(ours.clone().map(|path| mount(&path)));
    edits.devices = ours.map(|path| device(&path.replace("ours", "node"))).collect();
    edits.directories.extend(paths.iter().cloned());
    let around = |at| DescribedMount {
        target: format!("/cdi/{at}"),
        source: "/h".to_owned(),
        kind: String::new(),
        options: Vec::new(),
    };
    edits.described = (0..40_000).map(around).collect();
    let started = std::time::Instant::now();
    let (settled, _) = edits.settle(&present, &Unseen);
    assert_eq!(settled.mounts().len(), 2_002);
    assert_eq!(settled.devices().len(), 2_000);
    assert_eq!(settled.described().len(), 40_000);
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}
