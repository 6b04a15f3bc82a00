//! The programs under NVIDIA's names, and the commands that add a runtime to engines.

use std::ffi::OsStr;
use std::process::{Output, Stdio};

use crate::support::{code, program, run, stderr, stdout, Tree};

fn ctk<W: AsRef<OsStr>>(words: &[W]) -> Output {
    called("nvidia-ctk", words)
}

fn called<W: AsRef<OsStr>>(name: &str, words: &[W]) -> Output {
    program(name)
        .args(words)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("NVIDIA_CTK_CONFIG_FILE_PATH")
        .stdin(Stdio::null())
        .output()
        .expect("the program")
}

fn ok(output: &Output) -> String {
    assert_eq!(code(output), 0, "{}", stderr(output));
    stdout(output)
}

#[test]
fn links_to_devices_by_number() {
    if !crate::support::need::root("mknod") {
        return;
    }
    let tree = Tree::new();
    tree.folder("dev/nvidia-caps");
    let mknod = |path: &str, major: &str, minor: &str| {
        let path = tree.path(path);
        let made = std::process::Command::new("mknod").arg(path).args(["c", major, minor]).status();
        assert!(made.unwrap().success());
    };
    mknod("dev/nvidia0", "195", "0");
    mknod("dev/nvidia-caps/nvidia-cap1", "237", "1");
    mknod("dev/other", "1", "3");
    tree.link("char/195:0", "/elsewhere");
    let words = [
        "system",
        "create-dev-char-symlinks",
        "--dev-char-path",
        tree.path("char").to_str().unwrap(),
        "--driver-root",
        &tree.shown(),
    ]
    .map(str::to_owned);
    let dry = ok(&ctk(&[&words[..], &["--dry-run".to_owned()]].concat()));
    assert_eq!(dry.lines().count(), 2, "{dry}");
    assert_eq!(ok(&ctk(&words)), dry);
    for (link, node) in
        [("char/195:0", "dev/nvidia0"), ("char/237:1", "dev/nvidia-caps/nvidia-cap1")]
    {
        assert_eq!(std::fs::read_link(tree.path(link)).unwrap(), tree.path(node));
    }
    assert_eq!(ok(&ctk(&words)), "", "a second run changes nothing");
    tree.file("char2/195:0", "");
    let refused = ctk(&[
        "system",
        "create-dev-char-symlinks",
        "--dev-char-path",
        tree.path("char2").to_str().unwrap(),
        "--root",
        &tree.shown(),
    ]);
    assert!(stderr(&refused).contains("is not a link"), "{}", stderr(&refused));
    let watch = ctk(&["system", "create-dev-char-symlinks", "--watch"]);
    assert_eq!(code(&watch), 2);
    assert!(stderr(&watch).contains("udev"));
    // The variables of NVIDIA's program stand in for its options.
    let (char3, root) = (tree.path("char3"), tree.shown());
    let by_variables = |more: &[(&str, &str)]| {
        let variables = [("DEV_CHAR_PATH", char3.to_str().unwrap()), ("DRIVER_ROOT", &*root)];
        let mut command = program("nvidia-ctk");
        command.args(["system", "create-dev-char-symlinks"]);
        command.envs(variables).envs(more.iter().copied());
        command.output().unwrap()
    };
    assert_eq!(ok(&by_variables(&[("DRY_RUN", "1")])).lines().count(), 2);
    assert!(!char3.exists());
    assert_eq!(code(&by_variables(&[("DRY_RUN", "perhaps")])), 2);
    ok(&by_variables(&[("NVIDIA_DRIVER_ROOT", "/none")]));
    assert!(!char3.exists(), "the first variable counts");
    ok(&by_variables(&[]));
    assert!(char3.join("195:0").is_symlink());
    // There is no driver here, so that no number is known.
    let root = format!("--root={}", tree.shown());
    let nodes = ctk(&["system", "create-device-nodes", "--control-devices", &root]);
    assert!(matches!(code(&nodes), 0 | 3), "{}", stderr(&nodes));
}

#[test]
fn the_hooks_command_line() {
    for (name, words, expected) in [
        ("nvidia-container-runtime-hook", &["-version"][..], 0),
        ("nvidia-container-toolkit", &["--version"], 0),
        ("nvidia-container-toolkit-3.1.4", &["poststart"], 0),
        ("nvidia-container-runtime-hook", &["-debug", "poststop"], 0),
        ("nvidia-container-runtime-hook", &[], 2),
        ("nvidia-container-runtime-hook", &["createRuntime"], 2),
        ("nvidia-container-runtime-hook", &["-colour", "prestart"], 2),
        ("nvidia-container-runtime-hook", &["-config", "/none/config.toml", "prestart"], 1),
        ("nvidia-container-runtime-hook", &["-config=/none/config.toml", "prestart"], 1),
        ("nvidia-container-runtime-hook", &["prestart"], 1),
    ] {
        let output = called(name, words);
        assert_eq!(code(&output), expected, "{name} {words:?}: {}", stderr(&output));
        if expected == 2 {
            assert!(stderr(&output).contains("Usage of nvidia-container-runtime-hook"));
        }
    }
    let output = called("nvidia-container-runtime-hook", &["-config=/none/c", "prestart"]);
    assert!(stderr(&output).contains("can't read /none/c: there is no such file"));
}

#[test]
fn links_make_the_program_answer_by_nvidias_names() {
    let tree = Tree::new();
    let bin = tree.folder("bin");
    let folder = bin.display().to_string();
    let install = |words: &[&str]| run(&[&["install-links", &folder], words].concat(), "");
    let said: serde_json::Value = serde_json::from_str(&ok(&install(&["--json"]))).unwrap();
    assert_eq!(said["changed"].as_array().unwrap().len(), 8);
    assert_eq!(ok(&install(&[])), "nothing to do\n");
    // In the form that others read, with the version whose behaviour it is.
    let runtime = ("nvidia-container-runtime", "--version", "NVIDIA Container Runtime version 1.");
    let runtime = crate::support::runtime::find("runc").map(|_| runtime);
    for (name, word, expected) in [
        ("nvidia-ctk", "--version", "NVIDIA Container Toolkit CLI version 1."),
        ("nvidia-cdi-hook", "--version", "NVIDIA CDI Hook version 1."),
        ("nvidia-container-cli", "--version", "cli-version: "),
        ("nvidia-container-runtime-hook", "--version", "NVIDIA Container Runtime Hook version 1."),
        ("nvidia-container-toolkit", "-version", "NVIDIA Container Runtime Hook version 1."),
    ]
    .into_iter()
    .chain(runtime)
    {
        let output = std::process::Command::new(bin.join(name)).arg(word).output().unwrap();
        assert!(ok(&output).starts_with(expected), "{name}");
    }
    assert_eq!(ok(&install(&["--remove"])).lines().count(), 8);
    tree.file("bin/nvidia-ctk", "theirs");
    let refused = install(&[]);
    assert_eq!(code(&refused), 1);
    assert!(
        stderr(&refused).contains("bin/nvidia-ctk\nWhat to do: remove the package"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(tree.listing(), ["bin", "bin/nvidia-ctk"]);
    assert_eq!(code(&run(&["install-links"], "")), 2);
}

/// What `apt-get remove` leaves of NVIDIA's package.
#[test]
fn a_link_that_a_package_left_is_replaced() {
    let tree = Tree::new();
    let folder = tree.folder("bin").display().to_string();
    let old = tree.path("bin/nvidia-container-runtime-hook");
    tree.link("bin/nvidia-container-toolkit", old.to_str().unwrap());
    let install = |words: &[&str]| ok(&run(&[&["install-links", &folder], words].concat(), ""));
    assert_eq!(install(&[]).lines().count(), 8);
    assert_eq!(install(&["--remove"]).lines().count(), 8);
    assert_eq!(tree.listing(), ["bin"]);
}
