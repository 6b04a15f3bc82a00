use super::*;
use crate::engines::docker;
use proptest::prelude::*;
use std::fmt::Write;

const NAME: &str = "oci-decorator";
const PROGRAM: &str = "/usr/bin/oci-decorator-runtime";
const DOCKER: &str =
    "{\n    \"default-runtime\": \"kata\",\n    \"runtimes\": {\"kata\": {\"path\": \"/k\"}}\n}\n";
const V2: &str = "version = 2\n# by hand\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"runc\" # why\n\
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true # k8s\n";
const V3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\nsnapshotter = 'x'\n\
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n";
const V1: &str = "[plugins.cri.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runtime.v1.linux\"\nruntime_engine = \"\"\n";

fn wanted() -> RuntimeEntry {
    RuntimeEntry { name: NAME.to_owned(), program: PROGRAM.to_owned(), is_default: None, cdi: None }
}

fn full() -> RuntimeEntry {
    RuntimeEntry { is_default: Some(true), cdi: Some(true), ..wanted() }
}

fn enter(engine: Engine, text: Option<&str>, entry: Option<&Entry>, wanted: &RuntimeEntry) -> Plan {
    added(engine, text, entry, wanted, &[]).unwrap()
}

/// Adds the runtime twice, which is the same as once, and removes it, which restores every byte.
fn round_trip(engine: Engine, original: Option<&str>, wanted: &RuntimeEntry) -> String {
    let once = enter(engine, original, None, wanted);
    let text = once.after.clone().unwrap();
    assert_ne!(original, Some(text.as_str()));
    let twice = enter(engine, Some(&text), once.entry.as_ref(), wanted);
    assert_eq!(twice, once, "{text}");
    // The same is true without a record.
    let unknown = enter(engine, Some(&text), None, wanted);
    assert_eq!(unknown.after, once.after, "{text}");
    let out = removed(engine, Some(&text), once.entry.as_ref(), &wanted.name).unwrap();
    assert_eq!(out.after.as_deref(), original);
    assert_eq!(out.entry, None);
    assert_eq!(engine.program(&text, &wanted.name).unwrap().as_deref(), Some(PROGRAM));
    text
}

/// Other programs' later changes stay, and our runtime is removed.
fn changed_since(engine: Engine, original: Option<&str>, added: &str) {
    let once = enter(engine, original, None, &full());
    let text = once.after.unwrap();
    let changed = match engine {
        Engine::Docker => text.replacen('{', &format!("{{{added},"), 1),
        _ => format!("{text}\n{added}\n"),
    };
    let out = removed(engine, Some(&changed), once.entry.as_ref(), NAME).unwrap();
    let left = out.after.unwrap();
    assert!(left.contains(added), "{left}");
    for word in [NAME, PROGRAM, "cdi\": true", "enable_cdi"] {
        assert!(!left.contains(word), "{word}: {left}");
    }
}

#[test]
fn every_engine_and_every_kind_of_file() {
    let cri = Some("[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/c\"\nmonitor_path = \"/m\"\n");
    for (engine, texts) in [
        (
            Engine::Docker,
            &[
                None,
                Some("{}"),
                Some("\n"),
                Some(DOCKER),
                Some("{\"runtimes\":{}, \"features\":{\"cdi\":false}}"),
            ][..],
        ),
        (
            Engine::Containerd,
            &[
                None,
                Some("# only this\n"),
                Some(V2),
                Some(V3),
                Some("version = 2\n"),
                Some("version=3"),
                Some("version = 4\n"),
            ],
        ),
        (Engine::Crio, &[None, Some("# x\n"), cri]),
        (
            Engine::Podman,
            &[
                None,
                Some("[engine]\nhooks_dir = [\"/h\"]\n"),
                Some("[engine]\nruntime = \"crun\"\n[engine.runtimes]\ncrun = ['/c']\n"),
            ],
        ),
    ] {
        for text in texts {
            let plain = round_trip(engine, *text, &wanted());
            let whole = round_trip(engine, *text, &full());
            assert_ne!(plain, whole);
        }
    }
    round_trip(Engine::Containerd, Some(V1), &wanted());
}

#[test]
fn what_others_wrote_since_stays() {
    for (engine, texts, added) in [
        (Engine::Docker, &[None, Some(DOCKER)][..], "\"debug\": true"),
        (Engine::Containerd, &[None, Some(V2), Some(V3)], "[grpc]\naddress = \"/x\""),
        (
            Engine::Crio,
            &[None, Some("[crio.image]\npause_image = 'p'\n")],
            "[crio.network]\nplugin_dirs = ['/p']",
        ),
        (
            Engine::Podman,
            &[None, Some("[engine]\nruntime = \"crun\"\n")],
            "[network]\ndns_bind_port = 1",
        ),
    ] {
        for text in texts {
            changed_since(engine, *text, added);
        }
    }
    let once = enter(Engine::Docker, Some(DOCKER), None, &full());
    let changed = once.after.unwrap().replacen('{', "{\"debug\": true, ", 1);
    let out = removed(Engine::Docker, Some(&changed), once.entry.as_ref(), NAME).unwrap();
    assert_eq!(out.after.unwrap(), DOCKER.replacen('{', "{\"debug\": true, ", 1));
}

/// Adds a second runtime to a file that other programs changed in between.
#[test]
fn every_runtime_goes_by_itself() {
    for (engine, original) in [(Engine::Docker, DOCKER), (Engine::Containerd, V2)] {
        let nvidia = RuntimeEntry {
            name: "nvidia".to_owned(),
            program: "/usr/bin/nvidia-container-runtime".to_owned(),
            ..full()
        };
        let one = enter(engine, Some(original), None, &wanted());
        let two = enter(engine, one.after.as_deref(), one.entry.as_ref(), &nvidia);
        let first = removed(engine, two.after.as_deref(), two.entry.as_ref(), NAME).unwrap();
        let text = first.after.as_deref().unwrap();
        assert!(!text.contains(NAME) && text.contains("nvidia"), "{text}");
        let second = removed(engine, Some(text), first.entry.as_ref(), "nvidia").unwrap();
        assert_eq!(second.after.as_deref(), Some(original));
        // What others add between the two is in the file that comes back.
        let added = match engine {
            Engine::Docker => one.after.as_deref().unwrap().replacen('{', "{\"a\": 1, ", 1),
            _ => format!("# theirs\n{}", one.after.as_deref().unwrap()),
        };
        let two = enter(engine, Some(&added), one.entry.as_ref(), &nvidia);
        let first = removed(engine, two.after.as_deref(), two.entry.as_ref(), NAME).unwrap();
        let second = removed(engine, first.after.as_deref(), first.entry.as_ref(), "nvidia");
        let expected = match engine {
            Engine::Docker => original.replacen('{', "{\"a\": 1, ", 1),
            _ => format!("# theirs\n{original}"),
        };
        assert_eq!(second.unwrap().after.unwrap(), expected);
    }
}

#[test]
fn only_what_is_ours_is_taken() {
    let ours = docker::with("{}", &wanted(), &FileHistory::default()).unwrap();
    // Without a record, the program's name says whose it is.
    let out = removed(Engine::Docker, Some(&ours), None, NAME).unwrap();
    assert_eq!(out.after.as_deref(), Some("{}"));
    let theirs = "{\"runtimes\": {\"oci-decorator\": {\"path\": \"/x\"}}}";
    let problem = removed(Engine::Docker, Some(theirs), None, NAME).unwrap_err();
    assert!(problem.contains("is not ours"), "{problem}");
    for text in [None, Some(DOCKER)] {
        let out = removed(Engine::Docker, text, None, NAME).unwrap();
        assert_eq!(out.after.as_deref(), text);
    }
    // Arguments that an admin gave it stay when the program moves.
    let moved =
        ours.replace(PROGRAM, "/opt/oci-decorator-runtime\", \"runtimeArgs\": [\"-x\"], \"y\": \"");
    let after = enter(Engine::Docker, Some(&moved), None, &wanted()).after.unwrap();
    assert!(after.contains("runtimeArgs") && after.contains(PROGRAM), "{after}");
}

proptest! {
    #[test]
    fn a_runtime_is_added_to_any_file_of_docker_and_removed(
        runtimes in prop::collection::btree_map("[a-z]{1,3}", "/[a-z]{1,3}", 0..3),
        default in prop::option::of("[a-z]{1,3}"),
        cdi in prop::option::of(any::<bool>()),
        (indent, is_default, wants_cdi) in (0..5_usize, any::<Option<bool>>(), any::<Option<bool>>()),
    ) {
        let mut document = serde_json::json!({"log-driver": "journald", "n": 1e5});
        for (name, path) in &runtimes {
            document["runtimes"][name]["path"] = path.as_str().into();
        }
        if let Some(default) = default {
            document["default-runtime"] = default.into();
        }
        if let Some(cdi) = cdi {
            document["features"]["cdi"] = cdi.into();
        }
        let text = serde_json::to_string_pretty(&document).unwrap();
        let text = text.replace("\n  ", &format!("\n{}", " ".repeat(indent)));
        let wanted = RuntimeEntry { is_default, cdi: wants_cdi, ..wanted() };
        round_trip(Engine::Docker, Some(&text), &wanted);
    }

    #[test]
    fn a_runtime_is_added_to_any_file_of_containerd_and_removed(
        version in 2..5_i64,
        runtimes in prop::collection::btree_set("[a-z]{1,3}", 0..3),
        default in prop::option::of("[a-z]{1,3}"),
        (comment, is_default, cdi) in ("[ -~]{0,9}", any::<Option<bool>>(), any::<Option<bool>>()),
    ) {
        let plugin = if version == 2 { "io.containerd.grpc.v1.cri" } else { "io.containerd.cri.v1.runtime" };
        let mut text = format!("#{comment}\nversion = {version} # {comment}\n");
        if let Some(default) = default {
            let _ = write!(text, "[plugins.'{plugin}'.containerd]\n  default_runtime_name = '{default}'\n");
        }
        for name in &runtimes {
            let _ = write!(text, "\n[plugins.'{plugin}'.containerd.runtimes.{name}]\n runtime_type='io.containerd.runc.v2' #{comment}\n");
        }
        let wanted = RuntimeEntry { is_default, cdi, ..wanted() };
        let after = round_trip(Engine::Containerd, Some(&text), &wanted);
        for line in text.lines().filter(|line| !line.contains("default_runtime_name")) {
            prop_assert!(after.lines().any(|l| l == line), "{line}\n{after}");
        }
    }
}
