use super::*;
use std::os::unix::fs::symlink;

fn listing(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A folder with the program, an empty folder, and a path for the record.
struct Host {
    dir: tempfile::TempDir,
    program: PathBuf,
    record: PathBuf,
    owner: fn(&Path) -> Owner,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bin", "other"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let program = dir.path().join("bin/oci-decorator");
        std::fs::write(&program, "x").unwrap();
        Self {
            record: dir.path().join("state/links.json"),
            dir,
            program,
            owner: |_| Owner::Nothing,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn link(&self, name: &str, to: &str) {
        symlink(to, self.path(name)).unwrap();
    }

    fn said(&self, name: &str) -> String {
        let said = std::fs::read_link(self.path(name)).unwrap();
        said.display().to_string()
    }

    fn install(&self, folder: &str) -> Result<Done> {
        self.links(&self.path(folder)).install()
    }

    fn remove(&self, folder: &str) -> Result<Done> {
        self.links(&self.path(folder)).remove()
    }

    fn links<'a>(&'a self, folder: &'a Path) -> Links<'a> {
        Links {
            folder,
            program: &self.program,
            record: &self.record,
            owner: self.owner,
        }
    }
}

#[test]
fn links_are_made_once_and_removed() {
    let host = Host::new();
    let done = host.install("bin").unwrap();
    assert_eq!(
        (done.target.to_str(), done.changed.len(), done.notes.len()),
        (Some("oci-decorator"), 7, 0)
    );
    assert_eq!(listing(&host.path("bin")).len(), 8);
    assert_eq!(
        std::fs::read_to_string(host.path("bin/nvidia-ctk")).unwrap(),
        "x"
    );
    assert_eq!(host.install("bin").unwrap().changed.len(), 0);
    assert_eq!(host.remove("bin").unwrap().changed.len(), 7);
    assert_eq!(listing(&host.path("bin")), ["oci-decorator"]);
    assert_eq!(host.remove("bin").unwrap().changed.len(), 0);
    assert_eq!(listing(host.dir.path()), ["bin", "other"]);
}

#[test]
fn elsewhere_they_are_absolute_and_old_ones_are_replaced() {
    let host = Host::new();
    let error = host.install("none").unwrap_err();
    assert!(error.message.ends_with("is not a folder"), "{error}");
    host.link("other/nvidia-ctk", "/gone/oci-decorator");
    let done = host.install("other").unwrap();
    assert_eq!((&done.target, done.changed.len()), (&host.program, 7));
    assert_eq!(
        host.said("other/nvidia-ctk"),
        host.program.to_str().unwrap()
    );
    assert_eq!(host.remove("other").unwrap().notes.len(), 0);
    assert!(listing(&host.path("other")).is_empty());
}

#[test]
fn no_link_is_made_where_a_foreign_file_has_a_name() {
    let host = Host::new();
    std::fs::write(host.path("theirs"), "theirs").unwrap();
    std::fs::write(host.path("other/nvidia-ctk"), "theirs").unwrap();
    host.link("other/nvidia-cdi-hook", "../theirs");
    let error = host.install("other").unwrap_err();
    assert!(error.message.contains("/nvidia-ctk, "), "{error}");
    assert!(error.message.ends_with("/nvidia-cdi-hook"), "{error}");
    assert!(error.resolution.unwrap().contains("dpkg -S"));
    assert_eq!(host.remove("other").unwrap().changed.len(), 0);
    assert_eq!(
        listing(&host.path("other")),
        ["nvidia-cdi-hook", "nvidia-ctk"]
    );
}

/// The postinst of NVIDIA's package makes this link, and its postrm removes it only when the
/// package is purged.
#[test]
fn a_link_that_a_package_left_is_replaced_and_restored() {
    for old in [
        "/usr/bin/no-such-nvidia-container-runtime-hook",
        "nvidia-container-runtime-hook",
        "nvidia-container-toolkit",
    ] {
        let host = Host::new();
        let name = "other/nvidia-container-toolkit";
        host.link(name, old);
        let done = host.install("other").unwrap();
        assert_eq!(done.changed.len(), 7);
        assert!(done.notes[0].contains(old) && done.notes.len() == 1);
        assert_eq!(host.said(name), host.program.to_str().unwrap());
        assert_eq!(host.install("other").unwrap().notes.len(), 0);
        let done = host.remove("other").unwrap();
        assert_eq!(done.changed.len(), 7);
        assert!(done.notes[0].ends_with(&format!("is a link to {old} again")));
        assert_eq!(host.said(name), old);
        assert_eq!(listing(&host.path("other")), ["nvidia-container-toolkit"]);
        assert_eq!(listing(host.dir.path()), ["bin", "other"], "no record");
        let done = host.remove("other").unwrap();
        assert_eq!((done.changed.len(), done.notes.len()), (0, 0));
    }
}

/// A link to another of the names depends on what happens to that name.
#[test]
fn a_link_beside_a_file_of_others_is_not_the_one_that_is_named() {
    let host = Host::new();
    std::fs::write(host.path("other/nvidia-container-runtime-hook"), "theirs").unwrap();
    let to = host.path("other/nvidia-container-runtime-hook");
    host.link("other/nvidia-container-toolkit", to.to_str().unwrap());
    let error = host.install("other").unwrap_err();
    assert!(error.message.ends_with("runtime-hook"), "{error}");
    std::fs::remove_file(&to).unwrap();
    assert_eq!(host.install("other").unwrap().changed.len(), 7);
}

#[test]
fn what_is_owned_or_may_be_is_refused_with_what_to_do() {
    for (owner, hint) in [
        (
            (|_| Owner::Package("one".to_owned())) as fn(&Path) -> Owner,
            "remove the package one, which owns ",
        ),
        (
            |_| Owner::Alternatives("nvidia-ctk".to_owned()),
            "update-alternatives --remove-all nvidia-ctk",
        ),
        (|_| Owner::Unknown("rpm hangs".to_owned()), "(rpm hangs)"),
    ] {
        let mut host = Host::new();
        host.owner = owner;
        host.link("other/nvidia-ctk", "/gone/nvidia-ctk");
        let error = host.install("other").unwrap_err();
        assert!(error.message.ends_with("/nvidia-ctk"), "{error}");
        assert!(error.resolution.unwrap().contains(hint), "{hint}");
        assert_eq!(listing(&host.path("other")), ["nvidia-ctk"]);
    }
}

#[test]
fn later_changes_by_other_programs_are_reported() {
    for (theirs, expected) in [
        (None, "was removed by another program"),
        (Some("file"), "belongs to another program now"),
        (Some("link"), "belongs to another program now"),
    ] {
        let host = Host::new();
        let name = "other/nvidia-container-toolkit";
        host.link(name, "/gone/hook");
        host.install("other").unwrap();
        std::fs::remove_file(host.path(name)).unwrap();
        match theirs {
            Some("file") => std::fs::write(host.path(name), "").unwrap(),
            Some(_) => host.link(name, "/gone/other"),
            None => {}
        }
        let done = host.remove("other").unwrap();
        assert_eq!(done.changed.len(), 6);
        assert!(done.notes[0].contains(expected), "{:?}", done.notes);
        assert_eq!(host.path(name).symlink_metadata().is_ok(), theirs.is_some());
        assert_eq!(listing(host.dir.path()), ["bin", "other"], "no record");
    }
}

#[test]
fn links_are_removed_again_if_another_one_fails() {
    let host = Host::new();
    let paths = [
        host.path("bin/one"),
        host.path("bin/two"),
        host.path("bin/none/three"),
    ];
    symlink("before", &paths[1]).unwrap();
    let held = lock::take(&[&paths[0]], false).unwrap();
    let error = make(&held, Path::new("oci-decorator"), &paths).unwrap_err();
    assert!(error.message.contains("none/three"), "{error}");
    assert_eq!(listing(&host.path("bin")), ["oci-decorator", "two"]);
    assert_eq!(std::fs::read_link(&paths[1]).unwrap(), Path::new("before"));
}

#[test]
fn names_of_ours() {
    for name in [
        "/usr/bin/oci-decorator-runtime",
        "nvidia-container-runtime",
        "/a/nvidia-ctk",
    ] {
        assert!(is_name_of_ours(name), "{name}");
    }
    for name in [
        "",
        "/",
        "/usr/bin/runc",
        "/oci-decorator/x",
        "oci-decorator-x",
    ] {
        assert!(!is_name_of_ours(name), "{name}");
    }
}
