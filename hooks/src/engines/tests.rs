use super::*;
use proptest::prelude::*;
use std::fmt::Write;

const NAME: &str = "oci-decorator";
const PROGRAM: &str = "/usr/bin/oci-decorator-runtime";
const DOCKER: &str = "{\n  \"default-runtime\": \"kata\",\n  \"runtimes\": {\n    \"kata\": {\"path\": \"/k\"}\n  }\n}\n";
const V2: &str = "version = 2\n# by hand\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"runc\" # why\n\
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true # k8s\n";
const V3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\nsnapshotter = 'x'\n\
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n";
const V1: &str = "[plugins.cri.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runtime.v1.linux\"\nruntime_engine = \"\"\n";

fn plain() -> RuntimeEntry {
    RuntimeEntry { name: NAME.to_owned(), program: PROGRAM.to_owned(), is_default: None, cdi: None }
}

fn default() -> RuntimeEntry {
    RuntimeEntry { is_default: Some(true), ..plain() }
}

/// Adds the runtime, and returns the new text. A second time changes nothing.
fn add(engine: Engine, text: &str, runtime: &RuntimeEntry) -> String {
    let once = engine.with(text, runtime, &[]).unwrap();
    assert_eq!(engine.with(&once, runtime, &[]).unwrap(), once);
    assert_eq!(engine.program(&once, &runtime.name).unwrap().as_deref(), Some(PROGRAM));
    once
}

/// Adds the runtime and removes it, which restores every byte.
fn round_trip(engine: Engine, original: &str, runtime: &RuntimeEntry) -> String {
    let text = add(engine, original, runtime);
    assert_ne!(original, text);
    assert_eq!(engine.without(&text, NAME, false).unwrap(), original, "{text}");
    text
}

#[test]
fn every_engine_and_every_kind_of_file() {
    let cri = "[crio.runtime.runtimes.crun]\nruntime_path = \"/c\"\nmonitor_path = \"/m\"\n";
    for (engine, texts) in [
        (Engine::Docker, &["{}\n", "{\n    \"debug\": true,\n    \"n\": 1e5\n}\n"][..]),
        (Engine::Containerd, &["# only this\nversion = 2\n", V3, "version = 3\n", "version = 4\n"]),
        (Engine::Crio, &["# x\n", cri]),
        (
            Engine::Podman,
            &["", "[engine]\nhooks_dir = [\"/h\"]\n", "[engine.runtimes]\nr = ['/c']\n"],
        ),
    ] {
        for text in texts {
            assert_ne!(round_trip(engine, text, &plain()), round_trip(engine, text, &default()));
        }
    }
    round_trip(Engine::Docker, DOCKER, &plain());
    round_trip(Engine::Containerd, V2, &plain());
    round_trip(Engine::Containerd, V1, &plain());
}

#[test]
fn only_what_is_ours_is_taken() {
    let ours = add(Engine::Docker, DOCKER, &default());
    // Another default does not come back, a later one stays.
    let left = Engine::Docker.without(&ours, NAME, false).unwrap();
    assert_eq!(left, DOCKER.replace("  \"default-runtime\": \"kata\",\n", ""));
    let theirs =
        ours.replace("\"default-runtime\": \"oci-decorator\"", "\"default-runtime\": \"x\"");
    assert!(Engine::Docker.without(&theirs, NAME, false).unwrap().contains("\"x\""));
    // Arguments that an admin gave it stay when the program moves.
    let moved =
        ours.replace(PROGRAM, "/opt/oci-decorator-runtime\", \"runtimeArgs\": [\"-x\"], \"y\": \"");
    let after = add(Engine::Docker, &moved, &plain());
    assert!(after.contains("runtimeArgs"), "{after}");
    // So does another runtime of ours, and what others wrote.
    for (engine, text, more) in [
        (Engine::Docker, "{\n    \"debug\": true\n}\n", ""),
        (Engine::Containerd, V2, "[grpc]\naddress = \"/x\"\n"),
    ] {
        let nvidia = RuntimeEntry { name: "nvidia".to_owned(), ..plain() };
        let both = add(engine, &add(engine, text, &plain()), &nvidia) + more;
        let one = engine.without(&both, NAME, false).unwrap();
        assert_eq!(engine.program(&one, NAME).unwrap(), None);
        assert_eq!(engine.program(&one, "nvidia").unwrap().as_deref(), Some(PROGRAM));
        assert_eq!(engine.without(&one, "nvidia", false).unwrap(), text.to_owned() + more);
    }
}

proptest! {
    #[test]
    fn a_runtime_is_added_to_any_file_of_docker_and_removed(
        runtimes in prop::collection::btree_map("[a-z]{1,3}", "/[a-z]{1,3}", 1..3),
        default in prop::option::of("[a-z]{1,3}"),
        (indent, is_default) in (1..5_usize, any::<Option<bool>>()),
    ) {
        let mut document = serde_json::json!({"log-driver": "journald", "n": 1e5});
        for (name, path) in &runtimes {
            document["runtimes"][name]["path"] = path.as_str().into();
        }
        if let Some(default) = default.filter(|_| is_default.is_none()) {
            document["default-runtime"] = default.into();
        }
        let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
        let text = text.replace("  ", &" ".repeat(indent));
        let after = round_trip(Engine::Docker, &text, &RuntimeEntry { is_default, ..plain() });
        serde_json::from_str::<serde_json::Value>(&after).unwrap();
    }

    #[test]
    fn a_runtime_is_added_to_any_file_of_containerd_and_removed(
        version in 2..5_i64,
        runtimes in prop::collection::btree_set("[a-z]{1,3}", 1..3),
        (comment, is_default) in ("[ -~]{0,9}", any::<Option<bool>>()),
    ) {
        let plugin = if version == 2 { "io.containerd.grpc.v1.cri" } else { "io.containerd.cri.v1.runtime" };
        let mut text = format!("#{comment}\nversion = {version} # {comment}\n");
        for name in &runtimes {
            let _ = write!(text, "\n[plugins.'{plugin}'.containerd.runtimes.{name}]\n runtime_type='io.containerd.kata.v2' #{comment}\n");
        }
        let after = round_trip(Engine::Containerd, &text, &RuntimeEntry { is_default, ..plain() });
        for line in text.lines() {
            prop_assert!(after.lines().any(|l| l == line), "{line}\n{after}");
        }
    }
}
