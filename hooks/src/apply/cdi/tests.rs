use super::*;
use crate::config::vendor::{parse, Mistake};
use crate::error::exit;
use crate::model::decide::Broken;

fn file(name: &str, kind: Option<&str>) -> VendorFile {
    let mut text = parse(r#"{"activation_flag":"A","driver_feature":[],"inventory":{}}"#);
    if let Ok(vendor) = &mut text {
        vendor.cdi_kind = kind.map(str::to_owned);
    }
    VendorFile {
        name: name.to_owned(),
        path: format!("/conf/{name}.json"),
        content: text.map_err(|mistakes| Broken {
            mistakes,
            flags: Vec::new(),
            interfaces: Vec::new(),
        }),
    }
}

fn broken(name: &str) -> VendorFile {
    VendorFile {
        content: Err(Broken {
            mistakes: vec![Mistake::new("x", "wrong")],
            flags: Vec::new(),
            interfaces: Vec::new(),
        }),
        ..file(name, None)
    }
}

fn settings() -> Settings {
    Settings {
        config_dir: "/conf".into(),
        ..Settings::default()
    }
}

/// The names of the chosen files, or the exit code and the message.
fn chosen(files: &[VendorFile], vendor: Option<&str>) -> std::result::Result<String, (u8, String)> {
    let request = Request {
        settings: &settings(),
        vendor,
        hook_words: Vec::new(),
    };
    choose(files, &request)
        .map(|found| {
            let names: Vec<_> = found.iter().map(|(file, _)| file.name.as_str()).collect();
            names.join(" ")
        })
        .map_err(|error| (error.code, error.to_string()))
}

#[test]
fn vendor_files_are_chosen_by_name_or_all() {
    let files = [file("one", None), file("two", None)];
    assert_eq!(chosen(&files, None), Ok("one two".to_owned()));
    assert_eq!(chosen(&files, Some("two")), Ok("two".to_owned()));
    let with_broken = [file("one", None), broken("bad")];
    assert_eq!(chosen(&with_broken, Some("one")), Ok("one".to_owned()));
    let refusals: [(&[VendorFile], Option<&str>, u8, &str); 5] = [
        (
            &files,
            Some("three"),
            exit::NOT_FOUND,
            "/conf has no three.json",
        ),
        (
            &files,
            Some("one.json"),
            exit::NOT_FOUND,
            "no one.json.json",
        ),
        (&[], None, exit::NOT_FOUND, "/conf has no vendor files"),
        (
            &with_broken,
            None,
            exit::USAGE,
            "/conf/bad.json can't be used",
        ),
        (
            &with_broken,
            Some("bad"),
            exit::USAGE,
            "oci-decorator check",
        ),
    ];
    for (files, vendor, code, part) in refusals {
        let (found, message) = chosen(files, vendor).unwrap_err();
        assert_eq!(found, code, "{message}");
        assert!(message.contains(part), "{part}\n{message}");
    }
}

#[test]
fn kinds_are_the_vendors_or_made_of_the_files_name() {
    let kind_of = |files: &[VendorFile]| {
        let chosen: Vec<_> = files
            .iter()
            .map(|file| (file, file.content.as_ref().unwrap()))
            .collect();
        kind(&chosen).map_err(|error| (error.code, error.to_string()))
    };
    for (name, own, expected) in [
        ("xpu", None, "oci-decorator/xpu"),
        ("my.xpu v2", None, "oci-decorator/my-xpu-v2"),
        ("x_pu-1", None, "oci-decorator/x_pu-1"),
        ("xpu", Some("x.com/pu"), "x.com/pu"),
        ("1", Some("x.com/pu"), "x.com/pu"),
    ] {
        assert_eq!(kind_of(&[file(name, own)]).as_deref(), Ok(expected));
    }
    for name in ["x", "1pu", "xpu-", "xpu.", "é"] {
        let (code, message) = kind_of(&[file(name, None)]).unwrap_err();
        assert_eq!(code, exit::USAGE);
        assert!(
            message.contains(&format!("/conf/{name}.json: ")),
            "{message}"
        );
        assert!(
            message.contains("give the file a \"cdi_kind\""),
            "{message}"
        );
    }
    let several = [file("x", None), file("xpu", Some("x.com/pu"))];
    assert_eq!(kind_of(&several).as_deref(), Ok("oci-decorator/driver"));
}

#[test]
fn a_path_that_can_not_be_a_file_is_refused() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("file"), "").unwrap();
    std::fs::create_dir(tree.path().join("folder")).unwrap();
    for (path, part) in [
        ("/", "can't write /"),
        ("folder/..", "can't write "),
        ("folder", "can't write "),
        ("file/x.json", "can't make "),
    ] {
        let error = write(&tree.path().join(path), "{}").unwrap_err();
        assert_eq!(error.code, exit::FAILED);
        assert!(error.to_string().contains(part), "{path}: {error}");
    }
    // The old files stay, and no other file is left.
    assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 2);
}

#[test]
fn everyone_may_read_what_is_written() {
    use std::os::unix::fs::PermissionsExt;
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("new/folder/x.json");
    write(&path, "{}\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}
