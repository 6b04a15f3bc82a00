//! The runtime shim with a low-level runtime that only writes down what it is given.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;

use support::scene::{setup, shim, CONFIG_DIR, SPEC, VENDOR};
use support::{code, stderr, stdout, Tree};

#[test]
fn create_edits_the_bundle_and_becomes_the_runtime() {
    let tree = setup();
    let bundle = tree.path("bundle").display().to_string();
    let output = shim(
        &tree,
        &["--root", "/r", "create", "--bundle", &bundle, "c1"],
    );
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
fn a_device_node_and_its_rule_are_added() {
    if !support::is_root("mknod") {
        return;
    }
    let tree = setup();
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let spec = tree.text("bundle/config.json");
    let node = r#""devices":[{"path":"/dev/null","type":"c","major":1,"minor":5,"fileMode":400,"uid":0,"gid":0}]"#;
    assert!(spec.contains(node), "{spec}");
    let rules = r#"[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":5,"access":"rwm"}]"#;
    assert!(spec.contains(rules), "{spec}");
}

#[test]
fn a_second_start_changes_nothing() {
    let tree = setup();
    shim(&tree, &["create", "c1"]);
    let (spec, listing) = (tree.text("bundle/config.json"), tree.listing());
    let inode = fs::metadata(tree.path("bundle/config.json")).unwrap().ino();
    shim(&tree, &["run", "-b=.", "c1"]);
    assert_eq!(tree.text("bundle/config.json"), spec);
    assert_eq!(
        fs::metadata(tree.path("bundle/config.json")).unwrap().ino(),
        inode
    );
    assert_eq!(tree.listing(), listing);
}

#[test]
fn nothing_is_touched_when_nobody_asks() {
    for value in ["none", "void"] {
        let tree = setup();
        let spec = SPEC.replace("OCI_X=run", &format!("OCI_X={value}"));
        tree.file("bundle/config.json", &spec);
        tree.file(
            &format!("{CONFIG_DIR}/bad.json"),
            "{\"activation_flag\": \"OCI_BAD\",",
        );
        let listing = tree.listing();
        assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
        assert_eq!(tree.text("bundle/config.json"), spec);
        fs::remove_file(tree.path("ran")).unwrap();
        assert!(tree
            .text("log")
            .contains("bad.json can't be used and is ignored"));
        fs::remove_file(tree.path("log")).unwrap();
        assert_eq!(tree.listing(), listing);
    }
}

/// Starts with another environment; the refusal must name these parts.
fn refused(tree: &Tree, env: &str, parts: &[&str]) {
    tree.file("bundle/config.json", SPEC.replace("OCI_X=run", env));
    let log = tree.path("runtime-log").display().to_string();
    let output = shim(
        tree,
        &["--log", &log, "--log-format", "json", "create", "c1"],
    );
    assert_eq!(code(&output), 1);
    assert_eq!(stdout(&output), "");
    let line = tree.text("runtime-log");
    fs::remove_file(&log).unwrap();
    let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(entry["level"], "error");
    let message = entry["msg"].as_str().unwrap();
    for part in parts {
        assert!(message.contains(part), "{part}\n{message}");
    }
    assert_eq!(stderr(&output), format!("{message}\n"));
    assert!(!tree.path("ran").exists(), "the runtime was started");
    assert!(!tree.text("bundle/config.json").contains("libx.so"));
}

#[test]
fn refusals_say_what_and_where() {
    let tree = setup();
    refused(
        &tree,
        "OCI_X=run,fly",
        &["\"fly\"", "OCI_X", "x.json", "run, more"],
    );
    tree.file(
        &format!("{CONFIG_DIR}/bad.json"),
        "{\"activation_flag\": \"OCI_BAD\",",
    );
    refused(
        &tree,
        "OCI_BAD=all",
        &["OCI_BAD", "bad.json", "oci-decorator check"],
    );
    fs::remove_file(tree.path("host/store/current")).unwrap();
    refused(
        &tree,
        "OCI_X=all",
        &["OCI_X", "not installed", "/store/current", "install it"],
    );
}

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
    let output = shim(&tree, &["create", "c1"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("config.toml: colour: unknown key"));
}

#[test]
fn odd_bundles() {
    let tree = setup();
    fs::remove_file(tree.path("bundle/config.json")).unwrap();
    let output = shim(&tree, &["create", "c1"]);
    assert_eq!(
        stdout(&output),
        "low: create c1\n",
        "the runtime says what is missing"
    );
    for (content, part) in [
        ("{\"process\":", "not a valid spec"),
        ("[]", "not a valid spec"),
    ] {
        tree.file("bundle/config.json", content);
        let output = shim(&tree, &["create", "c1"]);
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
    tree.file("bundle/config.json", SPEC);
    tree.file("config.toml", "runtimes = [\"absent\"]\n");
    let output = shim(&tree, &["state", "c1"]);
    assert!(stderr(&output).contains("no low-level runtime found: absent"));
}
