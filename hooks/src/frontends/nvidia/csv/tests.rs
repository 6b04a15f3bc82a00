use super::*;
use crate::model::request::{Source, Units, Way};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;

const FOLDER: &str = "etc/nvidia-container-runtime/host-files-for-container.d";

fn ask(every_list: bool) -> Ask {
    let details = Details { every_list, ..Details::default() };
    Ask {
        interface: Interface::Nvidia,
        source: Source::Environment,
        by: DEVICES.to_owned(),
        units: Units::All,
        way: Way::Csv,
        details: Ok(details),
    }
}

fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn lines_of_every_kind() {
    let mut lines = Lines::default();
    let mut notes = Vec::new();
    let text = "# a comment\n\n dev , /dev/nvmap \nlib,/usr/lib/a,b.so\nlib,/usr/lib/a,b.so\n\
        dir, /lib/firmware/tegra\nsym,/usr/lib/libx.so\ndev,/etc/passwd\nlib,relative\n\
        lib,/a/../b\nlib\nfoo,/a\n,\nlib,";
    lines.add("f.csv", text, &mut notes).unwrap();
    lines.each_once();
    assert_eq!(lines.places["/lib/firmware/tegra"], "f.csv:6");
    lines.places.clear();
    let list = |items: &[&str]| items.iter().map(|&i| i.to_owned()).collect::<Vec<_>>();
    let expected = Lines {
        devices: list(&["/dev/nvmap"]),
        libraries: list(&["/usr/lib/a,b.so"]),
        folders: list(&["/lib/firmware/tegra"]),
        links: list(&["/usr/lib/libx.so"]),
        ..Lines::default()
    };
    assert_eq!(lines, expected);
    assert_eq!(notes.len(), 7);
    assert!(notes[0].message.starts_with("f.csv:8: \"dev,/etc/passwd\" is left out"));
    assert!(notes.iter().all(|note| note.level == Level::Debug));
}

proptest::proptest! {
    #[test]
    fn only_plain_absolute_paths_are_taken_from_any_text(
        text in "(?s)((dev|lib|dir|sym|x)?[ ,]{0,2}(/dev|/\\.\\.|//)?.{0,6}\n?){0,6}"
    ) {
        let (mut lines, mut notes) = (Lines::default(), Vec::new());
        proptest::prop_assume!(lines.add("f.csv", &text, &mut notes).is_ok());
        let Lines { devices, libraries, folders, links, .. } = &lines;
        for device in devices {
            proptest::prop_assert!(device.starts_with("/dev/"), "{}", device);
        }
        for path in [devices, libraries, folders, links].into_iter().flatten() {
            proptest::prop_assert!(is_plain(path) && path.starts_with('/'), "{}", path);
            proptest::prop_assert!(!path.split('/').any(|step| step == ".."), "{}", path);
        }
    }
}

#[test]
fn what_the_runtime_makes_is_not_given_as_a_whole() {
    for line in ["dir, /dev", "lib,/proc", "dir,/sys", "sym,/dev"] {
        let text = format!("dev,/dev/nvmap\n{line}\n");
        let found = Lines::default().add("/etc/l4t.csv", &text, &mut Vec::new());
        let message = found.unwrap_err().to_string();
        assert!(message.starts_with("/etc/l4t.csv:2: /"), "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for folder in ["dev", "proc", "sys", "opt/own"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let host = Host::open(root).unwrap();
    let given = |target: &str| {
        let link = root.join("opt/link");
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        let list = format!("{FOLDER}/l4t.csv");
        file(root, &list, "dev,/dev/gone\ndir,/opt/link\n");
        edits(&host, &Config::default(), &ask(false)).map(|(edits, _)| edits.mounts)
    };
    for target in ["/dev", "../proc", "/sys", "/", "../../../../.."] {
        let message = given(target).unwrap_err().to_string();
        let place = format!("{}/{FOLDER}/l4t.csv:2: /opt/link, which leads to", root.display());
        assert!(message.starts_with(&place), "{target}\n{message}");
    }
    // Links are followed within the root.
    let own = format!("{}/opt/own", root.display());
    for target in ["own", "/opt/own", "../../../../../../opt/own"] {
        assert_eq!(given(target).unwrap()[0].source, own, "{target}");
    }
}

#[test]
fn files_that_can_not_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::open(dir.path()).unwrap();
    let config = Config::default();
    let error = edits(&host, &config, &ask(false)).unwrap_err().to_string();
    assert!(error.contains("which can't be listed") && error.contains("config.toml"), "{error}");
    let name = format!("{FOLDER}/l4t.csv");
    file(dir.path(), &name, "");
    assert!(edits(&host, &config, &ask(false)).is_ok());
    fs::set_permissions(dir.path().join(&name), PermissionsExt::from_mode(0o666)).unwrap();
    let error = edits(&host, &config, &ask(false)).unwrap_err().to_string();
    assert!(error.contains("l4t.csv is writable by everyone: correct the owner"), "{error}");
    let mode = |path: &str, mode| {
        let permissions = PermissionsExt::from_mode(mode);
        fs::set_permissions(dir.path().join(path), permissions).unwrap();
    };
    mode(&name, 0o644);
    assert!(edits(&host, &config, &ask(false)).is_ok());
    // A user who may write to a folder above can replace the files.
    for folder in [FOLDER, "etc"] {
        mode(folder, 0o777);
        let error = edits(&host, &config, &ask(false)).unwrap_err().to_string();
        let expected = format!("/{folder} is writable by everyone; What");
        let expected = expected.trim_end_matches("; What");
        assert!(error.contains(expected), "{error}");
        mode(folder, 0o755);
    }
    fs::rename(dir.path().join(&name), dir.path().join("list")).unwrap();
    fs::create_dir(dir.path().join("open")).unwrap();
    fs::rename(dir.path().join("list"), dir.path().join("open/list")).unwrap();
    symlink("/open/list", dir.path().join(&name)).unwrap();
    assert!(edits(&host, &config, &ask(false)).is_ok());
    mode("open", 0o777);
    let error = edits(&host, &config, &ask(false)).unwrap_err().to_string();
    assert!(error.contains("/open is writable by everyone"), "{error}");
}

#[test]
fn links_in_a_circle_end() {
    let dir = tempfile::tempdir().unwrap();
    symlink("b", dir.path().join("a")).unwrap();
    symlink("/a", dir.path().join("b")).unwrap();
    let host = Host::open(dir.path()).unwrap();
    assert_eq!(chain(&host, "/a").len(), MAX_LINKS);
    assert!(chain(&host, "/none").is_empty());
}
