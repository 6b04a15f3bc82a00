//! What counts as a request, through every front end: the same container, the same answer.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::support::scene::{setup, shim, CONFIG_DIR};
use crate::support::{code, run, stderr, stdout, Tree};
use serde_json::{json, Value};

/// A container with these parts that the tests are about, and nothing else.
fn spec(environment: &[&str], annotations: &[(&str, &str)], capabilities: &[&str]) -> String {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
    json!({
        "ociVersion": "1.0.2",
        "annotations": annotations,
        "process": {"env": environment, "capabilities": {"bounding": capabilities}},
        "root": {"path": "rootfs"},
    })
    .to_string()
}

/// Adds lines to the settings of the scene.
fn set(tree: &Tree, lines: &str) {
    let settings = tree.text("config.toml");
    tree.file("config.toml", format!("{settings}{lines}\n"));
}

/// Starts a container by each front end.
fn started(tree: &Tree, spec: &str) -> [(&'static str, Output); 3] {
    tree.file("bundle/config.json", spec);
    let config = tree.path("config.toml").display().to_string();
    let state = json!({
        "ociVersion": "1.0.2", "id": "c1", "pid": std::process::id(), "status": "creating",
        "bundle": tree.path("bundle"),
    });
    [
        ("runtime", shim(tree, &["create", "c1"])),
        ("precreate", run(&["--config", &config, "precreate"], spec)),
        ("prestart", run(&["--config", &config, "prestart"], &state.to_string())),
    ]
}

/// It starts as it is.
fn starts(tree: &Tree, spec: &str) {
    for (front_end, output) in started(tree, spec) {
        let said = (code(&output), stderr(&output));
        assert_eq!(said, (0, String::new()), "{front_end}: {spec}");
        if front_end == "precreate" {
            assert_eq!(stdout(&output), spec);
        }
    }
    assert_eq!(tree.text("bundle/config.json"), spec);
    assert!(tree.path("ran").exists());
    fs::remove_file(tree.path("ran")).unwrap();
}

/// It is refused, with one line that has these parts.
fn refused(tree: &Tree, spec: &str, parts: &[&str]) {
    for (front_end, output) in started(tree, spec) {
        assert_ne!(code(&output), 0, "{front_end}: {spec}");
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        for part in parts {
            assert!(said.contains(part), "{front_end}: {part}\n{said}");
        }
    }
    assert_eq!(tree.text("bundle/config.json"), spec);
    assert!(!tree.path("ran").exists(), "the runtime was started");
}

/// Where "fly" is asked for and counts, that is an unknown feature.
const FLY: &[&str] = &["OCI_X asks for the unknown feature \"fly\""];
const ANNOTATION: &str = "oci-decorator.d/OCI_X";

#[test]
fn environment_and_annotations_count_by_default() {
    let tree = setup();
    refused(&tree, &spec(&["OCI_X=fly"], &[], &[]), FLY);
    refused(&tree, &spec(&[], &[(ANNOTATION, "fly")], &[]), FLY);
    starts(&tree, &spec(&["OCI_Y=fly"], &[("OCI_X", "fly")], &[]));
    let log = tree.text("log");
    assert!(!log.contains(" notice ") && !log.contains(" warning "), "{log}");
}

/// What an engine copies from the labels of an image is no more than a variable of the image, and a
/// user's variable overrides it, unless the policy says that only users write annotations.
#[test]
fn an_image_gets_no_further_by_a_label_than_by_a_variable() {
    for (policy, environment, annotation, asks) in [
        ("", "OCI_X=none", "fly", false),
        ("", "OCI_X=void", "fly", false),
        ("", "OCI_X=fly", "none", true),
        ("", "OCI_Y=1", "fly", true),
        ("environment = \"none\"", "OCI_Y=1", "fly", false),
        ("environment = \"privileged\"", "OCI_Y=1", "fly", false),
        ("annotations-from = \"user\"", "OCI_X=none", "fly", true),
        ("annotations-from = \"user\"", "OCI_X=fly", "none", false),
        ("annotations-from = \"user\"\nenvironment = \"none\"", "OCI_X=run", "fly", true),
    ] {
        let tree = setup();
        set(&tree, &format!("[policy]\n{policy}"));
        let spec = spec(&[environment], &[(ANNOTATION, annotation)], &[]);
        if asks {
            refused(&tree, &spec, FLY);
        } else {
            starts(&tree, &spec);
        }
    }
}

#[test]
fn an_annotation_gives_what_the_variable_gives() {
    let tree = setup();
    tree.file("bundle/config.json", spec(&[], &[(ANNOTATION, "run")], &[]));
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let edited = tree.text("bundle/config.json");
    assert!(edited.contains("/opt/x/lib/libx.so.1.2"), "{edited}");
}

#[test]
fn the_policy_says_whose_environment_counts() {
    let privileged = ["CAP_KILL", "CAP_SYS_ADMIN"];
    let asks = |capabilities: &[&str]| spec(&["OCI_X=fly"], &[], capabilities);
    let tree = setup();
    set(&tree, "[policy]\nenvironment = \"privileged\"");
    starts(&tree, &asks(&["CAP_KILL"]));
    refused(&tree, &asks(&privileged), FLY);
    let log = tree.text("log");
    let notice = "OCI_X of the container's environment does not count: \"policy.environment\" is \"privileged\"; the container starts without";
    assert_eq!(log.matches(notice).count(), 3, "{log}");

    let tree = setup();
    set(&tree, "[policy]\nenvironment = \"none\"");
    starts(&tree, &asks(&privileged));

    let tree = setup();
    set(&tree, "[policy]\nenvironment = \"none\"\non-refusal = \"fail\"");
    let reason = [
        "OCI_X of the container's environment",
        "\"policy.environment\" is \"none\"",
        "[policy] in config.toml",
    ];
    refused(&tree, &asks(&privileged), &reason);
    starts(&tree, &spec(&["OCI_X=none"], &[], &[]));
}

#[test]
fn the_policy_says_whose_annotations_and_which_vendors_count() {
    let tree = setup();
    set(&tree, "[policy]\nannotations = \"none\"");
    starts(&tree, &spec(&[], &[(ANNOTATION, "fly")], &["CAP_SYS_ADMIN"]));
    refused(&tree, &spec(&["OCI_X=fly"], &[(ANNOTATION, "none")], &[]), FLY);

    let tree = setup();
    set(&tree, "[policy.allow]\ny = \"all\"");
    starts(&tree, &spec(&["OCI_X=fly"], &[(ANNOTATION, "fly")], &["CAP_SYS_ADMIN"]));
    assert!(tree
        .text("log")
        .contains("OCI_X asks for the vendor \"x\", and \"policy.allow\" has no such vendor"));

    let tree = setup();
    set(&tree, "[policy]\nallow = {x = [\"run\"]}\non-refusal = \"fail\"");
    let reason = ["OCI_X asks for the feature \"more\"", "\"policy.allow\""];
    refused(&tree, &spec(&["OCI_X=run,more"], &[], &[]), &reason);
    tree.file("bundle/config.json", spec(&["OCI_X=all"], &[], &[]));
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let edited = tree.text("bundle/config.json");
    assert!(edited.contains("libx.so.1") && !edited.contains("x-smi"), "{edited}");
}

#[test]
fn broken_settings_refuse_only_containers_that_ask() {
    for (settings, part) in [
        ("colour = 1", "colour: unknown key"),
        ("[policy]\ncolour = 1", "policy.colour: unknown key"),
        ("log-level = [", "not valid TOML"),
        ("config-dir = \"relative\"", "config-dir: \"relative\" is not an absolute path"),
    ] {
        let tree = setup();
        set(&tree, settings);
        for value in ["run", "fly", "all"] {
            let asks = spec(&[&format!("OCI_X={value}")], &[], &[]);
            refused(&tree, &asks, &["OCI_X is set, but ", "config.toml: ", part]);
        }
        starts(&tree, &spec(&["OCI_X=none", "OTHER=1"], &[("a", "b")], &[]));
        let log = tree.text("log");
        assert!(log.contains(part), "{log}");
    }
    // A file that others may change is only used to decide which containers to refuse.
    let tree = setup();
    tree.script("bin/runc", "touch ../ran");
    let settings = tree.path("config.toml");
    fs::set_permissions(&settings, fs::Permissions::from_mode(0o666)).unwrap();
    let reason = ["OCI_X is set, but ", "config.toml is writable by everyone"];
    refused(&tree, &spec(&["OCI_X=fly"], &[], &[]), &reason);
    starts(&tree, &spec(&["OCI_X=none"], &[], &[]));
    // A source that does not count asks for nothing here either.
    let tree = setup();
    set(&tree, "colour = 1\n[policy]\nenvironment = \"none\"");
    starts(&tree, &spec(&["OCI_X=run"], &[], &["CAP_SYS_ADMIN"]));
}

#[test]
fn folders_that_others_may_change_refuse_only_containers_that_ask() {
    let tree = setup();
    let above = tree.path("host/etc");
    fs::set_permissions(&above, fs::Permissions::from_mode(0o777)).unwrap();
    let reason = format!("{} is writable by everyone", above.display());
    refused(&tree, &spec(&["OCI_X=run"], &[], &[]), &["x.json can't be used", &reason]);
    starts(&tree, &spec(&["OCI_X=none"], &[], &[]));
}

#[test]
fn an_unreadable_folder_of_vendor_files_refuses_only_containers_that_ask() {
    let tree = setup();
    let folder = tree.path(CONFIG_DIR);
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    starts(&tree, &spec(&["OCI_X=run"], &[(ANNOTATION, "none")], &[]));
    assert!(tree.text("log").contains("can't open "));
    let asks = spec(&[], &[(ANNOTATION, "run")], &[]);
    refused(&tree, &asks, &["OCI_X is set, but can't open "]);
}

#[test]
fn half_a_character_elsewhere_changes_nothing() {
    let tree = setup();
    let odd = r#"{"annotations":{"\ud800":"\udfff"},"process":{"env":["X=\ud800","OCI_X=VALUE"]}}"#;
    starts(&tree, &odd.replace("VALUE", "none"));
    refused(&tree, &odd.replace("VALUE", "fly"), FLY);
    tree.file("bundle/config.json", odd.replace("VALUE", "run"));
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let edited = tree.text("bundle/config.json");
    assert!(edited.contains(r#""X=\ud800""#) && edited.contains("libx.so"), "{edited}");
}

#[test]
fn bytes_that_are_no_text_pass_a_filter_unchanged() {
    let tree = setup();
    let bytes = b"{\"process\":{\"env\":[\"X=\xfc\",\"OCI_X=VALUE\"]}}";
    let start = |value: &str| {
        let at = bytes.windows(5).position(|w| w == b"VALUE").unwrap();
        let spec = [&bytes[..at], value.as_bytes(), &bytes[at + 5..]].concat();
        tree.file("bundle/config.json", &spec);
        (shim(&tree, &["create", "c1"]), spec)
    };
    for value in ["none", "run"] {
        let (output, spec) = start(value);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(fs::read(tree.path("bundle/config.json")).unwrap(), spec);
    }
}

/// The environment of a hook may be the container's own.
#[test]
fn hooks_and_filters_never_read_the_runtimes_variable() {
    let tree = setup();
    let asks = spec(&["OCI_X=fly"], &[], &[]);
    tree.file("bundle/config.json", &asks);
    let state = json!({"id": "c1", "pid": std::process::id(), "bundle": tree.path("bundle")});
    for (verb, input) in [
        ("precreate", asks.clone()),
        ("prestart", state.to_string()),
        ("createRuntime", state.to_string()),
    ] {
        use std::io::Write;
        use std::process::Stdio;
        let mut child = crate::support::program("oci-decorator")
            .arg(verb)
            .env("OCI_DECORATOR_CONFIG", tree.path("config.toml"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{verb}");
    }
    // The same words read the same settings when they are named.
    refused(&tree, &asks, FLY);
}
