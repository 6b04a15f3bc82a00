use super::*;

fn sound(text: &str) -> NvidiaConfig {
    let reading = Reading::of(text);
    assert_eq!(reading.mistakes, Vec::<String>::new(), "{text}");
    reading.config
}

/// Words and lists of each key, and what the configuration has then.
#[rustfmt::skip]
#[test]
fn every_key_sets_its_part_of_the_configuration() {
    let runtime = "nvidia-container-runtime";
    for (key, value, expected) in [
        ("disable-require".to_owned(), "true", "disable_require: true"),
        ("swarm-resource".to_owned(), "'A, B,,'", r#"swarm_resources: ["A", "B"]"#),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged".to_owned(), "false", "environment_when_unprivileged: false"),
        ("accept-nvidia-visible-devices-as-volume-mounts".to_owned(), "true", "volume_mounts: true"),
        ("supported-driver-capabilities".to_owned(), "'utility, compute'", r#"capabilities: ["utility", "compute"]"#),
        ("supported-driver-capabilities".to_owned(), "''", "capabilities: []"),
        ("nvidia-container-cli.no-cgroups".to_owned(), "true", "no_cgroups: true"),
        (format!("{runtime}.debug"), "'/var/log/n.log'", r#"log_file: Some("/var/log/n.log")"#),
        (format!("{runtime}.debug"), "'/dev/null'", "log_file: None"),
        (format!("{runtime}.log-level"), "'WARN'", "log_level: Some(Warning)"),
        (format!("{runtime}.runtimes"), "['crun', '/r']", r#"runtimes: Some(["crun", "/r"])"#),
        (format!("{runtime}.mode"), "'legacy'", "mode: Legacy"),
        (format!("{runtime}.mode"), "'csv'", "mode: Csv"),
        (format!("{runtime}.mode"), "'cdi'", "mode: Cdi"),
        (format!("{runtime}.mode"), "'jit-cdi'", "mode: JitCdi"),
        (format!("{runtime}.modes.csv.mount-spec-path"), "'/csv'", r#"csv_folder: "/csv""#),
        (format!("{runtime}.modes.cdi.default-kind"), "'a.b/c'", r#"cdi_kind: "a.b/c""#),
        (format!("{runtime}.modes.cdi.annotation-prefixes"), "['p/']", r#"cdi_prefixes: ["p/"]"#),
        (format!("{runtime}.modes.cdi.spec-dirs"), "['/d']", r#"cdi_folders: ["/d"]"#),
        (format!("{runtime}.modes.jit-cdi.nvcdi-disable-hooks"), "['all']", r#"disabled_hooks: ["all"]"#),
        (format!("{runtime}.modes.legacy.cuda-compat-mode"), "'disabled'", "compat: Disabled"),
        ("features.disable-cuda-compat-lib-hook".to_owned(), "true", "compat: Disabled"),
        ("features.ignore-imex-channel-requests".to_owned(), "true", "ignore_imex: true"),
        ("features.no-additional-gids-for-device-nodes".to_owned(), "true", "no_groups: true"),
    ] {
        let found = format!("{:?}", sound(&format!("{key} = {value}")));
        assert!(found.contains(expected), "{key}: {found}");
    }
    assert_eq!(sound(""), NvidiaConfig::default());
    // The feature overrides the mode.
    let off = "[features]\ndisable-cuda-compat-lib-hook = true\n[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = \"ldconfig\"";
    assert_eq!(sound(off).compat, Compat::Disabled);
}
