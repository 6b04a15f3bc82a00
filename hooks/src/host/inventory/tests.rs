use super::*;
use crate::config::vendor;
use crate::error::exit;
use crate::host::elf::tests::sample;
use crate::model::decide::VendorFile;
use std::os::unix::fs::symlink;

/// A host with a driver in a store.
fn host() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    write("store/lib/libx.so.1.2", &sample(62, true, "libc.so.6"));
    write("store/lib/libtext.so", b"a linker script");
    write("store/bin/x-smi", b"");
    write("store/data/file", b"");
    symlink("libx.so.1.2", dir.path().join("store/lib/libx.so")).unwrap();
    symlink("/nowhere", dir.path().join("store/lib/libgone.so")).unwrap();
    let fifo = dir.path().join("store/fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, mode, 0).unwrap();
    std::fs::create_dir(dir.path().join("dev")).unwrap();
    std::fs::write(dir.path().join("dev/plain"), "").unwrap();
    dir
}

fn file(inventory: &str, more: &str) -> VendorFile {
    let text = format!(
        r#"{{"activation_flag":"X","driver_feature":["run"],"root":"/store"{more},"inventory":{inventory}}}"#
    );
    VendorFile {
        name: "x".to_owned(),
        path: "/conf/x.json".to_owned(),
        content: vendor::parse(&text).map_err(|mistakes| panic!("{mistakes:?}")),
    }
}

fn choice<'a>(file: &'a VendorFile, features: &[&'a str]) -> Choice<'a> {
    Choice {
        file,
        vendor: file.content.as_ref().unwrap(),
        features: features.to_vec(),
    }
}

/// What each line of one feature gives, or why it gives nothing.
fn items(inventory: &str, more: &str, report: Report) -> Vec<(String, Outcome)> {
    let dir = host();
    let file = file(&format!(r#"{{"run":{inventory}}}"#), more);
    let host = Host::open(dir.path()).unwrap();
    let (_, items) = collect_one(&host, &choice(&file, &["run"]), report).unwrap();
    let shown = |path: String| path.replace(&dir.path().display().to_string(), "");
    items
        .into_iter()
        .map(|item| (item.path, item.found.map(shown)))
        .collect()
}

#[test]
fn each_line_says_what_it_gives_or_why_it_gives_nothing() {
    let found = items(
        r#"{"devices":["gone","plain","none[0-9]"],
            "directories":["/opt/x"],
            "binaries":["/bin/x-smi","/bin/gone"],
            "libraries":["/lib/libx.so","/lib/libgone.so"],
            "miscellaneous":["/data","/fifo"]}"#,
        "",
        Report::All,
    );
    let expected: [(&str, std::result::Result<&str, &str>); 10] = [
        ("/dev/gone", Err("the host has no such device")),
        ("/dev/plain", Err("is not a device node")),
        ("none[0-9]", Err("no device of this host matches")),
        ("/opt/x", Ok("")),
        ("/bin/x-smi", Ok("/store/bin/x-smi")),
        ("/bin/gone", Err("the host has no such file")),
        ("/lib/libx.so", Ok("/store/lib/libx.so.1.2")),
        ("/lib/libgone.so", Err("the host has no such file")),
        ("/data", Ok("/store/data")),
        ("/fifo", Err("neither a file, a folder nor a socket")),
    ];
    let found: Vec<_> = found
        .iter()
        .map(|(path, found)| {
            let found = found.as_deref().map_err(String::as_str);
            (path.as_str(), found)
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn what_is_missing_is_noted_and_nothing_else() {
    let dir = host();
    let file = file(
        r#"{"run":{"binaries":["/bin/x-smi","/bin/gone"]},"more":{"directories":["/opt/x"]}}"#,
        "",
    );
    let host = Host::open(dir.path()).unwrap();
    let choices = [choice(&file, &["run", "more"])];
    let (edits, notes) = collect(&host, &choices).unwrap();
    assert_eq!((edits.mounts.len(), edits.directories.len()), (1, 1));
    let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "/bin/gone is left out: the host has no such file",
            "X gives run, more: 0 devices, 1 files, 1 directories",
        ]
    );
    assert_eq!(notes[0].feature.as_deref(), Some("run"));
    assert!(notes.iter().all(|n| n.vendor.as_deref() == Some("x")));
}

#[test]
fn features_that_share_a_line_give_it_once() {
    if !crate::need::root("mknod") {
        return;
    }
    let dir = host();
    let (kind, numbers) = (FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    let (path, mode) = (
        dir.path().join("dev/x0"),
        rustix::fs::Mode::from_raw_mode(0o600),
    );
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, numbers).unwrap();
    let line = r#"{"devices":["x0","/dev/x[0-9]"],"libraries":["/lib/libx.so"]}"#;
    let file = file(&format!(r#"{{"run":{line},"more":{line}}}"#), "");
    let host = Host::open(dir.path()).unwrap();
    let (edits, items) = collect_one(&host, &choice(&file, &["run", "more"]), Report::All).unwrap();
    assert_eq!((edits.devices.len(), edits.mounts.len()), (1, 1));
    assert_eq!(edits.libraries.len(), 1);
    let device = &edits.devices[0];
    assert_eq!((device.path.as_str(), device.kind), ("/dev/x0", 'c'));
    assert_eq!((device.major, device.minor, device.mode), (1, 3, 0o600));
    // Each feature reports its own lines.
    let of = |feature: &str| items.iter().filter(|item| item.feature == feature).count();
    assert_eq!((of("run"), of("more")), (3, 3));
}

#[test]
fn libraries_are_what_the_loader_asks_for() {
    let dir = host();
    let paths = r#"["/lib/libx.so","/lib/libx.so.1.2","/lib/libtext.so","/bin/x-smi"]"#;
    let file = file(&format!(r#"{{"run":{{"miscellaneous":{paths}}}}}"#), "");
    let host = Host::open(dir.path()).unwrap();
    let (edits, _) = collect_one(&host, &choice(&file, &["run"]), Report::Missing).unwrap();
    let found: Vec<_> = edits
        .libraries
        .iter()
        .map(|l| (l.path.as_str(), l.soname.as_str(), l.flags, l.is_link))
        .collect();
    let expected = [
        ("/lib/libx.so", "libx.so.1", 0x303, true),
        ("/lib/libx.so.1.2", "libx.so.1", 0x303, false),
    ];
    assert_eq!(found, expected);
    assert_eq!(edits.mounts.len(), 4);
}

#[test]
fn a_stated_soname_is_believed_at_a_start_and_checked_by_check() {
    let stated = r#","sonames":{"/lib/libx.so.1.2":"libother.so.1","/lib/libtext.so":"libt.so"}"#;
    let inventory = r#"{"libraries":["/lib/libx.so","/lib/libtext.so"]}"#;
    assert_eq!(items(inventory, stated, Report::Missing), []);
    let found = items(inventory, stated, Report::All);
    let problem = |at: usize| found[at].1.clone().unwrap_err();
    assert!(problem(0).contains("calls it libother.so.1, and the file is libx.so.1 with"));
    assert!(problem(1).ends_with("and the file is not a library"));
}

#[test]
fn a_driver_that_is_not_installed_refuses_with_flag_and_file() {
    let dir = host();
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    let file = file(r#"{"run":{}}"#, "");
    let host = Host::open(dir.path()).unwrap();
    let error = collect(&host, &[choice(&file, &["run"])]).unwrap_err();
    assert_eq!(error.code, exit::NOT_FOUND);
    for part in ["X is set (/conf/x.json)", "not installed", "/store"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Appliers rely on plain paths, whatever code fills a vendor in.
#[test]
fn a_path_that_no_container_can_be_given_is_refused() {
    let dir = host();
    let mut file = file(r#"{"run":{"directories":["/opt/x"]}}"#, "");
    for features in file.content.iter_mut().map(|vendor| &mut vendor.inventory) {
        features[0].1.directories.push("/opt/../x".to_owned());
    }
    let host = Host::open(dir.path()).unwrap();
    let error = collect(&host, &[choice(&file, &["run"])]).unwrap_err();
    assert!(
        error.to_string().contains("\"/opt/../x\" can't be given"),
        "{error}"
    );
}

#[test]
fn libraries_by_name() {
    for (path, expected) in [
        ("/lib/libx.so", true),
        ("/bin/libx.so.1.2", true),
        ("/lib/ld-x.so.2", true),
        ("/lib/x.so", false),
        ("/lib/libx.a", false),
        ("/lib.so/x", false),
    ] {
        assert_eq!(is_library(path), expected, "{path}");
    }
}
