//! What happens to tests on a machine that lacks what they need: runs this binary again, as a
//! user without rights.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{code, install_copy, need, stdout, Tree};

/// One of each kind of need.
const TESTS: [&str; 3] = [
    "nodes::every_way_gives_the_nodes_of_the_same_classes",
    "hook::nothing_is_given_to_those_who_do_not_ask",
    "ldconfig::a_second_start_changes_nothing",
];

#[test]
fn a_test_that_is_left_out_fails_in_ci() {
    if !need::root("to become another user") {
        return;
    }
    let tree = Tree::new();
    // Below a folder that everyone may enter.
    let binary = tree.path("it");
    install_copy("/proc/self/exe", &binary);
    std::fs::set_permissions(tree.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for test in TESTS {
        for (ci, expected, part) in [
            (None, 0, "test result: ok. 1 passed"),
            (Some("false"), 0, "test result: ok. 1 passed"),
            (Some("true"), 101, "and CI=true"),
        ] {
            let mut command = Command::new(&binary);
            command.args(["--exact", test]).current_dir("/");
            command.uid(65534).gid(65534).env_remove("CI");
            command.envs(ci.map(|value| ("CI", value)));
            let output = command.output().unwrap();
            let text = stdout(&output);
            assert_eq!(code(&output), expected, "{test} {ci:?}\n{text}");
            assert!(text.contains(part), "{test} {ci:?}\n{text}");
        }
    }
}
