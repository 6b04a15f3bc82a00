//! Every way into a container gives every name that the driver's libraries have: by a real loader,
//! in an image with and without a library cache, and in one of musl.

use std::fs;
use std::process::Command;

use serde_json::{json, Value};

use crate::support::runtime::{self, find, finish};
use crate::support::{code, install_copy, need, stderr, stdout, Tree};

const VERSION: &str = "535.261.03";
/// No loader searches it, and no image's cache knows it.
const FOLDER: &str = "/opt/driver/lib";
const LIBRARIES: [(&str, &str); 2] = [("libcuda", "1"), ("libnvidia-ml", "1")];

/// Prints each name that does not open.
const OPENER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int at = 1; at < count; at++)
        if (!dlopen(names[at], RTLD_NOW))
            printf("%s\n", names[at]);
    return 0;
}
"#;

/// How a container gets the driver.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// The flag, by our runtime, and by a hook of the engine's.
    Runtime,
    Hook(&'static str),
    /// The variable of NVIDIA's, under the runtime's and the hook's names.
    NvidiaRuntime,
    NvidiaHook,
    /// A specification of this kind, which an engine applies, or a runtime.
    Engine(Kind),
    CdiRuntime(Kind),
}

/// Whose specification it is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Own,
    Gpu,
    /// As NVIDIA's tool writes it: one mount a library, and links that lead to one another.
    Nvidia,
}

const WAYS: [Way; 11] = [
    Way::Runtime,
    Way::Hook("createRuntime"),
    Way::Hook("prestart"),
    Way::NvidiaRuntime,
    Way::NvidiaHook,
    Way::Engine(Kind::Own),
    Way::Engine(Kind::Gpu),
    Way::Engine(Kind::Nvidia),
    Way::CdiRuntime(Kind::Own),
    Way::CdiRuntime(Kind::Gpu),
    Way::CdiRuntime(Kind::Nvidia),
];

fn own() -> &'static str {
    env!("CARGO_BIN_EXE_oci-decorator")
}

/// A host with a driver, and an image with a loader, the C library and the opener.
fn setup(has_cache: bool) -> Tree {
    let tree = Tree::new();
    let mut listed = Vec::new();
    for (name, major) in LIBRARIES {
        let file = format!("{name}.so.{VERSION}");
        let soname = format!("{name}.so.{major}");
        tree.library(&format!("host{FOLDER}/{file}"), &soname, &[]);
        tree.link(&format!("host{FOLDER}/{soname}"), &file);
        tree.link(&format!("host{FOLDER}/{name}.so"), &soname);
        listed.extend([file, soname, format!("{name}.so")]);
    }
    let listed: Vec<String> = listed.iter().map(|name| format!("{FOLDER}/{name}")).collect();
    let vendor = json!({
        "version": VERSION, "activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"],
        "units": "nvidia[0-9]*", "interfaces": ["nvidia"],
        "inventory": {"compute": {"devices": ["nvidiactl", "nvidia[0-9]*"], "libraries": listed}},
    });
    let folder = "host/etc/oci-decorator/oci-decorator.d";
    tree.file(&format!("{folder}/nvidia.json"), vendor.to_string());
    tree.folder("host/dev");
    for (minor, name) in [(0, "nvidia0"), (255, "nvidiactl")] {
        use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
        let mode = Mode::from_raw_mode(0o666);
        let node = tree.path("host/dev").join(name);
        mknodat(CWD, &node, FileType::CharacterDevice, mode, makedev(126, minor)).unwrap();
    }
    let root = tree.path("host").display().to_string();
    tree.file("etc/oci-decorator/config.toml", format!("root = {root:?}\n"));
    tree.folder("host/etc/cdi");
    for name in
        ["oci-decorator-runtime", "nvidia-container-runtime", "nvidia-container-runtime.cdi"]
    {
        tree.link(&format!("bin/{name}"), own());
    }
    image(&tree, has_cache);
    tree
}

fn image(tree: &Tree, has_cache: bool) {
    let source = tree.file("opener.c", OPENER);
    let program = tree.folder("bundle/rootfs/bin").join("opener");
    let output =
        finish(Command::new("cc").arg("-o").arg(tree.path("opener")).arg(&source).arg("-ldl"));
    assert!(output.status.success(), "{output:?}");
    install_copy(tree.path("opener"), &program);
    // What it is linked with, as the loader itself lists it: `NAME => PATH (ADDRESS)`.
    let output = finish(Command::new("ldd").arg(&program));
    for word in stdout(&output).split_whitespace().filter(|word| word.starts_with('/')) {
        install_copy(word, &tree.path(&format!("bundle/rootfs{word}")));
    }
    tree.file("bundle/rootfs/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    tree.file("bundle/rootfs/etc/ld-musl-x86_64.path", "/lib\n");
    tree.file("bundle/rootfs/lib/ld-musl-x86_64.so.1", "");
    if has_cache {
        let root = tree.path("bundle/rootfs");
        let output = finish(Command::new("/sbin/ldconfig").arg("-r").arg(root));
        assert!(output.status.success(), "{output:?}");
    }
}

/// A program that runs where the tree's `etc` is the host's.
fn there(tree: &Tree, program: &str) -> Command {
    let script = "mount --bind \"$0\" /etc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]);
    command.arg(tree.path("etc")).arg(program);
    command.env_remove("OCI_DECORATOR_CONFIG");
    command
}

fn specification(tree: &Tree, kind: Kind) -> (String, Value) {
    let folder = tree.path("bin").display().to_string();
    let name = match kind {
        Kind::Own => "oci-decorator",
        Kind::Gpu | Kind::Nvidia => "nvidia-ctk",
    };
    tree.folder("bin");
    if !tree.path(&format!("bin/{name}")).exists() {
        tree.link(&format!("bin/{name}"), own());
    }
    let output = finish(there(tree, &format!("{folder}/{name}")).args(["cdi", "generate"]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let mut document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| yaml(&stdout(&output), tree));
    if matches!(kind, Kind::Nvidia) {
        document["containerEdits"] = nvidia_edits(tree);
    }
    (format!("{}=all", document["kind"].as_str().unwrap()), document)
}

/// NVIDIA's tool writes YAML by default, and so does ours under its name.
fn yaml(_: &str, tree: &Tree) -> Value {
    let folder = tree.path("bin").display().to_string();
    let mut command = there(tree, &format!("{folder}/nvidia-ctk"));
    let output = finish(command.args(["cdi", "generate", "--format=json"]));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The common edits of a specification by nvidia-ctk 1.20: a mount for each library by its versioned
/// name, links from the unversioned name to the soname, and one call for the cache.
fn nvidia_edits(tree: &Tree) -> Value {
    let mount = |(name, _): &(&str, &str)| {
        let path = format!("{FOLDER}/{name}.so.{VERSION}");
        json!({"hostPath": tree.path(&format!("host{path}")), "containerPath": path,
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]})
    };
    let hook = |words: Vec<String>| {
        let args = [vec!["nvidia-cdi-hook".to_owned()], words].concat();
        json!({"hookName": "createContainer", "path": own(), "env": [], "args": args})
    };
    let links = LIBRARIES.iter().flat_map(|(name, major)| {
        ["--link".to_owned(), format!("{name}.so.{major}::{FOLDER}/{name}.so")]
    });
    json!({
        "mounts": LIBRARIES.iter().map(mount).collect::<Vec<_>>(),
        "hooks": [
            hook(["create-symlinks".to_owned()].into_iter().chain(links).collect()),
            hook(["update-ldcache", "--folder", FOLDER].map(str::to_owned).to_vec()),
        ],
    })
}

/// Puts a specification's device `all` into a container as an engine does.
fn apply(document: &Value, spec: &mut Value) {
    let devices = document["devices"].as_array().unwrap();
    let all = devices.iter().find(|device| device["name"] == "all").unwrap();
    for edits in [&document["containerEdits"], &all["containerEdits"]] {
        for mount in edits["mounts"].as_array().into_iter().flatten() {
            let to = json!({"destination": mount["containerPath"], "source": mount["hostPath"],
                "type": "bind", "options": mount["options"]});
            spec["mounts"].as_array_mut().unwrap().push(to);
        }
        for hook in edits["hooks"].as_array().into_iter().flatten() {
            let stage = hook["hookName"].as_str().unwrap();
            if spec["hooks"][stage].is_null() {
                spec["hooks"][stage] = json!([]);
            }
            let to = json!({"path": hook["path"], "args": hook["args"], "env": hook["env"]});
            spec["hooks"][stage].as_array_mut().unwrap().push(to);
        }
    }
}

/// What a container prints whose program opens these names.
fn opened(tree: &Tree, way: Way, variables: &[&str], names: &[String]) -> String {
    let mut environment = vec!["OCI_NVIDIA=all"];
    let mut annotations = json!({});
    let mut program = "runc".to_owned();
    let runtime = |name: &str| tree.path("bin").join(name).display().to_string();
    let mut document = None;
    match way {
        Way::Runtime => program = runtime("oci-decorator-runtime"),
        Way::NvidiaRuntime => {
            environment = vec!["NVIDIA_VISIBLE_DEVICES=all"];
            program = runtime("nvidia-container-runtime");
        }
        Way::NvidiaHook => environment = vec!["NVIDIA_VISIBLE_DEVICES=all"],
        Way::Hook(_) => {}
        Way::Engine(kind) => {
            environment = Vec::new();
            document = Some(specification(tree, kind).1);
        }
        Way::CdiRuntime(kind) => {
            environment = Vec::new();
            let (device, document) = specification(tree, kind);
            tree.file("host/etc/cdi/a.json", document.to_string());
            annotations = json!({"cdi.k8s.io/test": device});
            program = runtime("nvidia-container-runtime.cdi");
        }
    }
    environment.extend(variables);
    let mut spec = runtime::bundle(tree, &environment);
    spec["annotations"] = annotations;
    spec["process"]["args"] = ["/bin/opener".to_owned()].iter().chain(names).cloned().collect();
    let env = json!(["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
    match way {
        Way::Hook(stage) => {
            spec["hooks"][stage] =
                json!([{"path": own(), "args": ["oci-decorator", stage], "env": env}]);
        }
        Way::NvidiaHook => {
            let args = ["nvidia-container-runtime-hook", "prestart"];
            spec["hooks"]["prestart"] = json!([{"path": own(), "args": args, "env": env}]);
        }
        _ => {}
    }
    if let Some(document) = document {
        apply(&document, &mut spec);
    }
    tree.file("bundle/config.json", spec.to_string());
    let output = runtime::run(&mut there(tree, &program), tree);
    assert_eq!(code(&output), 0, "{way:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn every_way_gives_every_name_of_a_library() {
    if find("runc").is_none() || !need::root("mounts") {
        return;
    }
    let by_cache: Vec<String> = LIBRARIES
        .iter()
        .flat_map(|(name, major)| [format!("{name}.so"), format!("{name}.so.{major}")])
        .collect();
    let versioned = LIBRARIES.iter().map(|(name, _)| format!("{name}.so.{VERSION}"));
    let all: Vec<String> = by_cache.iter().cloned().chain(versioned).collect();
    let absolute: Vec<String> = all.iter().map(|name| format!("{FOLDER}/{name}")).collect();
    let variable = format!("LD_LIBRARY_PATH={FOLDER}");
    for way in WAYS {
        for has_cache in [true, false] {
            let tree = setup(has_cache);
            let loaders =
                [(&[][..], &by_cache), (&[variable.as_str()][..], &all), (&[][..], &absolute)];
            for (variables, names) in loaders {
                let missing = opened(&tree, way, variables, names);
                assert_eq!(missing, "", "{way:?}, cache {has_cache}, {variables:?}");
            }
            let paths = fs::read_to_string(tree.path("bundle/rootfs/etc/ld-musl-x86_64.path"));
            assert!(paths.unwrap().contains(FOLDER), "{way:?}");
        }
    }
}
