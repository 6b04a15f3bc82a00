//! NVIDIA's names under a real runc: the hook with the host's own settings, which a mount
//! namespace brings, and what both front ends do about the driver's settings in /proc and
//! about newer libraries of the image.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use oci_decorator::host::ldcache;
use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::runtime::{self, Created};
use crate::support::{need, stderr, stdout, Tree};

const VENDOR: &str = r#"{
    "version": "535.261.03", "activation_flag": "OCI_NVIDIA", "driver_feature": ["compute"],
    "units": "nvidia[0-9]*", "interfaces": ["nvidia"],
    "inventory": {"compute": {
        "devices": ["nvidiactl", "nvidia[0-9]*"], "libraries": ["/usr/lib/libcuda.so.1"]
    }, "utility": {}}
}"#;
/// Of no driver ("local use"): opening a node only shows whether the cgroup allows it.
const MAJOR: u32 = 126;
const NAMES: [&str; 3] = ["nvidia0", "nvidia1", "nvidiactl"];
const HOOK: &str = "bin/nvidia-container-runtime-hook";
const PARAMS: &str = "proc/driver/nvidia/params";
const BROKEN: &str = "= broken";

/// A host whose `/etc` is a folder of the tree.
fn setup() -> Tree {
    let tree = Tree::new();
    let folder = "host/etc/oci-decorator/oci-decorator.d";
    tree.file(&format!("{folder}/nvidia.json"), VENDOR);
    let root = tree.path("host").display().to_string();
    tree.file("etc/oci-decorator/config.toml", format!("root = {root:?}\n"));
    tree.library("host/usr/lib/libcuda.so.1", "libcuda.so.1", &[]);
    tree.folder("host/dev");
    for (minor, node) in (1..).zip(nodes(&tree)) {
        let mode = Mode::from_raw_mode(0o666);
        let numbers = makedev(MAJOR, minor);
        mknodat(CWD, &node, FileType::CharacterDevice, mode, numbers).unwrap();
    }
    tree.file("bundle/rootfs/lib64/ld-linux-x86-64.so.2", "");
    tree.folder("bin");
    tree.link(HOOK, env!("CARGO_BIN_EXE_oci-decorator"));
    tree
}

fn nodes(tree: &Tree) -> Vec<PathBuf> {
    let path = |name: &&str| tree.path("host/dev").join(name);
    NAMES.iter().map(path).collect()
}

/// A program that runs where the tree's `etc` is the host's.
fn there(tree: &Tree, program: &str) -> Command {
    let script = "mount --bind \"$0\" /etc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]);
    command.arg(tree.path("etc")).arg(program);
    command
}

fn create<'a>(
    tree: &'a Tree,
    program: &str,
    environment: &[&str],
    hook: Option<&[&str]>,
) -> Result<Created<'a>, String> {
    let mut spec = runtime::bundle(tree, environment);
    if let Some(words) = hook {
        let words = [&["nvidia-container-runtime-hook"], words].concat();
        spec["hooks"]["prestart"] = json!([{"path": tree.path(HOOK), "args": words,
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}]);
    }
    tree.file("bundle/config.json", spec.to_string());
    runtime::create(&mut there(tree, program), tree)
}

/// The names of nodes that the container has, and of those that it may open.
fn given(tree: &Tree, container: &Created) -> (Vec<&'static str>, Vec<&'static str>) {
    let has = |name: &&str| container.path(&format!("/dev/{name}")).exists();
    let open = container.may_open(&nodes(tree));
    let may = |name: &&str| open.contains(&tree.path("host/dev").join(name));
    let named = |is: &dyn Fn(&&str) -> bool| NAMES.into_iter().filter(|name| is(name)).collect();
    (named(&has), named(&may))
}

#[test]
fn the_hook_gives_the_chosen_device_and_the_right_to_it() {
    if runtime::find("runc").is_none() {
        return;
    }
    let asks = ["NVIDIA_VISIBLE_DEVICES=1"];
    let chosen = vec!["nvidia1", "nvidiactl"];
    let settings = "[nvidia-container-cli]\nno-cgroups = true\n";
    for (usual, words, may) in [
        (None, &["prestart"][..], &chosen),
        (Some(settings), &["prestart"], &vec![]),
        // What the command line names counts, and the usual file does not.
        (Some(settings), &["-config=FILE", "prestart"], &chosen),
        (Some(BROKEN), &["-config", "FILE", "prestart"], &chosen),
    ] {
        let tree = setup();
        if let Some(usual) = usual {
            tree.file("etc/nvidia-container-runtime/config.toml", usual);
        }
        let file = tree.file("site.toml", "disable-require = true\n");
        let file = file.display().to_string();
        let words: Vec<String> = words.iter().map(|w| w.replace("FILE", &file)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let container = create(&tree, "runc", &asks, Some(&words)).unwrap();
        let expected = (chosen.clone(), may.clone());
        assert_eq!(given(&tree, &container), expected, "{usual:?} {words:?}");
        let cache = tree.text("bundle/rootfs/etc/ld.so.cache");
        assert!(cache.contains("/usr/lib/libcuda.so.1\0"), "{words:?}");
    }
}

/// Engines of 2017 use another name for the bundle.
#[test]
fn the_old_name_of_the_bundle_is_understood() {
    if runtime::find("runc").is_none() {
        return;
    }
    let tree = setup();
    fs::rename(tree.path(HOOK), tree.path("bin/own")).unwrap();
    fs::create_dir(tree.path("bin/real")).unwrap();
    let real = tree.path("bin/real/nvidia-container-runtime-hook");
    fs::rename(tree.path("bin/own"), &real).unwrap();
    let script = format!(
        "sed 's/\"bundle\":/\"bundlePath\":/' | tee {} | exec {} prestart",
        tree.path("state.json").display(),
        real.display()
    );
    tree.script(HOOK, &script);
    let asks = ["NVIDIA_VISIBLE_DEVICES=0"];
    let container = create(&tree, "runc", &asks, Some(&[])).unwrap();
    assert!(tree.text("state.json").contains("\"bundlePath\""));
    let chosen = vec!["nvidia0", "nvidiactl"];
    assert_eq!(given(&tree, &container), (chosen.clone(), chosen));
}

#[test]
fn a_broken_configuration_stops_only_containers_that_ask() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (environment, starts) in [
        (&["NVIDIA_DRIVER_CAPABILITIES=all"][..], true),
        (&["NVIDIA_VISIBLE_DEVICES=void"], true),
        (&["NVIDIA_VISIBLE_DEVICES=0"], false),
    ] {
        let tree = setup();
        tree.file("etc/nvidia-container-runtime/config.toml", BROKEN);
        let created = create(&tree, "runc", environment, Some(&["prestart"]));
        match &created {
            Ok(container) => assert_eq!(given(&tree, container).0, Vec::<&str>::new()),
            Err(problem) => assert!(problem.contains("config.toml"), "{problem}"),
        }
        assert_eq!(created.is_ok(), starts, "{environment:?}");
    }
}

/// A runtime runs before the container exists. So a hook does it, which costs a process, and only
/// if the driver's settings on the host require it.
#[test]
fn a_spec_has_the_hook_for_the_drivers_settings_only_where_they_call_for_it() {
    if runtime::find("runc").is_none() {
        return;
    }
    for (settings, expected) in
        [(Some("ModifyDeviceFiles: 1\n"), 1), (Some("ModifyDeviceFiles: 0\n"), 0), (None, 0)]
    {
        let tree = setup();
        if let Some(settings) = settings {
            tree.file(&format!("host/{PARAMS}"), settings);
        }
        let name = "bin/nvidia-container-runtime";
        tree.link(name, env!("CARGO_BIN_EXE_oci-decorator"));
        let program = tree.path(name).display().to_string();
        let asks = ["NVIDIA_VISIBLE_DEVICES=0"];
        let container = create(&tree, &program, &asks, None).unwrap();
        let chosen = vec!["nvidia0", "nvidiactl"];
        assert_eq!(given(&tree, &container), (chosen.clone(), chosen));
        let spec: Value = serde_json::from_str(&tree.text("bundle/config.json")).unwrap();
        let hooks = spec["hooks"]["createContainer"].as_array();
        assert_eq!(hooks.map_or(0, Vec::len), expected, "{settings:?}");
        let word = "disable-device-node-modification";
        let is_there = spec.to_string().contains(word);
        assert_eq!(is_there, expected == 1, "{settings:?}");
    }
}

/// The hook covers them itself. No kernel without the driver has them, so that a plain folder
/// stands for /proc, and a mount namespace for the container.
#[test]
fn the_hook_covers_the_drivers_settings_itself() {
    if !need::root("mounts") {
        return;
    }
    let own = "A: 1\nModifyDeviceFiles: 1\nB: 2\n";
    for (environment, covered) in [("NVIDIA_VISIBLE_DEVICES=0", true), ("PATH=/bin", false)] {
        let tree = setup();
        tree.file(&format!("bundle/rootfs/{PARAMS}"), own);
        tree.folder("bundle/rootfs/dev");
        let settings = "[nvidia-container-cli]\nno-cgroups = true\n";
        tree.file("etc/nvidia-container-runtime/config.toml", settings);
        let spec = json!({"root": {"path": "rootfs"}, "process": {"env": [environment]}});
        tree.file("bundle/config.json", spec.to_string());
        let script = "set -e
            unshare --mount sleep 60 & pid=$!
            trap 'kill $pid' EXIT
            until [ \"$(readlink /proc/$pid/ns/mnt)\" != \"$(readlink /proc/self/ns/mnt)\" ]; do sleep 0.01; done
            for _ in 1 2; do
                printf '{\"id\":\"c\",\"pid\":%s,\"bundle\":\"%s/bundle\"}' $pid \"$PWD\" |
                    bin/nvidia-container-runtime-hook prestart
            done
            nsenter --target $pid --mount cat \"$PWD/bundle/rootfs/proc/driver/nvidia/params\"";
        let mut command = there(&tree, "sh");
        let output = runtime::finish(command.args(["-c", script]).current_dir(tree.0.path()));
        let expected = if covered { own.replace("Files: 1", "Files: 0") } else { own.to_owned() };
        assert_eq!((stdout(&output), stderr(&output)), (expected, String::new()));
        assert_eq!(tree.text(&format!("bundle/rootfs/{PARAMS}")), own);
    }
}

/// The list of what may be asked for holds in the hook of the mode `legacy` and of `--gpus` too. A
/// mount namespace stands for the container, so that no engine is needed.
#[test]
fn the_hook_gives_what_the_policy_allows() {
    if !need::root("mounts") {
        return;
    }
    let both = ["nvidia0", "nvidiactl"];
    for (policy, expected, part) in [
        ("", &both[..], ""),
        ("[policy.allow]\nnvidia = \"all\"", &both, ""),
        ("[policy.allow]\nnvidia = [\"compute\"]", &both, ""),
        ("[policy.allow]\nnvidia = [\"utility\"]", &[], ""),
        ("[policy.allow]\namd = \"all\"", &[], ""),
        ("[policy]\nenvironment = \"none\"", &[], ""),
        ("[policy]\non-refusal = \"fail\"\n[policy.allow]\namd = \"all\"", &[], "\"policy.allow\""),
    ] {
        let tree = setup();
        tree.folder("bundle/rootfs/dev");
        let own = tree.text("etc/oci-decorator/config.toml");
        tree.file("etc/oci-decorator/config.toml", format!("{own}{policy}\n"));
        let settings = "[nvidia-container-cli]\nno-cgroups = true\n";
        tree.file("etc/nvidia-container-runtime/config.toml", settings);
        let environment = ["NVIDIA_VISIBLE_DEVICES=0"];
        let spec = json!({"root": {"path": "rootfs"}, "process": {"env": environment}});
        tree.file("bundle/config.json", spec.to_string());
        let script = "
            unshare --mount sleep 60 & pid=$!
            trap 'kill $pid' EXIT
            until [ \"$(readlink /proc/$pid/ns/mnt)\" != \"$(readlink /proc/self/ns/mnt)\" ]; do sleep 0.01; done
            printf '{\"id\":\"c\",\"pid\":%s,\"bundle\":\"%s/bundle\"}' $pid \"$PWD\" |
                bin/nvidia-container-runtime-hook prestart
            echo $?
            ls bundle/rootfs/dev; ls bundle/rootfs/usr/lib 2>/dev/null";
        let mut command = there(&tree, "sh");
        let output = runtime::finish(command.args(["-c", script]).current_dir(tree.0.path()));
        let (said, problem) = (stdout(&output), stderr(&output));
        let mut lines = said.lines();
        let ended = if part.is_empty() { "0" } else { "1" };
        assert_eq!(lines.next(), Some(ended), "{policy}: {problem}");
        let found: Vec<&str> = lines.filter(|line| line.starts_with("nvidia")).collect();
        assert_eq!(found, expected, "{policy}: {problem}");
        let has_library = said.contains("libcuda.so.1");
        assert_eq!(has_library, !expected.is_empty(), "{policy}: {said}");
        assert!(problem.contains(part), "{policy}: {problem}");
    }
}

/// Which library the loader finds first.
fn first(tree: &Tree) -> String {
    let bytes = fs::read(tree.path("bundle/rootfs/etc/ld.so.cache")).unwrap();
    let cache = ldcache::parse(&bytes).unwrap();
    let mut entries = cache.entries.iter();
    let found = entries.find(|entry| entry.soname == b"libcuda.so.1").unwrap();
    String::from_utf8_lossy(found.path).into_owned()
}

#[test]
fn newer_libraries_of_the_image_come_first_as_the_mode_says() {
    if runtime::find("runc").is_none() {
        return;
    }
    let (image, host) = ("/usr/local/cuda/compat/libcuda.so.1", "/usr/lib/libcuda.so.1");
    let (variable, flag) = ("NVIDIA_VISIBLE_DEVICES=all", "OCI_NVIDIA=all");
    for (version, mode, asks, expected) in [
        ("580.10.01", None, variable, image),
        ("580.10.01", None, flag, image),
        ("580.10.01", Some("ldconfig"), variable, image),
        ("580.10.01", Some("disabled"), variable, host),
        ("525.10.01", None, variable, host),
        ("525.10.01", None, flag, host),
        ("535.999.01", None, variable, host),
    ] {
        for hook in [None, Some(&["prestart"][..])] {
            let tree = setup();
            let folder = "bundle/rootfs/usr/local/cuda/compat";
            let file = format!("libcuda.so.{version}");
            tree.library(&format!("{folder}/{file}"), "libcuda.so.1", &[]);
            tree.link(&format!("{folder}/libcuda.so.1"), &file);
            if let Some(mode) = mode {
                let table = "[nvidia-container-runtime.modes.legacy]";
                let text = format!("{table}\ncuda-compat-mode = {mode:?}\n");
                tree.file("etc/nvidia-container-runtime/config.toml", text);
            }
            let name = "bin/nvidia-container-runtime";
            tree.link(name, env!("CARGO_BIN_EXE_oci-decorator"));
            let program = match hook {
                Some(_) => "runc".to_owned(),
                None => tree.path(name).display().to_string(),
            };
            let container = create(&tree, &program, &[asks], hook).unwrap();
            drop(container);
            assert_eq!(first(&tree), expected, "{version} {mode:?} {asks} {hook:?}");
        }
    }
}
