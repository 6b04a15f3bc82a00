//! Real low-level runtimes, on bundles whose image holds nothing but our own program.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::{install_copy, need, Tree};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The lines with which a start was refused: a runtime may warn of something else before.
pub fn errors_in(stderr: &str) -> Vec<&str> {
    stderr.trim().lines().filter(|line| !line.contains("level=warning")).collect()
}

/// The runtime, where it can be used.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let program = places.map(|folder| folder.join(name)).find(|p| p.exists());
    let there = need::need(program.is_some(), name) && need::root("containers");
    program.filter(|_| there)
}

/// Puts our program into the image and writes a spec that starts it.
pub fn bundle(tree: &Tree, environment: &[&str]) -> Value {
    let program = tree.folder("bundle/rootfs/bin").join("probe");
    install_copy(env!("CARGO_BIN_EXE_oci-decorator"), &program);
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
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
    let command = program.arg("--root").arg(tree.folder("state")).args(["run", &name(tree)]);
    finish(command.current_dir(tree.path("bundle")))
}

/// A container that was created and not started: its first process waits, and its mounts,
/// nodes and cgroups are as the program will find them.
pub struct Created<'a> {
    pub pid: i32,
    tree: &'a Tree,
}

/// Creates the container. Errors: the runtime's message.
pub fn create<'a>(program: &mut Command, tree: &'a Tree) -> Result<Created<'a>, String> {
    let state = tree.folder("state");
    let pid_file = tree.path("pid");
    let words = ["create", "--pid-file"];
    // Its standard streams are the container's: a pipe would stay open as long as that lives.
    let log = fs::File::create(tree.path("output")).expect("a file");
    let status = program
        .arg("--root")
        .arg(state)
        .args(words)
        .arg(&pid_file)
        .arg(name(tree))
        .current_dir(tree.path("bundle"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a descriptor"))
        .stderr(log)
        .status()
        .expect("a program");
    if !status.success() {
        return Err(tree.text("output"));
    }
    let pid = tree.text("pid").trim().parse().expect("a number");
    Ok(Created { pid, tree })
}

impl Created<'_> {
    /// A path of the container, as this process can reach it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Options, optional fields and type of what is mounted at a path, from the
    /// container's mountinfo (proc(5)).
    pub fn mount(&self, path: &str) -> Option<(Vec<String>, Vec<String>, String)> {
        let text = fs::read_to_string(format!("/proc/{}/mountinfo", self.pid)).expect("mounts");
        let line = text.lines().rev().find(|line| line.split(' ').nth(4) == Some(path))?;
        let (front, back) = line.split_once(" - ").expect("a separator");
        let words: Vec<_> = front.split(' ').map(str::to_owned).collect();
        let options = words[5].split(',').map(str::to_owned).collect();
        let kind = back.split(' ').next().unwrap_or_default().to_owned();
        Some((options, words[6..].to_vec(), kind))
    }

    /// Those of the nodes (paths of the host) that a process in the container's cgroups may
    /// open.
    pub fn may_open(&self, nodes: &[PathBuf]) -> Vec<PathBuf> {
        let script = "while [ \"$1\" != -- ]; do echo $$ >\"$1\" || exit 1; shift; done; shift
            for node; do (: <\"$node\") 2>&1 | grep -q 'not permitted' || echo \"$node\"; done";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(self.cgroups());
        let output = command.arg("--").args(nodes).output().expect("sh");
        assert!(output.status.success(), "{output:?}");
        let text = super::stdout(&output);
        text.lines().map(PathBuf::from).collect()
    }

    /// The `cgroup.procs` of the cgroups that may decide about its devices.
    fn cgroups(&self) -> Vec<PathBuf> {
        let member = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).expect("cgroups");
        let mut found = Vec::new();
        for line in member.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next().unwrap(), fields.next().unwrap());
            let bases: &[&str] = match controllers {
                "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
                "devices" => &["/sys/fs/cgroup/devices"],
                _ => &[],
            };
            let files =
                bases.iter().map(|base| PathBuf::from(format!("{base}{path}/cgroup.procs")));
            found.extend(files.filter(|file| file.exists()));
        }
        assert!(!found.is_empty(), "{member}");
        found
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.tree.path("state"));
        let words = ["delete", "--force"];
        let _ = finish(runc.args(words).arg(name(self.tree)));
    }
}

/// A name that no other test's container has.
pub fn name(tree: &Tree) -> String {
    let folder = tree.0.path().file_name().expect("a name").to_string_lossy();
    format!("test{}", folder.replace(|c: char| !c.is_ascii_alphanumeric(), ""))
}
