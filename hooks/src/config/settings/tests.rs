use super::*;
use crate::model::policy::Who;

/// A file without mistakes.
fn sound(text: &str) -> Settings {
    let (settings, mistakes) = parse(text);
    assert_eq!(mistakes, Vec::<String>::new());
    settings
}

#[test]
fn the_commented_example_is_the_default() {
    let text = include_str!("../../../config/config.toml");
    assert_eq!(sound(text), Settings::default());
    let live: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let settings = sound(&live);
    assert_eq!(settings.log_file, Some("/var/log/oci-decorator.log".into()));
    let expected = Settings {
        log_file: settings.log_file.clone(),
        policy: Policy {
            allow: settings.policy.allow.clone(),
            ..Policy::default()
        },
        ..Settings::default()
    };
    assert_eq!(settings, expected);
    assert_eq!(settings.policy.allow.map(|vendors| vendors.len()), Some(2));
    for key in KEYS.iter().chain(&policy::KEYS) {
        let table = ["policy", "allow"].contains(key);
        let as_value = live.contains(&format!("\n{key} = "));
        assert!(table || as_value, "{key}");
    }
}

#[test]
fn the_examples_of_the_reference_have_no_mistake() {
    let page = include_str!("../../../../docs/reference/oci-decorator.md");
    let examples: Vec<_> = page
        .split("```toml\n")
        .skip(1)
        .map(|rest| sound(rest.split("```").next().unwrap()).policy)
        .collect();
    let whom: Vec<_> = examples
        .iter()
        .map(|p| (p.environment, p.annotations))
        .collect();
    assert_eq!(
        whom,
        [
            (Who::All, Who::All),
            (Who::None, Who::All),
            (Who::All, Who::None)
        ]
    );
}

#[test]
fn every_mistake_is_named() {
    let (_, mistakes) = parse(
        "config-dir = 3\nlog-level = \"loud\"\nruntimes = [\"a/b\"]\ncolour = 1\nroot = \"x\"\n[policy]\ncolour = 2",
    );
    assert_eq!(mistakes.len(), 6, "{mistakes:?}");
    assert!(mistakes[0].starts_with("colour: unknown key; known are config-dir"));
    assert!(mistakes
        .iter()
        .any(|m| m.starts_with("policy.colour: unknown key")));
    assert_eq!(parse("runtimes = []").1.len(), 1);
    assert!(parse("x = [").1[0].starts_with("not valid TOML"));
}

#[test]
fn correct_values_count_beside_a_mistake() {
    for text in [
        "root = \"/sysroot\"\nlog-level = \"loud\"\nruntimes = [\"/low\"]\n[policy]\nenvironment = \"none\"",
        // Not valid TOML: single lines still count, and tables do not.
        "root = \"/sysroot\"\nlog-level = debug\nruntimes = [\"/low\"]\n[policy]\nroot = \"/no\"",
    ] {
        let (settings, mistakes) = parse(text);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        let folder = "/sysroot/etc/oci-decorator/oci-decorator.d";
        assert_eq!(settings.config_dir, Path::new(folder));
        assert_eq!(settings.runtimes, ["/low"]);
        assert_eq!(settings.log_level, Level::Info);
    }
}

#[test]
fn another_root_moves_the_default_folder() {
    let settings = sound("root = \"/sysroot\"");
    assert_eq!(
        settings.config_dir,
        Path::new("/sysroot/etc/oci-decorator/oci-decorator.d")
    );
}

/// A policy may exist even if it can't be read at the moment.
#[test]
fn a_link_that_leads_nowhere_is_not_a_missing_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    assert_eq!(load_where_there(&path).problem, None);
    assert_eq!(load_where_there(&path.join("none")).problem, None);
    std::os::unix::fs::symlink("not-mounted/config.toml", &path).unwrap();
    let problem = load_where_there(&path).problem.unwrap().to_string();
    assert!(problem.contains("No such file"), "{problem}");
}

#[test]
fn files_that_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let error = || load(Some(&path)).problem.unwrap();
    let problem = || {
        assert!(error().resolution.is_some(), "{:?}", error());
        error().message
    };
    assert!(problem().contains("No such file"));
    std::fs::create_dir(&path).unwrap();
    assert!(problem().ends_with("is not a regular file"));
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, b"log-level = \"\xff\"").unwrap();
    assert!(problem().ends_with("is not valid UTF-8"));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(100 << 20).unwrap();
    assert!(problem().ends_with("is larger than 1048576 bytes"));
    for odd in [&b"\xff"[..], &b"\0".repeat(2 << 20)] {
        std::fs::write(&path, [b"root = \"/sysroot\"\n", odd].concat()).unwrap();
        let loaded = load(Some(&path));
        assert!(loaded.problem.is_some());
        assert_eq!(loaded.settings.root, Path::new("/sysroot"));
        assert_eq!(loaded.suspected, [PathBuf::from(DEFAULT_CONFIG_DIR)]);
    }
    std::fs::write(&path, "root = \"/sysroot\"").unwrap();
    assert_eq!(
        load(Some(&path)).sound().unwrap().root,
        Path::new("/sysroot")
    );
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    let text = error().to_string();
    assert!(text.contains("config.toml is writable by everyone: correct the owner"));
    // A file that others may write is not used at all, but it may be the intended one.
    let loaded = load(Some(&path));
    assert_eq!(loaded.settings, Settings::default());
    let folder = "/sysroot/etc/oci-decorator/oci-decorator.d";
    assert_eq!(loaded.suspected, [PathBuf::from(folder)]);
    std::fs::write(&path, "x=[".repeat(100_000)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(problem().contains("not valid TOML"));
}
