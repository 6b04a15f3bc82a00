//! What a test needs of the machine. Without it the test is left out and says so; where
//! `CI=true`, it fails. Tests in `src` use this file too (`src/lib.rs`).

/// True where it is there. Panics: it isn't, and `CI=true`.
pub fn need(there: bool, what: &str) -> bool {
    if !there {
        let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!in_ci, "this test needs {what}, and CI=true");
        eprintln!("left out: this test needs {what}");
    }
    there
}

/// True for root.
pub fn root(why: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    need(is_root, &format!("root: {why}"))
}
