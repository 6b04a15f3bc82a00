use super::*;
use crate::config::settings::Settings as Own;
use crate::model::request::Interface;

const VENDOR: &str = r#"{"version":"1","activation_flag":"OCI_NVIDIA","driver_feature":["compute"],
    "interfaces":["nvidia"],"inventory":{"compute":{"libraries":["/lib/there.so"]}}}"#;
const CDI: &str = r#"{"cdiVersion":"0.5.0","kind":"v.com/nic","devices":[
    {"name":"a","containerEdits":{"env":["NIC=a"]}}]}"#;

/// A host, and its settings, which answer these interfaces.
fn host(config: &str, interfaces: &[Interface]) -> (tempfile::TempDir, Loaded) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for (path, text) in [
        ("conf.d/nvidia.json", VENDOR),
        ("etc/cdi/nic.json", CDI),
        ("lib/there.so", ""),
        ("dev/null", ""),
        ("nvidia.toml", config),
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let settings = Own {
        config_dir: root.join("conf.d"),
        root: root.to_owned(),
        interfaces: interfaces.to_vec(),
        ..Own::default()
    };
    let loaded = Loaded {
        settings,
        ..Loaded::default()
    };
    (dir, loaded)
}

fn answers(config: &str, interfaces: &[Interface], environment: &[&str]) -> Answers {
    let (dir, loaded) = host(config, interfaces);
    let environment: Vec<String> = environment.iter().map(|&e| e.to_owned()).collect();
    let said = Said {
        environment: &environment,
        ..Said::default()
    };
    Answers::of(&said, &loaded, &dir.path().join("nvidia.toml"))
}

/// The names with the same result, and the way in which the devices are given.
fn ways(answers: &Answers) -> Vec<(Vec<&str>, &'static str)> {
    let way = |given: &Given| given.outcome.asks.first().map_or("", Asked::way);
    let given = answers.given.iter();
    given
        .map(|given| (given.names.clone(), way(given)))
        .collect()
}

const RUNTIME: &str = "nvidia-container-runtime";
const HOOK: &str = "nvidia-container-runtime-hook";

#[test]
fn names_and_settings_say_who_answers() {
    let all = &["NVIDIA_VISIBLE_DEVICES=all"][..];
    let (file, cdi, hook) = ("the vendor file", "specifications of CDI", "a hook");
    let by_mode = |first: Vec<&'static str>| {
        vec![
            (first, file),
            (vec!["nvidia-container-runtime.cdi"], cdi),
            (vec!["nvidia-container-runtime.legacy"], hook),
        ]
    };
    for (config, interfaces, environment, expected) in [
        ("", &[][..], &["PATH=/bin"][..], vec![]),
        (
            "",
            &[Interface::Nvidia],
            &["NVIDIA_VISIBLE_DEVICES=void"],
            vec![],
        ),
        ("", &[], &["ROCR_VISIBLE_DEVICES=0"], vec![]),
        ("", &[], all, by_mode(vec![RUNTIME, HOOK])),
    ] {
        let found = answers(config, interfaces, environment);
        assert_eq!(ways(&found), expected, "{config} {environment:?}");
    }
    let own = answers("", &[Interface::Nvidia], all);
    assert_eq!(own.given[0].names[0], runtime::NAME);
    assert_eq!(own.given[0].outcome.asks[0].way(), file);
    let amd = answers("", &[Interface::Amd], &["ROCR_VISIBLE_DEVICES=0"]);
    assert_eq!(amd.given[0].names[0], runtime::NAME);
    assert!(amd.given[0].outcome.asks[0].by.starts_with("ROCR_"));
    assert_eq!(amd.code(), exit::NOT_FOUND, "no file answers \"amd\"");
    let config = "[nvidia-container-runtime]\nmode = \"cdi\"\n";
    let found = answers(config, &[], all);
    let names = [RUNTIME, "nvidia-container-runtime.cdi"];
    assert_eq!(ways(&found)[0], (names.to_vec(), cdi));
    assert_eq!(found.code(), exit::NOT_FOUND, "no such device of CDI");
}

#[test]
fn what_the_container_gets_is_listed() {
    let found = answers("", &[], &["NVIDIA_VISIBLE_DEVICES=all"]);
    assert_eq!(found.code(), exit::DONE);
    let text = found.given[0].lines().join("\n");
    assert!(
        text.starts_with(&format!("\nas {RUNTIME}, {HOOK}:\n")),
        "{text}"
    );
    let ask = "NVIDIA_VISIBLE_DEVICES asks for all devices, by the vendor file";
    assert!(text.contains(ask), "{text}");
    assert!(text.contains("  file        /lib/there.so"), "{text}");
    let found = answers("", &[], &["NVIDIA_VISIBLE_DEVICES=v.com/nic=a"]);
    let json = found.given[0].json();
    assert_eq!(json["asks"][0]["devices"], "v.com/nic=a");
    assert_eq!(json["asks"][0]["way"], "specifications of CDI");
    let environment = json["gets"]["environment"].as_array().unwrap();
    assert!(environment.contains(&json!("NIC=a")), "{json}");
    let hook = found
        .given
        .iter()
        .find(|given| given.names == [HOOK])
        .unwrap();
    let refused = hook.json()["refused"].as_str().unwrap().to_owned();
    assert!(refused.contains("which a hook can't give"), "{refused}");
}

#[test]
fn mistakes_of_nvidias_settings_are_reported() {
    let found = answers(
        "[nvidia-container-runtime]\nmode = 3\n",
        &[],
        &["NVIDIA_VISIBLE_DEVICES=all"],
    );
    let problem = found.problem.as_ref().unwrap().to_string();
    assert!(
        problem.contains("nvidia.toml") && problem.contains("mode"),
        "{problem}"
    );
    assert_eq!(found.code(), exit::USAGE);
    assert!(found.given[0].outcome.refused.is_some());
    let idle = answers("[nvidia-container-runtime]\nmode = 3\n", &[], &[]);
    assert_eq!((idle.given.len(), idle.code()), (0, exit::USAGE));
}

#[test]
fn annotations_of_cdi_count_for_the_runtime() {
    let (dir, loaded) = host("", &[]);
    let annotations = [("cdi.k8s.io/x".to_owned(), "v.com/nic=a".to_owned())];
    let said = Said {
        annotations: &annotations,
        ..Said::default()
    };
    let found = Answers::of(&said, &loaded, &dir.path().join("none.toml"));
    assert_eq!(found.file, None);
    assert_eq!(found.given[0].names[0], RUNTIME);
    assert_eq!(found.given[0].outcome.refused, None);
    assert!(found.given.iter().all(|given| !given.names.contains(&HOOK)));
}
