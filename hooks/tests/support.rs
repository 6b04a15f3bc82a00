//! What the tests share: trees, stand-in libraries, and the program itself.

pub mod fuzz;
pub mod need;
pub mod runtime;
pub mod scene;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// A folder that is removed with the test, with helpers to fill it.
pub struct Tree(pub tempfile::TempDir);

impl Tree {
    pub fn new() -> Self {
        // Scripts name it without quotes, and a container has a /dev and a /run of its own: it is
        // not wherever TMPDIR says.
        let private = PermissionsExt::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(private).tempdir_in("/tmp");
        Self(folder.expect("a temporary folder"))
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    pub fn shown(&self) -> String {
        self.0.path().display().to_string()
    }

    pub fn folder(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        make_folders(&path);
        path
    }

    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        make_folders_above(&path);
        fs::write(&path, content).expect("a file");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("a mode");
        path
    }

    pub fn script(&self, path: &str, content: &str) -> PathBuf {
        let path = self.path(path);
        install(format!("#!/bin/sh\n{content}\n").as_bytes(), &path);
        path
    }

    pub fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        make_folders_above(&path);
        symlink(target, path).expect("a link");
    }

    pub fn text(&self, path: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(path)).expect("a file")).into_owned()
    }

    /// A shared library. Cargo's own linker driver makes it, so it is always there; once of
    /// each kind, as many tests want the same.
    pub fn library(&self, path: &str, soname: &str, arguments: &[&str]) {
        static MADE: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
        let kind = format!("{soname} {arguments:?}");
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = made.entry(kind).or_insert_with(|| compile(soname, arguments));
        let path = self.file(path, bytes);
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }

    /// Every path below, links not followed.
    pub fn listing(&self) -> Vec<String> {
        let mut found = Vec::new();
        list(self.0.path(), self.0.path(), &mut found);
        found.sort();
        found
    }
}

/// Makes a folder and what is missing above it. Everyone may read them, whatever the umask: the
/// program that is tried is the one to notice that.
pub fn make_folders(folder: &Path) {
    let missing: Vec<_> = folder.ancestors().take_while(|one| !one.exists()).collect();
    fs::create_dir_all(folder).expect("a folder");
    for one in missing {
        fs::set_permissions(one, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
}

/// Makes what is missing above a file (see [`make_folders`]).
pub fn make_folders_above(file: &Path) {
    make_folders(file.parent().expect("a parent"));
}

/// Writes a program that a test is about to start.
///
/// Another process does the writing. Tests run side by side: a child that one of them forks
/// inherits what this process has open, and the kernel refuses to start a program that is open
/// for writing anywhere (ETXTBSY).
pub fn install(content: &[u8], path: &Path) {
    make_folders_above(path);
    let mut command = Command::new("install");
    command.args(["--mode=755", "/dev/stdin"]).arg(path);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("install");
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(content).expect("install reads");
    drop(pipe);
    assert!(child.wait().expect("install").success(), "{}", path.display());
}

/// Copies a program that a test is about to start (see [`install`]).
pub fn install_copy(program: impl AsRef<Path>, path: &Path) {
    install(&fs::read(program).expect("a program"), path);
}

fn compile(soname: &str, arguments: &[&str]) -> Vec<u8> {
    let tree = Tree::new();
    let source = tree.file("library.c", "int driver(void) { return 535; }\n");
    let path = tree.path("library.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(&path);
    if !soname.is_empty() {
        command.arg(format!("-Wl,-soname,{soname}"));
    }
    let output = command.arg(&source).args(arguments).output().expect("cc");
    assert!(output.status.success(), "{output:?}");
    fs::read(path).expect("a library")
}

/// True where a mutant is tried (`mutants.sh`): long series of similar cases are cut short.
pub fn is_quick() -> bool {
    std::env::var_os("TESTS_QUICK").is_some()
}

fn list(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let relative = path.strip_prefix(root).expect("below the root");
        found.push(relative.display().to_string());
        if path.is_dir() && !path.is_symlink() {
            list(root, &path, found);
        }
    }
}

/// The program under one of its names.
pub fn program(name: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(env!("CARGO_BIN_EXE_oci-decorator"));
    command.arg0(name).env_remove("OCI_DECORATOR_CONFIG");
    command
}

/// Runs `oci-decorator` with these words and this input.
pub fn run(words: &[&str], input: &str) -> Output {
    use std::io::Write;
    let mut child = program("oci-decorator")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    // A program that refuses its words ends before it reads.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("its end")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

/// Runs a program as root of a new user namespace with this map of users and groups.
pub fn in_users(map: &str, program: &Path) -> Output {
    let waits = ["--user", "--mount", "sh", "-c", "read mapped; exec \"$0\""];
    let mut child = Command::new("unshare")
        .args(waits)
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let users = format!("/proc/{}/ns/user", child.id());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    while fs::read_link(&users).unwrap() == own {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    for kind in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{kind}", child.id()), map).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait_with_output().unwrap()
}
