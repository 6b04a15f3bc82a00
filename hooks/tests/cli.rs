//! The commands that people type: what they print and how they end.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{code, in_users, install_copy, need, program, run, stderr, stdout, Tree};
use oci_decorator::configure::links::NAMES;
use oci_decorator::frontends::cdi_hook::VERBS;

const GOOD: &str = r#"{"version":"1","activation_flag":"OCI_X","driver_feature":["a"],
    "inventory":{"a":{"devices":["absent"],"libraries":["/lib/libx.so"]},"b":{"directories":["/d"]}}}"#;
const BAD: &str =
    r#"{"activation_flag":"OCI_Y","driver_feature":["z"],"inventory":{"a":{"fans":[]}}}"#;
const SPEC: &str = "{ \"process\" : {\"env\":[\"OCI_X=a\"]},\n \"n\": 1e5 }\n";

fn host() -> Tree {
    let tree = Tree::new();
    tree.file("etc/oci-decorator/oci-decorator.d/x.json", GOOD);
    tree.file("lib/libx.so", "not a library");
    tree.folder("dev");
    tree
}

#[test]
fn help_and_version() {
    for words in [["--help"], ["-h"], ["help"]] {
        let output = run(&words, "");
        assert_eq!(code(&output), 0);
        for part in [
            "check",
            "precreate",
            "--config-dir",
            "OCI_NVIDIA=all",
            "Exit codes",
        ] {
            assert!(stdout(&output).contains(part), "{part}");
        }
    }
    let version = format!("oci-decorator {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&run(&["--version"], "")), version);
}

/// Each prints its own options and nobody else's.
#[test]
fn every_command_has_its_own_help() {
    let whole = stdout(&run(&["--help"], ""));
    let table: [(&str, &[&str], &str, &str); 17] = [
        ("oci-decorator", &["check"], "--privileged", "--output-dir"),
        ("oci-decorator", &["precreate"], "< config.json", "--env"),
        (
            "oci-decorator",
            &["cdi", "generate"],
            "--output-dir DIR",
            "cdi list",
        ),
        ("oci-decorator", &["cdi", "list"], "--json", "--vendor"),
        ("oci-decorator", &["cdi"], "cdi list", "--library-cache"),
        ("oci-decorator", &["prestart"], "--library-cache", "--json"),
        ("oci-decorator", &["poststop"], "createRuntime", "--vendor"),
        ("oci-decorator", &["configure"], "--set-as-default", "--env"),
        (
            "oci-decorator",
            &["configure", "docker"],
            "--runtime-name",
            "--env",
        ),
        (
            "oci-decorator",
            &["install-links"],
            "--record FILE",
            "--privileged",
        ),
        (
            "nvidia-ctk",
            &["runtime", "configure"],
            "--config-mode",
            "--in-place",
        ),
        ("nvidia-ctk", &["config"], "--in-place", "--config-mode"),
        (
            "nvidia-ctk",
            &["config", "default"],
            "--output",
            "--in-place",
        ),
        ("nvidia-ctk", &["info"], "--json", "--output"),
        (
            "nvidia-ctk",
            &["system", "create-device-nodes"],
            "--dev-root",
            "--create-all",
        ),
        (
            "nvidia-ctk",
            &["cdi", "generate"],
            "--device-id",
            "--spec-dir",
        ),
        (
            "nvidia-ctk",
            &["cdi", "transform", "root"],
            "--relative-to",
            "--device-id",
        ),
    ];
    for (name, words, own, others) in table {
        let output = program(name).args(words).arg("--help").output().unwrap();
        let text = stdout(&output);
        assert_eq!(code(&output), 0, "{name} {words:?}");
        assert!(text.contains(own), "{name} {words:?}: {own}\n{text}");
        assert!(!text.contains(others), "{name} {words:?}: {others}\n{text}");
        assert!(text.len() < whole.len() / 2, "{name} {words:?}");
        // What it describes is what it accepts: no option is listed that its usage lacks.
        assert!(
            text.contains(words[words.len() - 1]) || words == ["poststop"],
            "{text}"
        );
    }
}

/// Nothing is green that no vendor file has.
#[test]
fn check_says_which_flag_has_no_vendor() {
    let (empty, one) = (Tree::new(), host());
    empty.folder("etc/oci-decorator/oci-decorator.d");
    for (tree, words, expected) in [
        (&empty, &["--env", "OCI_NVIDIA=all"][..], (3, "OCI_NVIDIA")),
        (&empty, &["--env", "ANY"], (3, "ANY")),
        (
            &empty,
            &["--annotation", "oci-decorator.d/OCI_Z=a"],
            (3, "OCI_Z"),
        ),
        (&empty, &["--env", "OCI_NVIDIA=none"], (0, "")),
        (&empty, &[], (0, "")),
        (&one, &["--env", "OCI_NVIDIA=all"], (3, "OCI_NVIDIA")),
        (
            &one,
            &["--env", "OCI_X=a", "--env", "OCI_NVIDIA"],
            (3, "OCI_NVIDIA"),
        ),
        (&one, &["--env", "OCI_X=a", "--env", "PATH=/bin"], (0, "")),
        (&one, &["--env", "OCI_X=none"], (0, "")),
        (
            &one,
            &["--env", "OCI_X=a", "--annotation", "oci-decorator.d/Q=a"],
            (3, "Q"),
        ),
    ] {
        let root = tree.shown();
        let output = run(&[&["check", "--root", &root], words].concat(), "");
        let text = stdout(&output);
        assert_eq!(code(&output), expected.0, "{words:?}\n{text}");
        let said = format!("has the flag {}:", expected.1);
        assert_eq!(text.contains(&said), expected.0 != 0, "{words:?}\n{text}");
        let words = [&["check", "--json", "--root", &root], words].concat();
        let report: serde_json::Value = serde_json::from_str(&stdout(&run(&words, ""))).unwrap();
        assert_eq!(report["unanswered"].is_null(), expected.0 == 0);
    }
}

#[test]
fn wrong_usage_ends_with_2_and_points_to_help() {
    let cases: [&[&str]; 7] = [
        &[],
        &["chek"],
        &["--colour"],
        &["check", "--root"],
        &["check", "extra"],
        &["precreate", "--json"],
        &["precreate", "--env", "A=1"],
    ];
    for words in cases {
        let output = run(words, "");
        assert_eq!(code(&output), 2, "{words:?}");
        assert!(stderr(&output).contains("--help"), "{words:?}");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn people_read_what_to_do_on_a_line_of_its_own_and_engines_read_one_line() {
    let tree = host();
    tree.file("etc/oci-decorator/config.toml", "polcy = 1\n");
    let config = tree.path("etc/oci-decorator/config.toml");
    let config = config.to_str().unwrap();
    let cases: [(&[&str], &str); 3] = [
        (
            &["chek"],
            "What to do: see its commands and options: oci-decorator --help",
        ),
        (
            &["configure", "dokcer"],
            "What to do: name docker, containerd, crio or podman",
        ),
        (
            &["check", "--config-dir", "/nowhere"],
            "What to do: make it, and put vendor files there",
        ),
    ];
    for (words, advice) in cases {
        let said = stderr(&run(words, ""));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines[0].starts_with("oci-decorator: "), "{said}");
        assert!(lines[1].starts_with(advice), "{said}");
    }
    let asking = SPEC.replace("OCI_X=a", "OCI_X=zzz");
    let refused = run(
        &["precreate", "--root", &tree.shown(), "--config", config],
        &asking,
    );
    assert_ne!(code(&refused), 0);
    assert_eq!(stderr(&refused).lines().count(), 1, "{}", stderr(&refused));
}

#[test]
fn precreate_keeps_every_byte_when_nothing_applies() {
    let tree = host();
    for env in ["OCI_X=none", "OCI_X=void", "NOT_OCI_X=a", "OTHER"] {
        let spec = SPEC.replace("OCI_X=a", env);
        let output = run(&["precreate", "--root", &tree.shown()], &spec);
        assert_eq!((code(&output), stdout(&output)), (0, spec), "{env}");
    }
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
            assert!(
                stderr(&output).contains("is not owned by root"),
                "{output:?}"
            );
        }
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        assert_eq!(code(&in_users(map, &script)), 0, "{map}");
    }
}

#[test]
fn precreate_refuses_with_one_line() {
    let tree = host();
    let output = run(
        &["precreate", "--root", &tree.shown()],
        &SPEC.replace("=a", "=q"),
    );
    assert_eq!(code(&output), 2);
    assert_eq!(stdout(&output), "");
    assert_eq!(stderr(&output).lines().count(), 1);
    // The engine judges a text that is not a spec, unless the text asks for something.
    let output = run(&["precreate", "--root", &tree.shown()], "{");
    assert_eq!((code(&output), stdout(&output)), (0, "{".to_owned()));
    let asks = "{\"OCI_X=a\"";
    assert_eq!(code(&run(&["precreate", "--root", &tree.shown()], asks)), 1);
    let output = run(
        &[
            "precreate",
            "--root",
            "/nowhere",
            "--config-dir",
            &config_dir(&tree),
        ],
        SPEC,
    );
    assert_eq!(code(&output), 3, "{}", stderr(&output));
}

fn config_dir(tree: &Tree) -> String {
    tree.path("etc/oci-decorator/oci-decorator.d")
        .display()
        .to_string()
}

#[test]
fn check_lists_every_mistake_and_ends_with_2() {
    let tree = host();
    tree.file("etc/oci-decorator/oci-decorator.d/y.json", BAD);
    tree.file("etc/oci-decorator/oci-decorator.d/z.json", "no JSON");
    let output = run(&["check", "--root", &tree.shown()], "");
    assert_eq!(code(&output), 2);
    let text = stdout(&output);
    for part in [
        "x.json: ok",
        "y.json: inventory.a.fans: unknown field",
        "y.json: driver_feature[0]: \"z\" is not in the inventory",
        "z.json: not valid JSON",
        "z.json: no activation_flag can be found",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn check_says_what_an_environment_would_get() {
    let tree = host();
    let output = run(&["check", "--root", &tree.shown(), "--env", "OCI_X="], "");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("OCI_X (x, 1): a\n"), "{text}");
    assert!(text.contains("missing device    /dev/absent [a] the host has no such device"));
    assert!(text.contains("ok      file      /lib/libx.so [a]"));
    assert!(!text.contains("/d ["));
    let everything = stdout(&run(&["check", "--root", &tree.shown()], ""));
    assert!(
        everything.contains("ok      directory /d [b]"),
        "{everything}"
    );
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
        lines
            .lines()
            .find(|line| line.contains("/lib/libx.so"))
            .unwrap()
            .to_owned()
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
fn check_says_why_a_start_would_be_refused() {
    let tree = host();
    let root = tree.shown();
    let output = run(&["check", "--root", &root, "--env", "OCI_X=q"], "");
    assert_eq!(code(&output), 2);
    assert!(stdout(&output).contains("start refused: OCI_X asks for the unknown feature \"q\""));
    let rooted = GOOD.replace("\"version\"", "\"root\":\"/store\",\"version\"");
    tree.file("etc/oci-decorator/oci-decorator.d/x.json", rooted);
    let output = run(&["check", "--root", &root, "--env", "OCI_X=a"], "");
    assert_eq!(code(&output), 3);
    assert!(stdout(&output).contains("the driver is not installed"));
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
    assert_eq!(
        report["policy"].as_str().map(str::len),
        Some(line.len() - "policy: \n".len())
    );
    assert!(report["ignored"][0]
        .as_str()
        .unwrap()
        .starts_with("OCI_X of the container's environment"));
    assert!(report["vendors"].as_array().unwrap().is_empty());
    let output = check(&["--annotation", "OCI_X=a"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("expected oci-decorator.d/FLAG=VALUE"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn check_prints_one_json_document() {
    let tree = host();
    tree.file("etc/oci-decorator/oci-decorator.d/y.json", BAD);
    let output = run(
        &[
            "check",
            "--json",
            "--root",
            &tree.shown(),
            "--env",
            "OCI_X=all",
        ],
        "",
    );
    assert_eq!(code(&output), 2);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["files"][0]["ok"], true);
    assert_eq!(report["files"][1]["mistakes"][0]["key"], "inventory.a.fans");
    assert_eq!(report["vendors"][0]["features"][1], "b");
    let items = report["vendors"][0]["items"].as_array().unwrap();
    let absent = items.iter().find(|i| i["path"] == "/dev/absent").unwrap();
    assert_eq!(absent["present"], false);
    assert!(report["refused"].is_null());
}

#[test]
fn check_names_a_flag_that_two_files_claim() {
    let tree = host();
    tree.file("etc/oci-decorator/oci-decorator.d/x2.json", GOOD);
    let output = run(&["check", "--root", &tree.shown()], "");
    assert_eq!(code(&output), 2);
    assert!(stdout(&output).contains("x2.json: activation_flag: OCI_X is claimed by"));
}

#[test]
fn check_of_a_folder_that_is_not_there() {
    let output = run(&["check", "--config-dir", "/nowhere"], "");
    assert_eq!(code(&output), 3);
    let tree = Tree::new();
    let output = run(&["check", "--root", &tree.shown()], "");
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("no vendor files"));
}

#[test]
fn odd_environments_are_decided_too() {
    let tree = host();
    let words = ["precreate", "--root", &tree.shown()];
    let spec = |entries: &[String]| serde_json::json!({"process": {"env": entries}}).to_string();
    let mut many: Vec<String> = (0..100_000).map(|i| format!("V{i}=value of {i}")).collect();
    many.extend([
        "NOEQUALS".to_owned(),
        String::new(),
        "=".to_owned(),
        "=x".to_owned(),
    ]);
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
        assert!(
            !message.trim_end().contains(char::is_control),
            "{message:?}"
        );
    }
}

#[test]
fn a_broken_spec_that_asks_is_refused_with_the_place() {
    let tree = host();
    let words = ["precreate", "--root", &tree.shown()];
    for (spec, reason) in [
        (r#"{"process":{"env":["OCI_X=a"]},"mounts":{}}"#, "mounts"),
        (r#"{"process":{"env":["OCI_X=a"],"env":[]}}"#, "given twice"),
        (
            &format!("[\"OCI_X=a\"{}", "[".repeat(100_000)),
            "not a valid spec",
        ),
    ] {
        let output = run(&words, spec);
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    // No runtime sees a variable in these.
    for spec in [r#"{"process":{"env":"OCI_X=a"}}"#, &"[".repeat(100_000)] {
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

#[test]
fn check_says_what_nvidias_variables_would_get_and_under_which_names() {
    let tree = Tree::new();
    let vendor = r#"{"activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"], "interfaces": ["nvidia"],
        "inventory": {"compute": {"libraries": ["/usr/lib/libcuda.so.1"]}}}"#;
    tree.file("etc/oci-decorator/oci-decorator.d/nvidia.json", vendor);
    tree.library("usr/lib/libcuda.so.1", "libcuda.so.1", &[]);
    let root = tree.shown();
    let check = |words: &[&str]| {
        let common = ["check", "--root", &root, "--json"];
        let output = run(&[&common, words].concat(), "");
        let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        (code(&output), report)
    };
    let (ended, report) = check(&["--env", "NVIDIA_VISIBLE_DEVICES=all"]);
    assert_eq!(ended, 0, "{report:#}");
    let first = &report["names"][0];
    let names = ["nvidia-container-runtime", "nvidia-container-runtime-hook"];
    assert_eq!(first["names"], serde_json::json!(names));
    assert_eq!(first["gets"]["file"][0], "/usr/lib/libcuda.so.1");
    assert_eq!(report["nvidia_config"], serde_json::Value::Null);
    let (ended, report) = check(&[]);
    assert_eq!((ended, report["names"].as_array().unwrap().len()), (0, 0));
    let requirement = ["--env", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"];
    let requirement = [&["--env", "NVIDIA_VISIBLE_DEVICES=all"], &requirement[..]].concat();
    tree.file(
        "run/oci-decorator/devices/nvidia.json",
        r#"{"cuda_version": "12.2", "devices": []}"#,
    );
    let (ended, report) = check(&requirement);
    assert_eq!(ended, 1, "{report:#}");
    let refused = report["names"][0]["refused"].as_str().unwrap();
    assert!(refused.contains("NVIDIA_REQUIRE_CUDA"), "{refused}");
    // The usual file, below the same root.
    tree.file(
        "etc/nvidia-container-runtime/config.toml",
        "disable-require = true\n",
    );
    let (ended, report) = check(&requirement);
    assert_eq!(ended, 0, "{report:#}");
    assert!(report["nvidia_config"]
        .as_str()
        .unwrap()
        .ends_with("/config.toml"));
    tree.file("etc/nvidia-container-runtime/config.toml", "= broken");
    assert_eq!(check(&[]).0, 2);
}
