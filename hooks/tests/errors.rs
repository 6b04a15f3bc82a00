//! What a command prints when it fails: what happened, to what and why, and then what to do, on a
//! line of its own with a command that can be pasted. What an engine starts prints one line.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::support::{code, install_copy, need, program, run, stderr, stdout, Tree};

const VENDOR: &str = r#"{"activation_flag":"OCI_X","driver_feature":["a"],"inventory":{"a":{}}}"#;
const MARK: &str = "What to do: ";
/// An ordinary user.
const USER: u32 = 1000;

/// The line about what to do, which is the last one.
fn what_to_do(text: &str) -> &str {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix(MARK)
        .unwrap_or_else(|| panic!("{text} has no line {MARK}"))
}

fn nvidia_ctk(words: &[&str]) -> Output {
    let mut command = program("nvidia-ctk");
    command.args(words).stdin(Stdio::null());
    command.output().expect("the program")
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
fn a_key_that_settings_do_not_have() {
    let tree = Tree::new();
    let settings = tree.file("config.toml", "colour = 1\n");
    let settings = settings.display().to_string();
    tree.file("conf.d/x.json", VENDOR);
    let check = format!("correct the file, then check it: oci-decorator check --config {settings}");
    let mistake = format!("{settings}: colour: unknown key; known are config-dir, ");
    let generate = run(&["cdi", "generate", "--config", &settings], "");
    assert_eq!(code(&generate), 2);
    let text = stderr(&generate);
    assert!(
        text.starts_with(&format!("oci-decorator: {mistake}")),
        "{text}"
    );
    assert_eq!(what_to_do(&text), check);
    // The command that the line names says the same.
    let (_, words) = check.split_once("oci-decorator ").unwrap();
    let checked = run(&words.split(' ').collect::<Vec<_>>(), "");
    assert_eq!(code(&checked), 2);
    let text = stdout(&checked);
    let lines: Vec<_> = text.lines().take(2).collect();
    assert!(lines[0].starts_with(&mistake), "{text}");
    assert_eq!(lines[1], format!("{MARK}{check}"));
}

#[test]
fn settings_that_are_not_there_or_that_a_user_may_change() {
    let tree = Tree::new();
    let list = |path: &str| {
        let output = run(&["cdi", "list", "--config", path], "");
        assert_eq!(code(&output), 2);
        stderr(&output)
    };
    let missing = tree.path("none.toml").display().to_string();
    let text = list(&missing);
    assert!(
        text.starts_with(&format!("oci-decorator: can't read {missing}: ")),
        "{text}"
    );
    assert!(what_to_do(&text).ends_with(&format!("ls -l {}", tree.shown())));
    let open = tree.file("open.toml", "");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o666)).unwrap();
    let open = open.canonicalize().unwrap().display().to_string();
    let text = list(&open);
    assert!(text.contains("does not count: "), "{text}");
    let commands = format!("chown -h root {open} && chmod go-w {open}");
    assert!(what_to_do(&text).ends_with(&commands), "{text}");
}

#[test]
fn a_key_that_vendor_files_do_not_have() {
    let tree = Tree::new();
    let folder = tree.folder("conf.d").display().to_string();
    tree.file("conf.d/x.json", VENDOR.replace("{}", r#"{"fans":[]}"#));
    let checked = run(&["check", "--config-dir", &folder], "");
    assert_eq!(code(&checked), 2);
    let text = stdout(&checked);
    let lines: Vec<_> = text.lines().take(2).collect();
    let mistake = format!("{folder}/x.json: inventory.a.fans: unknown field; known are ");
    assert!(lines[0].starts_with(&mistake), "{text}");
    let command = format!("oci-decorator check --config-dir {folder}");
    let expected = format!("{MARK}correct these files, then check them: {command}");
    assert_eq!(lines[1], expected);
    let generate = run(&["cdi", "generate", "--config-dir", &folder], "");
    assert_eq!(code(&generate), 2);
    let text = stderr(&generate);
    assert!(text.contains("x.json can't be used"), "{text}");
    assert!(what_to_do(&text).contains("oci-decorator check"), "{text}");
}

#[test]
fn a_refused_start_says_what_to_do_about_it() {
    let tree = Tree::new();
    tree.file("conf.d/x.json", VENDOR);
    tree.folder("dev");
    let (root, folder) = (tree.shown(), tree.path("conf.d").display().to_string());
    let words = ["check", "--root", &root, "--config-dir", &folder];
    let checked = run(&[&words[..], &["--env", "OCI_X=q"]].concat(), "");
    let text = stdout(&checked);
    let refused = "start refused: OCI_X asks for the unknown feature \"q\"\n";
    assert!(text.contains(refused), "{text}");
    assert!(what_to_do(&text).contains("x.json knows a"), "{text}");
}

#[test]
fn an_engine_that_is_not_known() {
    let known = "unknown engine \"lxc\"; known are docker, containerd, crio, podman\n";
    let output = run(&["configure", "lxc"], "");
    assert_eq!(code(&output), 2);
    let text = stderr(&output);
    assert_eq!(
        text.split_once(known).map(|(before, _)| before),
        Some("oci-decorator: configure: ")
    );
    assert!(what_to_do(&text).ends_with(": oci-decorator configure docker"));
    let output = nvidia_ctk(&["runtime", "configure", "--runtime=lxc"]);
    assert_eq!(code(&output), 2);
    let text = stderr(&output);
    assert!(text.starts_with(&format!("nvidia-ctk: {known}")), "{text}");
    assert!(what_to_do(&text).ends_with(": nvidia-ctk runtime configure --runtime=docker"));
}

#[test]
fn a_word_that_a_command_does_not_know_leads_to_its_own_help() {
    for (words, command) in [
        (&["chek"][..], "oci-decorator --help"),
        (
            &["configure", "docker", "--colour"],
            "oci-decorator configure --help",
        ),
        (&["install-links"], "oci-decorator install-links /usr/bin"),
    ] {
        let output = run(words, "");
        assert_eq!(code(&output), 2);
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(what_to_do(&text).ends_with(command), "{text}");
    }
    for (words, command) in [
        (&["rundime"][..], "nvidia-ctk --help"),
        (&["info", "extra"], "nvidia-ctk --help"),
        (&["cdi", "generate", "--colour"], "nvidia-ctk cdi --help"),
    ] {
        let output = nvidia_ctk(words);
        assert_eq!(code(&output), 2);
        assert!(
            what_to_do(&stderr(&output)).ends_with(command),
            "{output:?}"
        );
    }
}

#[test]
fn a_file_that_the_user_may_not_read_or_change() {
    if !need::root("to become another user") {
        return;
    }
    let tree = Tree::new();
    let file = tree.file("docker/daemon.json", "{}\n");
    let (file, record) = (file.display().to_string(), tree.path("var/record.json"));
    std::fs::create_dir(tree.path("var")).unwrap();
    std::os::unix::fs::chown(tree.path("var"), Some(USER), Some(USER)).unwrap();
    let words = ["configure", "docker", "--config", &file, "--record"];
    let words = [&words[..], &[record.to_str().unwrap()]].concat();
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

#[test]
fn an_engines_file_that_is_no_text_of_its_kind() {
    let tree = Tree::new();
    let record = tree.path("record.json").display().to_string();
    let configure = |engine: &str, path: &str| {
        let file = tree.path(path).display().to_string();
        let words = ["configure", engine, "--config", &file, "--record", &record];
        let output = run(&words, "");
        assert_eq!(code(&output), 1);
        (file, stderr(&output))
    };
    tree.folder("docker/daemon.json");
    let (file, text) = configure("docker", "docker/daemon.json");
    assert!(text.contains("it is not a regular file\n"), "{text}");
    assert!(what_to_do(&text).ends_with(&format!("mv {file} {file}.old")));
    tree.file("latin.json", b"{\"a\": \"\xe9\"}\n");
    let (file, text) = configure("docker", "latin.json");
    assert!(text.contains("it is not valid UTF-8\n"), "{text}");
    assert!(what_to_do(&text).ends_with(&format!("grep -naxv '.*' {file}")));
    for (engine, path, broken) in [
        ("docker", "broken.json", "{"),
        ("containerd", "broken.toml", "= 1"),
        ("crio", "crio.conf.d/broken.conf", "= 1"),
        ("podman", "broken.conf", "= 1"),
    ] {
        tree.file(path, broken);
        let (file, text) = configure(engine, path);
        assert!(text.contains("The file is unchanged\n"), "{text}");
        assert!(
            what_to_do(&text).ends_with(&format!("editor {file}")),
            "{text}"
        );
        assert_eq!(tree.text(path), broken);
    }
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
    for words in [
        &["prestart", "--colour"][..],
        &["precreate", "--colour"],
        &["prestart"],
    ] {
        let output = run(words, "no state");
        assert_ne!(code(&output), 0);
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains(MARK), "{text}");
    }
}
