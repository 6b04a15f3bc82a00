//! The commands that people type: what they print and how they end.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{code, in_users, install_copy, need, run, stderr, stdout, Tree};
use oci_decorator::engines::links::NAMES;
use oci_decorator::frontends::cdi_hook::VERBS;

const GOOD: &str = r#"{"version":"1","activation_flag":"OCI_X","driver_feature":["a"],
    "inventory":{"a":{"devices":["absent"],"libraries":["/lib/libx.so"]},"b":{"directories":["/d"]}}}"#;
const SPEC: &str = "{ \"process\" : {\"env\":[\"OCI_X=a\"]},\n \"n\": 1e5 }\n";

fn host() -> Tree {
    let tree = Tree::new();
    tree.file("etc/oci-decorator/oci-decorator.d/x.json", GOOD);
    tree.file("lib/libx.so", "not a library");
    tree.folder("dev");
    tree
}

#[test]
fn precreate_edits_and_is_idempotent() {
    let tree = host();
    let words = ["precreate", "--root", &tree.shown()];
    let output = run(&words, SPEC);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let once = stdout(&output);
    let source = format!("\"source\":\"{}/lib/libx.so\"", tree.shown());
    assert!(once.contains(&source), "{once}");
    assert!(once.contains("\n \"n\": 1e5"), "{once}");
    assert_eq!(stdout(&run(&words, &once)), once);
}

/// In a rootless engine's user namespace the processes don't know the host's root.
#[test]
fn files_of_the_hosts_root_count_where_root_is_a_user() {
    if !need::root("to become another user") {
        return;
    }
    let tree = host();
    // Below a folder that everyone may enter.
    let binary = tree.path("it");
    install_copy(env!("CARGO_BIN_EXE_oci-decorator"), &binary);
    std::fs::set_permissions(tree.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    tree.file("spec", SPEC);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(&binary);
    command.args(["precreate", "--root", &tree.shown()]);
    command.uid(1000).gid(1000).current_dir("/");
    command.stdin(std::fs::File::open(tree.path("spec")).unwrap());
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let edited = stdout(&output);
    assert!(edited.contains("/lib/libx.so"), "{edited}");
}

/// Where the host's root is mapped, files of the overflow user may be anybody's.
#[test]
fn files_of_the_overflow_user_do_not_count_where_the_hosts_root_is_mapped() {
    if !need::root("to map users") {
        return;
    }
    let tree = host();
    let file = tree.path("etc/oci-decorator/oci-decorator.d/x.json");
    tree.file("spec", SPEC);
    let words = ["precreate", "--root", &tree.shown(), "<", &tree.shown()].join(" ");
    let line = format!("exec {} {words}/spec", env!("CARGO_BIN_EXE_oci-decorator"));
    let script = tree.script("within", &line);
    for map in ["0 0 4294967295", "0 0 65536", "0 0 1"] {
        // The second map lacks the one, and the last map both.
        for owner in [65534, 100_000] {
            std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
            let output = in_users(map, &script);
            assert_eq!(code(&output), 2, "{map} {owner}: {}", stdout(&output));
            assert!(stderr(&output).contains("is not owned by root"), "{output:?}");
        }
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        assert_eq!(code(&in_users(map, &script)), 0, "{map}");
    }
}

#[test]
fn check_holds_sonames_to_the_files() {
    let tree = host();
    tree.library("lib/libx.so", "libx.so.1", &[]);
    let explained = |path: &str, soname: &str| {
        let stated = format!(r#""sonames":{{"{path}":"{soname}"}},"inventory""#);
        let text = GOOD.replace("\"inventory\"", &stated);
        tree.file("etc/oci-decorator/oci-decorator.d/x.json", text);
        let output = run(&["check", "--root", &tree.shown()], "");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let lines = stdout(&output);
        lines.lines().find(|line| line.contains("/lib/libx.so")).unwrap().to_owned()
    };
    let right = explained("/lib/libx.so", "libx.so.1");
    assert!(!right.contains("sonames"), "{right}");
    let wrong = explained("/lib/libx.so", "liby.so.1");
    let expected = "\"sonames\" calls it liby.so.1, and the file is libx.so.1";
    assert!(wrong.contains(expected), "{wrong}");
    assert!(!explained("/lib/other.so", "liby.so.1").contains("sonames"));
    tree.file("lib/libx.so", "not a library");
    let wrong = explained("/lib/libx.so", "libx.so.1");
    assert!(wrong.contains("the file is not a library"), "{wrong}");
}

#[test]
fn check_says_what_the_policy_leaves_out() {
    let tree = host();
    let settings = "[policy]\nenvironment = \"privileged\"\nallow = {x = [\"a\"]}\n";
    let settings = tree.file("config.toml", settings).display().to_string();
    let root = tree.shown();
    let check = |words: &[&str]| {
        let common = ["--config", &settings, "check", "--root", &root];
        run(&[&common, words].concat(), "")
    };
    let line = "policy: annotations of privileged containers, environment of privileged containers, the vendors x (a); anything else is ignored\n";
    let not_counted = "OCI_X of the container's environment does not count: \"policy.environment\" is \"privileged\"; the container starts without\n";
    let not_allowed = "OCI_X asks for the feature \"b\", and \"policy.allow\" has none of that name for x; the container starts without\n";
    let given = "OCI_X (x, 1): a\n";
    for (words, present, absent) in [
        (
            &["--env", "OCI_X=a"][..],
            &[not_counted][..],
            &[given, not_allowed][..],
        ),
        (
            &["--env", "OCI_X=a,b", "--privileged"],
            &[given, not_allowed],
            &[not_counted],
        ),
        (
            &["--annotation", "oci-decorator.d/OCI_X=a"],
            &["OCI_X of the container's annotations does not count: \"policy.annotations-from\" is \"image\""],
            &[given],
        ),
        (
            &["--annotation", "oci-decorator.d/OCI_X=a", "--privileged"],
            &[given],
            &[not_counted, not_allowed],
        ),
        (
            &[
                "--annotation",
                "oci-decorator.d/OCI_X=b",
                "--env",
                "OCI_X=a",
                "--privileged",
            ],
            &[given],
            &[not_allowed],
        ),
        (
            &["--annotation", "oci-decorator.d/OCI_Z=a"],
            &["oci-decorator.d/OCI_Z asks for nothing: no vendor file has this flag"],
            &[given],
        ),
    ] {
        let output = check(words);
        let has_flag = !words[1].contains("OCI_Z");
        assert_eq!(code(&output), if has_flag { 0 } else { 3 }, "{words:?}");
        let text = stdout(&output);
        assert!(text.contains(line), "{text}");
        for part in present {
            assert!(text.contains(part), "{words:?}: {part}\n{text}");
        }
        for part in absent {
            assert!(!text.contains(part), "{words:?}: {part}\n{text}");
        }
    }
    let output = check(&["--env", "OCI_X=a", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["policy"].as_str().map(str::len), Some(line.len() - "policy: \n".len()));
    assert!(report["ignored"][0]
        .as_str()
        .unwrap()
        .starts_with("OCI_X of the container's environment"));
    assert!(report["vendors"].as_array().unwrap().is_empty());
    let output = check(&["--annotation", "OCI_X=a"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("expected oci-decorator.d/FLAG=VALUE"), "{}", stderr(&output));
}

#[test]
fn odd_environments_are_decided_too() {
    let tree = host();
    let words = ["precreate", "--root", &tree.shown()];
    let spec = |entries: &[String]| serde_json::json!({"process": {"env": entries}}).to_string();
    let mut many: Vec<String> = (0..100_000).map(|i| format!("V{i}=value of {i}")).collect();
    many.extend(["NOEQUALS".to_owned(), String::new(), "=".to_owned(), "=x".to_owned()]);
    let without = spec(&many);
    assert_eq!(stdout(&run(&words, &without)), without);
    many.push("OCI_X".to_owned());
    let edited = stdout(&run(&words, &spec(&many)));
    assert!(edited.contains("/lib/libx.so"));
    // A value that names no feature refuses the start, on one line.
    for value in ["a\0b", "a\nb", "\u{1b}[2J", "a,\u{202e}b"] {
        let output = run(&words, &spec(&[format!("OCI_X={value}")]));
        assert_eq!(code(&output), 2, "{value:?}");
        let message = stderr(&output);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(!message.trim_end().contains(char::is_control), "{message:?}");
    }
}

#[test]
fn a_broken_spec_that_asks_is_refused_with_the_place() {
    let tree = host();
    let words = ["precreate", "--root", &tree.shown()];
    let output = run(&words, r#"{"process":{"env":["OCI_X=a"]},"mounts":{}}"#);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("mounts"), "{}", stderr(&output));
    // No runtime sees a variable in these.
    let deep = format!("[\"OCI_X=a\"{}", "[".repeat(100_000));
    for spec in [r#"{"process":{"env":"OCI_X=a"}}"#, &deep] {
        let output = run(&words, spec);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, spec));
    }
}

#[test]
fn the_manual_has_every_option_and_command_of_the_help() {
    let help = stdout(&run(&["--help"], ""));
    let manual = include_str!("../man/oci-decorator.8").replace('\\', "");
    let words = help.split(|c: char| c.is_whitespace() || "[],|:".contains(c));
    let mut options: Vec<&str> = words.filter(|word| word.starts_with("--")).collect();
    options.extend([
        "check",
        "precreate",
        "cdi generate",
        "cdi list",
        "prestart",
        "createRuntime",
        "interfaces",
        "scheduler",
    ]);
    assert!(options.len() > 12);
    options.extend(NAMES);
    options.extend(VERBS);
    for option in options {
        assert!(manual.contains(option), "{option}");
    }
}
