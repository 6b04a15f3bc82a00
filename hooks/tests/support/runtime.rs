//! Real low-level runtimes, on bundles whose image holds nothing but our own program.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::{is_root, Tree};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The runtime, where it can be used. Where it can't, the reason goes to stderr; with
/// `CI=true` it is a failure.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let program = places.map(|folder| folder.join(name)).find(|p| p.exists());
    let missing = match &program {
        None => Some(format!("{name} is missing")),
        Some(_) => (!is_root("containers")).then(|| "root is needed".to_owned()),
    };
    let Some(missing) = missing else {
        return program;
    };
    let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!ci, "{missing}, and CI=true");
    eprintln!("left out: {missing}");
    None
}

/// Puts our program into the image and writes a spec that starts it.
pub fn bundle(tree: &Tree, environment: &[&str]) -> Value {
    let program = tree.folder("bundle/rootfs/bin").join("probe");
    fs::copy(env!("CARGO_BIN_EXE_oci-decorator"), program).expect("a copy");
    let mut variables = vec!["PATH=/bin"];
    variables.extend(environment);
    let mount = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "args": ["/bin/probe", "--version"],
            "cwd": "/", "env": variables, "user": {"uid": 0, "gid": 0},
            "capabilities": {"bounding": [], "effective": [], "permitted": []},
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs"},
        "mounts": [
            mount("/proc", "proc", &[]),
            mount("/dev", "tmpfs", &["nosuid", "mode=755", "size=1m"]),
        ],
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
        },
    })
}

/// Runs a program to its end. One that takes a minute hangs, and is a failure.
pub fn finish(command: &mut Command) -> Output {
    let piped = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("a program");
    let started = Instant::now();
    while child.try_wait().expect("its state").is_none() {
        if started.elapsed() > TIMEOUT {
            child.kill().expect("its end");
            panic!("it hangs: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().expect("its output")
}

/// How a container is started: `RUNTIME --root STATE run NAME`, in the bundle.
pub fn run(program: &mut Command, tree: &Tree) -> Output {
    let name = tree.0.path().file_name().expect("a name").to_string_lossy();
    let name = format!(
        "test{}",
        name.replace(|c: char| !c.is_ascii_alphanumeric(), "")
    );
    let command = program
        .arg("--root")
        .arg(tree.folder("state"))
        .args(["run", &name]);
    finish(command.current_dir(tree.path("bundle")))
}
