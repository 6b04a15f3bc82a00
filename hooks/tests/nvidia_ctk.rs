//! The programs under NVIDIA's names, and the commands that add a runtime to engines.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
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

const DAEMON: &str = "{\n  \"log-driver\": \"journald\" // ops\n}\n";

#[test]
fn both_programs_add_a_runtime_and_remove_it() {
    let tree = Tree::new();
    let file = tree.file("etc/docker/daemon.json", DAEMON);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let (config, record) = (
        format!("--config={}", file.display()),
        format!("--record={}", tree.path("var/record.json").display()),
    );
    let nvidia = [
        "runtime",
        "configure",
        "--runtime=docker",
        &config,
        &record,
        "--cdi.enabled",
        "--nvidia-set-as-default",
    ];
    let dry = ok(&ctk(&[&nvidia[..], &["--dry-run"]].concat()));
    assert_eq!(tree.text("etc/docker/daemon.json"), DAEMON);
    let said = ok(&ctk(&nvidia));
    assert!(
        said.ends_with("daemon.json was written\nnext: systemctl restart docker\n"),
        "{said}"
    );
    let text = tree.text("etc/docker/daemon.json");
    assert_eq!(text, dry);
    for part in [
        "\"journald\", // ops\n",
        "\"path\": \"nvidia-container-runtime\"",
        "\"default-runtime\": \"nvidia\"",
        "\"cdi\": true",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let said = ok(&ctk(&nvidia));
    assert!(said.ends_with("daemon.json needs no change\n"), "{said}");
    let ours = ["configure", "docker", &config, &record];
    // Docker reads its setting for CDI only when it starts, but can add a runtime later.
    let said = ok(&run(&ours, ""));
    assert!(said.ends_with("next: systemctl reload docker\n"), "{said}");
    assert!(tree
        .text("etc/docker/daemon.json")
        .contains("/oci-decorator-runtime\""));
    let remove = [&ours[..], &["--remove"]].concat();
    ok(&run(&remove, ""));
    assert_eq!(tree.text("etc/docker/daemon.json"), text);
    let found = stdout(&run(
        &[&remove[..], &["--runtime-name=nvidia", "--json"]].concat(),
        "",
    ));
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["changed"], true);
    assert_eq!(found["files"][0]["after"], DAEMON);
    assert_eq!(found["next"], "systemctl restart docker");
    assert_eq!(tree.text("etc/docker/daemon.json"), DAEMON);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let left = ["etc", "etc/docker", "etc/docker/daemon.json"];
    assert_eq!(tree.listing(), left);
    let again = stdout(&run(&[&remove[..], &["--json"]].concat(), ""));
    assert!(again.contains("\"changed\": false"), "{again}");
}

#[test]
fn files_that_did_not_exist_are_removed_again() {
    let tree = Tree::new();
    for (engine, name) in [
        ("docker", "daemon.json"),
        ("containerd", "config.toml"),
        ("crio", "99-x.conf"),
        ("podman", "50-x.conf"),
    ] {
        let (config, record) = (tree.path("etc/e").join(name), tree.path("var/record.json"));
        let words = [
            "configure",
            engine,
            "--config",
            config.to_str().unwrap(),
            "--record",
            record.to_str().unwrap(),
            "--set-as-default",
        ];
        ok(&run(&words, ""));
        assert!(config.exists(), "{engine}");
        let said = ok(&run(&words, ""));
        assert!(said.contains("needs no change"), "{said}");
        ok(&run(&[&words[..], &["--remove"]].concat(), ""));
        assert_eq!(tree.listing(), Vec::<String>::new(), "{engine}");
    }
}

#[test]
fn containerd_of_version_three_gets_a_file_in_the_folder_that_it_imports() {
    let tree = Tree::new();
    let conf_d = tree.path("conf.d");
    let main = format!("version = 3\nimports = [\"{}/*.toml\"]\n", conf_d.display());
    let file = tree.file("config.toml", &main);
    let record = tree.path("var/record.json");
    let words = [
        "configure",
        "containerd",
        "--config",
        file.to_str().unwrap(),
        "--record",
        record.to_str().unwrap(),
        "--cdi",
    ];
    let said = ok(&run(&words, ""));
    assert!(
        said.contains("conf.d/99-oci-decorator.toml was written"),
        "{said}"
    );
    assert_eq!(tree.text("config.toml"), main);
    assert!(tree
        .text("conf.d/99-oci-decorator.toml")
        .contains("enable_cdi = true"));
    ok(&run(&[&words[..], &["--remove"]].concat(), ""));
    assert_eq!(tree.listing(), ["config.toml"]);
    let other = tree.path("other/x.toml");
    let refused = run(
        &[&words[..], &["--drop-in-config", other.to_str().unwrap()]].concat(),
        "",
    );
    assert_eq!(code(&refused), 1);
    assert!(
        stderr(&refused).contains("does not import"),
        "{}",
        stderr(&refused)
    );
    tree.file(
        "config.toml",
        "version = 2\nimports = [\"/x/*.toml\"]\ndisabled_plugins = [\"cri\"]\n",
    );
    let noted = run(&words, "");
    assert!(ok(&noted).contains("/config.toml was written"));
    assert_eq!(
        stderr(&noted).matches("note: ").count(),
        2,
        "{}",
        stderr(&noted)
    );
}

#[test]
fn hooks_for_engines_that_read_them() {
    let tree = Tree::new();
    let others = Tree::new();
    let record = format!("--record={}", others.path("record.json").display());
    let folder = tree.shown();
    let words = [
        "configure",
        "podman",
        "--config-mode=oci-hook",
        "--hook-folder",
        &folder,
        &record,
    ];
    ok(&run(&words, ""));
    assert_eq!(
        tree.listing(),
        [
            "10-oci-decorator-precreate.json",
            "20-oci-decorator-prestart.json"
        ]
    );
    ok(&run(&[&words[..], &["--remove"]].concat(), ""));
    let file = tree.path("nvidia.json");
    let words = [
        "runtime",
        "configure",
        "--runtime=crio",
        "--config-mode=oci-hook",
        "--hook-file-path",
        file.to_str().unwrap(),
        &record,
    ];
    ok(&ctk(&words));
    assert!(tree
        .text("nvidia.json")
        .contains("/nvidia-container-runtime-hook\""));
}

#[test]
fn what_can_not_be_changed_stays_and_says_what_to_do() {
    let tree = Tree::new();
    let record = tree.path("var/record.json").display().to_string();
    tree.file("real/daemon.json", "{}");
    tree.link("linked.json", "real/daemon.json");
    for (path, text, expected) in [
        (
            "broken.json",
            "{\n\"a\" 1}",
            "broken.json can't be changed: line 2, column 5: ':' expected. The file is unchanged",
        ),
        (
            "theirs.json",
            "{\"runtimes\": {\"oci-decorator\": {\"path\": \"/x\"}}}",
            "that is not ours (\"/x\")",
        ),
        ("linked.json", "", "is a link to"),
    ] {
        if !text.is_empty() {
            tree.file(path, text);
        }
        let config = tree.path(path).display().to_string();
        let output = run(
            &[
                "configure",
                "docker",
                "--config",
                &config,
                "--record",
                &record,
            ],
            "",
        );
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(text.is_empty() || tree.text(path) == text);
    }
    assert_eq!(tree.text("real/daemon.json"), "{}");
    for (words, expected) in [
        (&["configure"][..], "the engine is missing"),
        (
            &["configure", "lxc"],
            "unknown engine \"lxc\"; known are docker, containerd, crio, podman",
        ),
        (
            &["configure", "docker", "--colour"],
            "unknown option --colour",
        ),
        (
            &["configure", "docker", "--config-mode=oci-hook"],
            "reads no files with hooks",
        ),
        (
            &["configure", "docker", "--config-mode=x"],
            "unknown --config-mode",
        ),
        (
            &["configure", "crio", "--runtime-path=x"],
            "is not an absolute path",
        ),
        (
            &["configure", "docker", "--runtime-name=a b"],
            "is not a name for a runtime",
        ),
        (&["configure", "docker", "x"], "unexpected word"),
    ] {
        let output = run(words, "");
        assert_eq!(code(&output), 2, "{words:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn settings_are_shown_and_changed() {
    let tree = Tree::new();
    let file = tree.path("etc/config.toml");
    let (config, default) = (
        format!("--config-file={}", file.display()),
        ok(&ctk(&["config", "default"])),
    );
    assert_eq!(code(&ctk(&["config", &config])), 3);
    ok(&ctk(&[
        "config",
        &config,
        "--set",
        "nvidia-container-runtime.mode=cdi",
        "--in-place",
    ]));
    let text = tree.text("etc/config.toml");
    assert_eq!(text, default.replace("mode = \"auto\"", "mode = \"cdi\""));
    let shown = ok(&ctk(&[
        "config",
        &config,
        "-set",
        "disable-require",
        "--set=disable-require=false",
    ]));
    assert_eq!(shown, text);
    let other = tree.path("other.toml");
    ok(&ctk(&[
        "config",
        &config,
        "--output",
        other.to_str().unwrap(),
    ]));
    assert_eq!(tree.text("other.toml"), text);
    let refused = ctk(&[
        "config",
        &config,
        "--set=nvidia-container-runtime.mode=fast",
        "--in-place",
    ]);
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("invalid mode \"fast\""));
    assert_eq!(tree.text("etc/config.toml"), text);
    for (name, value) in [
        ("NVIDIA_CTK_CONFIG_FILE_PATH", file.clone()),
        ("XDG_CONFIG_HOME", tree.path("xdg")),
    ] {
        tree.file("xdg/nvidia-container-runtime/config.toml", &text);
        let output = program("nvidia-ctk")
            .args(["config"])
            .env(name, value)
            .output()
            .unwrap();
        assert_eq!(ok(&output), text, "{name}");
    }
    // Before the command, where its own option and no other variable counts more.
    let wrong = ("NVIDIA_CTK_CONFIG_FILE_PATH", "/none");
    for words in [
        &["--config", file.to_str().unwrap(), "config"][..],
        &["--config=/none", "config", &config],
    ] {
        let mut command = program("nvidia-ctk");
        let output = command.args(words).envs([wrong]).output();
        assert_eq!(ok(&output.unwrap()), text, "{words:?}");
    }
    let variables = [wrong, ("NVIDIA_CTK_CONFIG", file.to_str().unwrap())];
    let output = program("nvidia-ctk").arg("config").envs(variables).output();
    assert_eq!(ok(&output.unwrap()), text);
}

#[test]
fn info_says_which_keys_change_nothing() {
    let tree = Tree::new();
    tree.file("etc/oci.toml", format!("root = \"{}\"\n", tree.shown()));
    tree.file(
        "run/oci-decorator/devices/nvidia.json",
        "{\"driver_version\": \"535.1\", \"devices\": [{\"index\": 0, \"uuid\": \"GPU-1\"}]}",
    );
    let config = tree.file("config.toml", "[nvidia-container-cli]\nldconfig = \"@/sbin/ldconfig\"\n[nvidia-container-runtime]\nmode = \"cdi\"\n");
    let info = |words: &[&str]| {
        let mut command = program("nvidia-ctk");
        command.arg("info").args(words);
        command.env("OCI_DECORATOR_CONFIG", tree.path("etc/oci.toml"));
        command.env("NVIDIA_CTK_CONFIG_FILE_PATH", &config);
        command.output().unwrap()
    };
    let text = ok(&info(&[]));
    for part in [
        "driver: 535.1\n",
        "  0 GPU-1\n",
        "mode: cdi\n",
        "  nvidia-container-cli.ldconfig: ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let found: serde_json::Value = serde_json::from_str(&ok(&info(&["--json"]))).unwrap();
    assert_eq!(found["config"]["mode"], "cdi");
    assert_eq!(found["driver_version"], "535.1");
    tree.file(
        "config.toml",
        "[nvidia-container-runtime]\nmode = \"fast\"\n",
    );
    assert_eq!(code(&info(&[])), 2);
    assert!(stdout(&info(&[])).contains("mistake: "));
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
        let made = std::process::Command::new("mknod")
            .arg(path)
            .args(["c", major, minor])
            .status();
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
    for (link, node) in [
        ("char/195:0", "dev/nvidia0"),
        ("char/237:1", "dev/nvidia-caps/nvidia-cap1"),
    ] {
        assert_eq!(
            std::fs::read_link(tree.path(link)).unwrap(),
            tree.path(node)
        );
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
    assert!(
        stderr(&refused).contains("is not a link"),
        "{}",
        stderr(&refused)
    );
    let watch = ctk(&["system", "create-dev-char-symlinks", "--watch"]);
    assert_eq!(code(&watch), 2);
    assert!(stderr(&watch).contains("udev"));
    // The variables of NVIDIA's program stand in for its options.
    let (char3, root) = (tree.path("char3"), tree.shown());
    let by_variables = |more: &[(&str, &str)]| {
        let variables = [
            ("DEV_CHAR_PATH", char3.to_str().unwrap()),
            ("DRIVER_ROOT", &*root),
        ];
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
        (
            "nvidia-container-runtime-hook",
            &["-config", "/none/config.toml", "prestart"],
            1,
        ),
        (
            "nvidia-container-runtime-hook",
            &["-config=/none/config.toml", "prestart"],
            1,
        ),
        ("nvidia-container-runtime-hook", &["prestart"], 1),
    ] {
        let output = called(name, words);
        assert_eq!(
            code(&output),
            expected,
            "{name} {words:?}: {}",
            stderr(&output)
        );
        if expected == 2 {
            assert!(stderr(&output).contains("Usage of nvidia-container-runtime-hook"));
        }
    }
    let output = called(
        "nvidia-container-runtime-hook",
        &["-config=/none/c", "prestart"],
    );
    assert!(stderr(&output).contains("can't read /none/c: there is no such file"));
}

#[test]
fn links_make_the_program_answer_by_nvidias_names() {
    let tree = Tree::new();
    let bin = tree.folder("bin");
    let folder = bin.display().to_string();
    let install = |words: &[&str]| run(&[&["install-links", &folder], words].concat(), "");
    let said: serde_json::Value = serde_json::from_str(&ok(&install(&["--json"]))).unwrap();
    assert_eq!(said["changed"].as_array().unwrap().len(), 7);
    assert_eq!(ok(&install(&[])), "nothing to do\n");
    for (name, word, expected) in [
        ("nvidia-ctk", "--version", "NVIDIA Container Toolkit CLI"),
        (
            "nvidia-cdi-hook",
            "--version",
            "nvidia-cdi-hook (oci-decorator)",
        ),
        ("nvidia-container-runtime-hook", "--version", "Runtime Hook"),
        ("nvidia-container-toolkit", "-version", "Runtime Hook"),
    ] {
        let output = std::process::Command::new(bin.join(name))
            .arg(word)
            .output()
            .unwrap();
        assert!(ok(&output).contains(expected), "{name}");
    }
    assert_eq!(ok(&install(&["--remove"])).lines().count(), 7);
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
fn a_link_that_a_package_left_is_replaced_and_put_back() {
    let tree = Tree::new();
    let folder = tree.folder("bin").display().to_string();
    let record = tree.path("state/links.json").display().to_string();
    let name = "bin/nvidia-container-toolkit";
    let old = tree.path("bin/nvidia-container-runtime-hook");
    tree.link(name, old.to_str().unwrap());
    let install = |words: &[&str]| {
        let fixed = ["install-links", &folder, "--record", &record];
        ok(&run(&[&fixed, words].concat(), ""))
    };
    let said: serde_json::Value = serde_json::from_str(&install(&["--json"])).unwrap();
    assert_eq!(said["changed"].as_array().unwrap().len(), 7);
    assert_eq!(said["notes"].as_array().unwrap().len(), 1);
    assert_ne!(std::fs::read_link(tree.path(name)).unwrap(), old);
    assert!(tree
        .text("state/links.json")
        .contains(old.to_str().unwrap()));
    let said = install(&["--remove"]);
    assert!(
        said.contains("is a link to") && said.lines().count() == 8,
        "{said}"
    );
    assert_eq!(std::fs::read_link(tree.path(name)).unwrap(), old);
    assert_eq!(tree.listing(), ["bin", name]);
}

#[test]
fn a_hook_has_one_command_line_under_both_names() {
    for (words, part) in [
        (&["fly"][..], "unknown command \"fly\""),
        (&[], "no command given"),
        (&["chmod", "--path", "/x"], "chmod: --mode is missing"),
        (&["chmod", "--mode=755"], "state"),
    ] {
        let own = called("nvidia-cdi-hook", words);
        let other = ctk(&[&["hook"], words].concat());
        assert_eq!(stderr(&own), stderr(&other), "{words:?}");
        assert_eq!(code(&own), code(&other), "{words:?}");
        assert!(stderr(&own).contains(part), "{words:?} {}", stderr(&own));
    }
    let own = called("nvidia-cdi-hook", &["--version"]);
    assert_eq!(ok(&own), ok(&ctk(&["hook", "--version"])));
}

#[test]
fn other_commands_of_nvidia_ctk() {
    assert!(ok(&ctk(&["--help"])).contains("runtime configure"));
    assert!(ok(&ctk(&["runtime", "--help"])).contains("Exit codes"));
    for words in [
        &["runtime"][..],
        &["colours"],
        &["runtime", "remove"],
        &["-colour"],
        &["system", "x"],
        &["config", "x"],
    ] {
        let output = ctk(words);
        assert_eq!(code(&output), 2, "{words:?}");
        assert!(
            stderr(&output).contains("`nvidia-ctk --help`") || stderr(&output).contains("--help"),
            "{words:?}"
        );
    }
}
