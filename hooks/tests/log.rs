//! The log file: an admin's choice, and never a way to another file.

use std::fs;

use rustix::fs::{mknodat, FileType, Mode, CWD};

use crate::support::code;
use crate::support::scene::{setup, shim};

#[test]
fn lines_are_appended_to_a_regular_file() {
    let tree = setup();
    tree.file("log", "before\n");
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let log = tree.text("log");
    assert!(log.starts_with("before\n") && log.contains("OCI_X gives run"), "{log}");
}

#[test]
fn a_log_file_that_is_a_link_is_not_followed() {
    let tree = setup();
    tree.file("another", "kept");
    tree.link("log", "another");
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    assert_eq!(tree.text("another"), "kept");
    // A link that leads nowhere makes no file there either.
    fs::remove_file(tree.path("another")).unwrap();
    assert_eq!(code(&shim(&tree, &["create", "c2"])), 0);
    assert!(!tree.path("another").exists());
}

/// A FIFO without a reader, or with one that doesn't read, would hold the start up.
#[test]
fn a_log_file_that_is_a_fifo_holds_nothing_up() {
    let tree = setup();
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, tree.path("log"), FileType::Fifo, mode, 0).unwrap();
    assert_eq!(code(&shim(&tree, &["create", "c1"])), 0);
    let reader = fs::File::options().read(true).write(true).open(tree.path("log")).unwrap();
    assert_eq!(code(&shim(&tree, &["create", "c2"])), 0);
    drop(reader);
}
