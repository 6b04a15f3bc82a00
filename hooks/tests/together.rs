//! Commands that change the same files at the same time.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::fs::XattrFlags;

use crate::support::{code, is_quick, need, program, run, stderr, Tree};

const DAEMON: &str = "{\n  \"log-driver\": \"json-file\",\n  \"x\": [1,2 , 3]\n}\n";

fn rounds() -> usize {
    if is_quick() {
        2
    } else {
        12
    }
}

/// Starts all of them, and waits until all have done what they are for.
fn all(name: &str, lines: &[Vec<String>]) {
    let start = |words: &Vec<String>| {
        program(name).args(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = lines.iter().map(start).collect();
    let ended: Vec<_> =
        started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for output in ended {
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    }
}

/// A program that is there: the one of a build has no runtime beside it.
const RUNTIME: &str = "--runtime-path=/bin/sh";

fn words(fixed: &[&str], more: &[&str]) -> Vec<String> {
    fixed.iter().chain(more).map(|&w| w.to_owned()).collect()
}

#[test]
fn a_file_of_an_engine_keeps_its_bytes_and_its_mode() {
    for _ in 0..rounds() {
        let tree = Tree::new();
        let file = tree.file("daemon.json", DAEMON).display().to_string();
        let fixed = ["configure", "docker", "--config", &file, RUNTIME];
        let more: [&[&str]; 3] = [&[], &["--set-as-default"], &["--runtime-name=x"]];
        all("oci-decorator", &more.map(|more| words(&fixed, more)));
        let text = tree.text("daemon.json");
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let about = std::fs::metadata(&file).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, 0o644);
        let out = [&["--remove"][..], &["--remove", "--runtime-name=x"]];
        all("oci-decorator", &out.map(|more| words(&fixed, more)));
        assert_eq!(tree.text("daemon.json"), DAEMON);
        assert_eq!(tree.listing(), ["daemon.json"]);
    }
}

#[test]
fn a_file_of_ours_alone_is_made_and_removed() {
    for _ in 0..rounds() {
        let tree = Tree::new();
        let file = tree.path("a/b/50.conf").display().to_string();
        let fixed = ["configure", "podman", "--config", &file, RUNTIME];
        let line = words(&fixed, &[]);
        all("oci-decorator", &[line.clone(), line.clone(), line]);
        assert_eq!(tree.listing(), ["a", "a/b", "a/b/50.conf"]);
        let line = words(&fixed, &["--remove"]);
        all("oci-decorator", &[line.clone(), line]);
        assert_eq!(tree.listing(), ["a", "a/b"]);
    }
}

#[test]
fn every_link_is_there_in_the_end() {
    for _ in 0..rounds() {
        let tree = Tree::new();
        let line = words(&["install-links", &tree.shown()], &[]);
        all("oci-decorator", &[line.clone(), line.clone(), line.clone(), line]);
        assert_eq!(tree.listing().len(), 8);
    }
}

#[test]
fn no_setting_is_lost() {
    const KEYS: [&str; 4] = [
        "nvidia-container-cli.debug",
        "nvidia-container-cli.root",
        "nvidia-container-runtime.debug",
        "nvidia-container-cli.ldcache",
    ];
    for _ in 0..rounds() {
        let tree = Tree::new();
        let file = tree.path("nv/config.toml").display().to_string();
        let fixed = ["config", "--config-file", &file, "--in-place", "--set"];
        let lines = KEYS.map(|key| words(&fixed, &[&format!("{key}=/z")]));
        all("nvidia-ctk", &lines);
        let text = tree.text("nv/config.toml");
        assert_eq!(text.matches("= \"/z\"").count(), KEYS.len(), "{text}");
        assert_eq!(tree.listing(), ["nv", "nv/config.toml"]);
    }
}

/// Docker could not read its file with the label of the folder.
#[test]
fn a_changed_file_keeps_its_label() {
    if !need::root("security labels") {
        return;
    }
    let tree = Tree::new();
    let file = tree.file("daemon.json", DAEMON).display().to_string();
    let (name, label) = ("security.selinux", b"system_u:object_r:etc_t:s0\0");
    rustix::fs::setxattr(&*file, name, label, XattrFlags::empty()).unwrap();
    let words = ["configure", "docker", "--config", &file, RUNTIME];
    assert_eq!(code(&run(&words, "")), 0);
    assert_ne!(tree.text("daemon.json"), DAEMON);
    let mut kept = [0; 64];
    let length = rustix::fs::getxattr(&*file, name, &mut kept[..]).unwrap();
    assert_eq!(&kept[..length], label);
}
