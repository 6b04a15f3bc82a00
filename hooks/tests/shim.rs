//! The runtime shim with a low-level runtime that only writes down what it is given.

use std::fs;
use std::process::Command;

use crate::support::scene::{setup, shim, shim_in, CONFIG_DIR, SPEC, VENDOR};
use crate::support::{code, stderr, stdout};

#[test]
fn create_edits_the_bundle_and_becomes_the_runtime() {
    let tree = setup();
    let bundle = tree.path("bundle").display().to_string();
    let output = shim(&tree, &["--root", "/r", "create", "--bundle", &bundle, "c1"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let expected = format!("low: --root /r create --bundle {bundle} c1\n");
    assert_eq!(stdout(&output), expected);
    let spec = tree.text("bundle/config.json");
    let source = format!("{}/host/store/v1/opt/x/lib/libx.so.1.2", tree.shown());
    for target in ["libx.so.1", "libx.so.1.2"] {
        let mount = format!(
            r#"{{"destination":"/opt/x/lib/{target}","type":"bind","source":"{source}","options":["bind","ro","nosuid","nodev","rprivate"]}}"#
        );
        assert!(spec.contains(&mount), "{spec}");
    }
    assert!(spec.ends_with(r#","x-unknown":1.50}"#), "{spec}");
    assert!(tree.path("bundle/rootfs/opt/x/empty").is_dir());
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/opt/x/lib/libx.so.1\0"));
    let drop_in = tree.text("bundle/rootfs/etc/ld.so.conf.d/00-oci-decorator.conf");
    assert_eq!(drop_in.lines().nth(1), Some("/opt/x/lib"));
    let log = tree.text("log");
    assert!(log.contains("absent[0-9] is left out: no device of this host matches"));
    assert!(log.contains("/opt/x/lib/libgone.so is left out: the host has no such file"));
    assert!(log.contains("[vendor=x feature=run container=c1]"), "{log}");
}

#[test]
fn a_library_whose_soname_is_stated_is_not_read() {
    let tree = setup();
    tree.file("host/store/v1/opt/x/lib/libx.so.1.2", "unreadable");
    let stated = r#""sonames":{"/opt/x/lib/libx.so.1.2":"libx.so.1"},"root""#;
    let vendor = VENDOR.replace("\"root\"", stated);
    tree.file(&format!("{CONFIG_DIR}/x.json"), vendor);
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
    assert!(cache.contains("/opt/x/lib/libx.so.1\0"), "{cache}");
}

#[test]
fn nothing_is_touched_without_a_request() {
    for value in ["none", "void"] {
        let tree = setup();
        let spec = SPEC.replace("OCI_X=run", &format!("OCI_X={value}"));
        tree.file("bundle/config.json", &spec);
        tree.file(&format!("{CONFIG_DIR}/bad.json"), "{\"activation_flag\": \"OCI_BAD\",");
        let listing = tree.listing();
        assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
        assert_eq!(tree.text("bundle/config.json"), spec);
        fs::remove_file(tree.path("ran")).unwrap();
        assert!(tree.text("log").contains("bad.json can't be used and is ignored"));
        fs::remove_file(tree.path("log")).unwrap();
        assert_eq!(tree.listing(), listing);
    }
}

/// Starts with another environment; the refusal must name these parts.
#[test]
fn a_runtime_log_in_text_is_one_line() {
    let tree = setup();
    tree.file("bundle/config.json", SPEC.replace("=run", "=a\\nb"));
    let log = tree.path("runtime-log").display().to_string();
    assert_eq!(code(&shim(&tree, &["--log", &log, "create", "c1"])), 1);
    let line = tree.text("runtime-log");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("time=\""));
    assert!(line.contains("level=error msg=\"oci-decorator: OCI_X asks"));
}

#[test]
fn other_verbs_pass_through_even_with_broken_settings() {
    let tree = setup();
    let output = shim(&tree, &["--systemd-cgroup", "state", "create"]);
    assert_eq!(stdout(&output), "low: --systemd-cgroup state create\n");
    assert!(tree.text("bundle/config.json") == SPEC);
    tree.file("config.toml", "colour = 1\n");
    tree.script("bin/runc", "echo default");
    assert_eq!(stdout(&shim(&tree, &["delete", "c1"])), "default\n");
}

/// Engines start runtimes in the bundle's folder, and an image may bring a file of any name.
#[test]
fn no_runtime_is_taken_from_the_bundle() {
    let tree = setup();
    tree.file("config.toml", "runtimes = [\"runc\"]\n");
    let hostile = format!("touch {}/owned", tree.shown());
    tree.script("bundle/runc", &hostile);
    tree.script("bundle/bin/runc", &hostile);
    for path in [
        "",
        ":",
        ":/nowhere",
        "/nowhere:",
        "/nowhere::/nowhere",
        ".",
        "bin",
        "./bin:..",
        "../bundle",
    ] {
        let output = crate::support::program("/usr/bin/oci-decorator-runtime")
            .args(["state", "c1"])
            .env("PATH", path)
            .env("OCI_DECORATOR_CONFIG", tree.path("config.toml"))
            .current_dir(tree.path("bundle"))
            .output()
            .unwrap();
        assert!(stderr(&output).contains("no low-level runtime found: runc"), "{path}");
        assert!(!tree.path("owned").exists(), "{path}");
    }
}

/// Either the bundle's config is edited, or the start is refused.
#[test]
fn no_command_line_starts_a_container_without_its_driver() {
    for (line, status) in [
        ("create --bundle BUNDLE c1", 0),
        ("restore --bundle BUNDLE --image-path /i c1", 0),
        ("restore --bundle=BUNDLE --work-path /w -d c1", 0),
        ("create -bBUNDLE c1", 1),
        ("run -dbBUNDLE c1", 1),
        ("create -b=BUNDLE c1", 1),
        ("create --bund=BUNDLE c1", 1),
        ("create --bu BUNDLE c1", 1),
        ("create -bundle=BUNDLE c1", 1),
        ("--unheard-of create --bundle BUNDLE c1", 1),
        ("--unheard-of value create --bundle BUNDLE c1", 1),
        ("--unheard-of=value -x create --unheard-of --bundle BUNDLE c1", 1),
        ("create c1 --unheard-of value --bundle BUNDLE", 1),
    ] {
        let tree = setup();
        let line = line.replace("BUNDLE", &tree.path("bundle").display().to_string());
        let words: Vec<&str> = line.split(' ').collect();
        tree.folder("elsewhere");
        let output = shim_in(&tree, "elsewhere", &words);
        assert_eq!(code(&output), status, "{line}: {}", stderr(&output));
        let ran = if status == 0 { format!("low: {line}\n") } else { String::new() };
        assert_eq!(stdout(&output), ran);
        let is_edited = tree.text("bundle/config.json").contains("libx.so");
        assert_eq!(is_edited, status == 0, "{line}");
    }
}

#[test]
fn a_command_line_that_can_be_misread_refuses_containers_that_ask() {
    let quiet = SPEC.replace("OCI_X=run", "OCI_X=none");
    for (line, is_seen) in [
        ("create --unheard-of --bundle=bundle c1", true),
        ("create -b bundle one two", true),
        ("create -b bundle", true),
        ("--unheard-of create state", true),
        // runc opens ./bundle, crun ./=bundle: nobody can say which container it is.
        ("create -b=bundle c1", false),
        ("run -dbbundle c1", false),
    ] {
        let tree = setup();
        let words: Vec<&str> = line.split(' ').collect();
        let is_here = line.ends_with("state");
        tree.file("config.json", if is_here { SPEC } else { &quiet });
        let output = shim_in(&tree, "", &words);
        assert_eq!(code(&output), 1, "{line}");
        let said = stderr(&output);
        assert_eq!(said.contains("OCI_X is set"), is_seen, "{line}: {said}");
        assert!(said.contains("`create --bundle DIR NAME`"), "{line}: {said}");
        assert!(!tree.path("ran").exists());
        assert_eq!(tree.text("bundle/config.json"), SPEC);
        // The runtime judges a container that asks for nothing.
        tree.file("bundle/config.json", &quiet);
        tree.file("config.json", &quiet);
        let output = shim_in(&tree, "", &words);
        assert_eq!(code(&output), i32::from(!is_seen), "{line}");
        let ran = if is_seen { format!("low: {line}\n") } else { String::new() };
        assert_eq!(stdout(&output), ran);
        assert_eq!(tree.text("bundle/config.json"), quiet);
    }
}

#[test]
fn odd_bundles() {
    let tree = setup();
    fs::remove_file(tree.path("bundle/config.json")).unwrap();
    let output = shim(&tree, &["create", "c1"]);
    assert_eq!(stdout(&output), "low: create c1\n", "the runtime says what is missing");
    for content in [
        &b"{\"process\":"[..],
        b"[]",
        b"{\"process\": \"OCI_X=run\"",
        b"[\"OCI_X=run\"]",
        b"{\"x\": \"\xfc\"}",
        b"{\"process\": {\"env\": 3}}",
    ] {
        tree.file("bundle/config.json", content);
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(stdout(&output), "low: create c1\n", "and what is wrong");
        assert_eq!(fs::read(tree.path("bundle/config.json")).unwrap(), content);
    }
    for made_by in ["mkfifo", "mkdir"] {
        fs::remove_file(tree.path("bundle/config.json")).unwrap();
        let made = Command::new(made_by).arg(tree.path("bundle/config.json")).status();
        assert!(made.unwrap().success());
        let output = shim(&tree, &["create", "c1"]);
        assert_ne!(code(&output), 0, "{made_by}");
        assert!(stderr(&output).contains("not a regular file"), "{output:?}");
        assert_eq!(stderr(&output).lines().count(), 1, "{output:?}");
        if made_by == "mkdir" {
            fs::remove_dir(tree.path("bundle/config.json")).unwrap();
        }
    }
    tree.file("bundle/config.json", SPEC);
    tree.file("config.toml", "runtimes = [\"absent\"]\n");
    let output = shim(&tree, &["state", "c1"]);
    assert!(stderr(&output).contains("no low-level runtime found: absent"));
}
