use super::*;
use crate::model::policy::{Who, Writer};

/// A container's config.
fn spec(environment: &[&str], more: &str) -> String {
    let entries: Vec<String> =
        environment.iter().map(|entry| crate::spec::json::quote(entry)).collect();
    let entries = entries.join(",");
    format!(r#"{{"process":{{"env":[{entries}]{more}}}}}"#)
}

fn config(mode: Mode) -> Config {
    Config { mode, ..Config::default() }
}

fn under_nvidias_name(config: &Config, kind: FrontEndKind) -> Nvidia<'_> {
    Nvidia { config, problem: None, warnings: &[], kind, reads_annotations: true, file: None }
}

fn read<'a>(text: &'a str, config: &Config, policy: &Policy, kind: FrontEndKind) -> Request<'a> {
    let nvidia = under_nvidias_name(config, kind);
    let spec = Spec::parse(text.as_bytes());
    let mut request = spec.request(&nvidia.scan_scope());
    let host = tempfile::tempdir().unwrap();
    nvidia.read(&mut request, &spec, policy, &HostOf(host.path()));
    request
}

/// An image may have written the annotation, where an engine copies its labels.
#[test]
fn no_annotation_of_an_image_overrides_a_user_who_wants_nothing() {
    let label = r#"},"annotations":{"cdi.k8s.io/a":"v.com/gpu=1"},"y":{"z":0"#;
    let (all, user) = (Who::All, Writer::User);
    for (variable, environment, annotations_from, sources) in [
        ("void", all, Writer::Image, &[][..]),
        ("none", all, Writer::Image, &[Source::Environment]),
        ("0", all, Writer::Image, &[Source::Cdi]),
        ("void", all, user, &[Source::Cdi]),
        ("0", Who::None, Writer::Image, &[]),
        ("0", Who::None, user, &[Source::Cdi]),
    ] {
        let policy = Policy { annotations_from, environment, ..Policy::default() };
        let text = spec(&[&format!("{DEVICES}={variable}")], label);
        let request = read(&text, &config(Mode::Auto), &policy, FrontEndKind::Runtime);
        let asked: Vec<Source> = request.asks.iter().map(|ask| ask.source).collect();
        assert_eq!(asked, sources, "{variable} {policy:?}");
    }
}

#[test]
fn what_may_be_meant_is_suspected() {
    for (entries, suspect) in [
        (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"][..], Some(DEVICES)),
        (&["NVIDIA_VISIBLE_DEVICES=void"], None),
        (&["CUDA_VERSION=9.0"], Some(CUDA_VERSION)),
        (&["PATH=/bin"], None),
    ] {
        let mut text = spec(entries, "");
        text.insert_str(text.len() - 1, r#","Process":{}"#);
        let request = read(&text, &Config::default(), &Policy::default(), FrontEndKind::Runtime);
        assert!(request.doubt.is_some() && request.asks.is_empty());
        assert_eq!(request.possible_trigger.as_deref(), suspect, "{entries:?}");
        let policy = Policy { environment: Who::None, ..Policy::default() };
        let request = read(&text, &Config::default(), &policy, FrontEndKind::Runtime);
        assert_eq!(request.possible_trigger, None);
    }
}

#[test]
fn hooks_that_the_settings_leave_out_are_not_added() {
    let host = tempfile::tempdir().unwrap();
    let folder = host.path().join("proc/driver/nvidia");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("params"), "ModifyDeviceFiles: 1\n").unwrap();
    let host = Host::open(host.path()).unwrap();
    let text = spec(&["NVIDIA_VISIBLE_DEVICES=all"], "");
    let (params, compat) = ("disable-device-node-modification", "enable-cuda-compat");
    for (mode, reader, names, expected) in [
        (Mode::Auto, FrontEndKind::Runtime, &[][..], (1, true)),
        (Mode::Auto, FrontEndKind::Runtime, &[params], (0, true)),
        (Mode::Auto, FrontEndKind::Runtime, &[compat], (1, false)),
        (Mode::JitCdi, FrontEndKind::Runtime, &["all"], (0, false)),
        (Mode::JitCdi, FrontEndKind::Runtime, &["chmod"], (1, true)),
        // NVIDIA's hook knows nothing of them.
        (Mode::Auto, FrontEndKind::Hook, &["all"], (0, true)),
    ] {
        let config = Config {
            disabled_hooks: names.iter().map(|&name| name.to_owned()).collect(),
            ..config(mode)
        };
        let nvidia = under_nvidias_name(&config, reader);
        let hooks = nvidia.beside(&host).unwrap().hooks.len();
        let request = read(&text, &config, &Policy::default(), reader);
        let details = request.asks[0].details.as_ref().unwrap();
        let found = (hooks, details.compat);
        assert_eq!(found, expected, "{mode:?} {reader:?} {names:?}");
    }
}
