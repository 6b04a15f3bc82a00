use super::*;
use crate::config::vendor;
use crate::host::elf::tests::sample;
use crate::model::vendor::VendorFile;
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
    Choice { file, vendor: file.content.as_ref().unwrap(), features: features.to_vec() }
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
    assert!(error.to_string().contains("\"/opt/../x\" can't be given"), "{error}");
}
