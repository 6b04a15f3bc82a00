//! What a command prints when it fails: what happened, to what and why, and then what to do, on a
//! line of its own with a command that can be pasted. What an engine starts prints one line.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::support::{code, install_copy, need, run, stderr, Tree};

const MARK: &str = "What to do: ";
/// An ordinary user.
const USER: u32 = 1000;

/// The line about what to do, which is the last one.
fn what_to_do(text: &str) -> &str {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix(MARK).unwrap_or_else(|| panic!("{text} has no line {MARK}"))
}

/// Runs `oci-decorator` as an ordinary user.
fn as_user(tree: &Tree, words: &[&str]) -> Output {
    let binary = tree.path("it");
    install_copy(env!("CARGO_BIN_EXE_oci-decorator"), &binary);
    std::fs::set_permissions(tree.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(binary);
    command.args(words).uid(USER).gid(USER).current_dir("/");
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_file_that_the_user_may_not_read_or_change() {
    if !need::root("to become another user") {
        return;
    }
    let tree = Tree::new();
    let file = tree.file("docker/daemon.json", "{}\n");
    let file = file.display().to_string();
    let words = ["configure", "docker", "--runtime-path=/bin/sh", "--config", &file];
    for (mode, verb) in [(0o600, "read"), (0o644, "write")] {
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let output = as_user(&tree, &words);
        assert_eq!(code(&output), 1);
        let text = stderr(&output);
        let expected = format!("oci-decorator: can't {verb} {file}: Permission denied");
        assert!(text.starts_with(&expected), "{text}");
        let expected =
            format!("run the command as root (sudo), or see who may do it: ls -ld {file}");
        assert_eq!(what_to_do(&text), expected);
        assert_eq!(tree.text("docker/daemon.json"), "{}\n");
    }
}

/// A copy of the program alone, as an admin may have it: no container would start.
#[test]
fn a_runtime_that_is_not_beside_the_program_is_configured_nowhere() {
    let tree = Tree::new();
    let program = tree.path("oci-decorator");
    install_copy(env!("CARGO_BIN_EXE_oci-decorator"), &program);
    let file = tree.file("daemon.json", "{}\n").display().to_string();
    let configure = || {
        let mut command = Command::new(&program);
        command.args(["configure", "docker", "--config", &file]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let output = configure();
    assert_eq!((code(&output), &*tree.text("daemon.json")), (3, "{}\n"));
    assert!(what_to_do(&stderr(&output)).contains("ln -s oci-decorator "));
    std::os::unix::fs::symlink("oci-decorator", tree.path("oci-decorator-runtime")).unwrap();
    assert_eq!(code(&configure()), 0);
}

#[test]
fn specifications_that_can_not_be_used() {
    let tree = Tree::new();
    tree.file("etc/cdi/x.json", "{");
    let output = run(&["cdi", "list", "--root", &tree.shown()], "");
    assert_eq!(code(&output), 2);
    assert!(what_to_do(&stderr(&output)).ends_with(": oci-decorator cdi list"));
    let folder = tree.folder("conf.d").display().to_string();
    let output = run(&["cdi", "generate", "--config-dir", &folder], "");
    assert_eq!(code(&output), 3);
    let text = stderr(&output);
    assert!(text.contains("has no vendor files\n"), "{text}");
    assert!(what_to_do(&text).contains("provision apply"), "{text}");
}

#[test]
fn what_engines_start_prints_one_line() {
    for words in [&["prestart", "--colour"][..], &["precreate", "--colour"], &["prestart"]] {
        let output = run(words, "no state");
        assert_ne!(code(&output), 0);
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains(MARK), "{text}");
    }
}
