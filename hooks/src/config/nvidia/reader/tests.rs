use super::*;
use crate::config::nvidia::{is_known, without_meaning, Compat, Mode, CAPABILITIES};
use crate::log::level::Level;

const RUNTIME: &str = "[nvidia-container-runtime]\n";

fn sound(text: &str) -> Config {
    let reading = Reading::of(text);
    assert_eq!(reading.mistakes, Vec::<String>::new(), "{text}");
    reading.config
}

#[test]
fn which_file_it_is() {
    let path = |text: &str, named| Place {
        path: text.into(),
        named,
    };
    let (variable, xdg) = (Some(OsStr::new("/v")), Some(OsStr::new("/x")));
    let empty = Some(OsStr::new(""));
    for (option, variable, xdg, expected) in [
        (None, None, None, path(DEFAULT_PATH, false)),
        (None, empty, empty, path(DEFAULT_PATH, false)),
        (
            None,
            None,
            xdg,
            path("/x/nvidia-container-runtime/config.toml", false),
        ),
        (None, variable, xdg, path("/v", true)),
        (Some("/o"), variable, xdg, path("/o", true)),
    ] {
        assert_eq!(place(option.map(Path::new), variable, xdg), expected);
    }
}

#[test]
fn every_key_that_means_something() {
    let config = sound(
        "disable-require = true\nswarm-resource = \"A, B,,\"\n\
         accept-nvidia-visible-devices-envvar-when-unprivileged = false\n\
         accept-nvidia-visible-devices-as-volume-mounts = true\n\
         supported-driver-capabilities = \"utility, compute\"\n\
         [nvidia-container-cli]\nno-cgroups = true\n\
         [nvidia-container-runtime]\ndebug = \"/var/log/n.log\"\nlog-level = \"WARN\"\n\
         runtimes = [\"crun\", \"/opt/runc\"]\nmode = \"cdi\"\n\
         [nvidia-container-runtime.modes.csv]\nmount-spec-path = \"/csv\"\n\
         [nvidia-container-runtime.modes.cdi]\ndefault-kind = \"a.b/c\"\n\
         annotation-prefixes = [\"p/\"]\nspec-dirs = [\"/d\"]\n\
         [nvidia-container-runtime.modes.jit-cdi]\nnvcdi-disable-hooks = [\"all\"]\n\
         [nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = \"disabled\"\n\
         [nvidia-container-runtime-hook]\npath = \"/h\"\nskip-mode-detection = true\n\
         [features]\nignore-imex-channel-requests = true\nno-additional-gids-for-device-nodes = true\n",
    );
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&w| w.to_owned()).collect() };
    let expected = Config {
        disable_require: true,
        swarm_resources: words(&["A", "B"]),
        environment_when_unprivileged: false,
        volume_mounts: true,
        capabilities: words(&["utility", "compute"]),
        no_cgroups: true,
        log_file: Some("/var/log/n.log".into()),
        log_level: Some(Level::Warning),
        runtimes: Some(words(&["crun", "/opt/runc"])),
        mode: Mode::Cdi,
        csv_folder: "/csv".into(),
        cdi_kind: "a.b/c".to_owned(),
        cdi_prefixes: words(&["p/"]),
        cdi_folders: vec!["/d".into()],
        disabled_hooks: words(&["all"]),
        compat: Compat::Disabled,
        hook: "/h".to_owned(),
        hook_acts_always: true,
        ignore_imex: true,
        no_groups: true,
    };
    assert_eq!(config, expected);
    assert_eq!(sound(""), Config::default());
}

#[test]
fn words_of_single_keys() {
    let all = CAPABILITIES.map(str::to_owned);
    assert_eq!(
        sound("supported-driver-capabilities = \"all\"").capabilities,
        all
    );
    assert_eq!(
        sound("supported-driver-capabilities = \"\"")
            .capabilities
            .len(),
        0
    );
    let debug = |value: &str| sound(&format!("{RUNTIME}debug = \"{value}\"")).log_file;
    assert_eq!((debug("/dev/null"), debug("")), (None, None));
    for (word, mode) in [
        ("auto", Mode::Auto),
        ("legacy", Mode::Legacy),
        ("csv", Mode::Csv),
        ("cdi", Mode::Cdi),
        ("jit-cdi", Mode::JitCdi),
    ] {
        assert_eq!(sound(&format!("{RUNTIME}mode = \"{word}\"")).mode, mode);
    }
    let off = "[features]\ndisable-cuda-compat-lib-hook = true\n\
               [nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = \"ldconfig\"";
    assert_eq!(sound(off).compat, Compat::Disabled);
}

#[test]
fn what_counts_otherwise_is_a_warning() {
    let legacy = "[nvidia-container-runtime.modes.legacy]\n";
    for (text, mode, level, expected) in [
        (
            format!("{RUNTIME}log-level = \"loud\""),
            Mode::Auto,
            Level::Info,
            "log-level: unknown level \"loud\", info counts",
        ),
        (
            format!("{legacy}cuda-compat-mode = \"mount\""),
            Mode::Auto,
            Level::Info,
            "never mounted",
        ),
        (
            format!("{RUNTIME}experimental = true"),
            Mode::Auto,
            Level::Info,
            "write mode = \"auto\"",
        ),
        (
            format!("{RUNTIME}experimental = true\ndiscover-mode = \"csv\""),
            Mode::Csv,
            Level::Info,
            "write mode = \"csv\"",
        ),
        (
            format!("{RUNTIME}experimental = true\ndiscover-mode = \"legacy\""),
            Mode::Legacy,
            Level::Info,
            "write mode = \"legacy\"",
        ),
        (
            format!("{RUNTIME}experimental = true\nmode = \"cdi\""),
            Mode::Cdi,
            Level::Info,
            "does not count beside mode = \"cdi\"",
        ),
        (
            format!("{RUNTIME}discover-mode = \"csv\""),
            Mode::Auto,
            Level::Info,
            "without experimental = true",
        ),
        (
            "[nvidia-container-cli]\ncolour = 1".to_owned(),
            Mode::Auto,
            Level::Info,
            "nvidia-container-cli.colour: unknown key",
        ),
        (
            "[colours]\nred = 1".to_owned(),
            Mode::Auto,
            Level::Info,
            "colours: unknown key",
        ),
    ] {
        let reading = Reading::of(&text);
        assert_eq!(reading.mistakes, Vec::<String>::new(), "{text}");
        assert_eq!(reading.warnings.len(), 1, "{text}");
        assert!(
            reading.warnings[0].contains(expected),
            "{:?}",
            reading.warnings
        );
        assert_eq!(
            (
                reading.config.mode,
                reading.config.log_level.unwrap_or(Level::Info)
            ),
            (mode, level)
        );
    }
    let quiet = Reading::of(&format!("{RUNTIME}experimental = false"));
    assert_eq!(quiet.warnings, Vec::<String>::new());
}

#[test]
fn every_mistake_is_named() {
    let modes = "[nvidia-container-runtime.modes.";
    for (text, mistake) in [
        ("disable-require = 1".to_owned(), "disable-require: expected true or false, found integer"),
        ("swarm-resource = []".to_owned(), "swarm-resource: expected a string, found array"),
        ("supported-driver-capabilities = \"compute,fly\"".to_owned(), "supported-driver-capabilities: unknown capability \"fly\"; known are all, compat32"),
        ("features = 1".to_owned(), "features: expected a table, found integer"),
        ("[nvidia-container-cli]\nldconfig = true".to_owned(), "nvidia-container-cli.ldconfig: expected a string, found boolean"),
        ("[nvidia-container-cli]\nenvironment = [1]".to_owned(), "nvidia-container-cli.environment: expected a string, found integer"),
        ("[nvidia-container-cli]\nload-kmods = \"yes\"".to_owned(), "nvidia-container-cli.load-kmods: expected true or false, found string"),
        (format!("{RUNTIME}mode = \"fast\""), "nvidia-container-runtime.mode: invalid mode \"fast\"; known are auto, legacy, csv, cdi, jit-cdi"),
        (format!("{RUNTIME}debug = \"here\""), "nvidia-container-runtime.debug: \"here\" is not an absolute path"),
        (format!("{RUNTIME}runtimes = []"), "nvidia-container-runtime.runtimes: expected at least one runtime"),
        (format!("{RUNTIME}experimental = true\ndiscover-mode = \"cdi\""), "nvidia-container-runtime.discover-mode: invalid discover mode \"cdi\"; known are auto, legacy, csv"),
        (format!("{modes}cdi]\ndefault-kind = \"gpu\""), "nvidia-container-runtime.modes.cdi.default-kind: \"gpu\" is not a kind of CDI"),
        (format!("{modes}cdi]\nspec-dirs = [\"x\"]"), "nvidia-container-runtime.modes.cdi.spec-dirs: \"x\" is not an absolute path"),
        (format!("{modes}legacy]\ncuda-compat-mode = \"x\""), "nvidia-container-runtime.modes.legacy.cuda-compat-mode: unknown word \"x\"; known are ldconfig, mount, disabled, hook"),
        ("a = 1\nb =".to_owned(), "line 2: not valid TOML"),
    ] {
        let found = mistakes(&text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(mistake), "{found:?}");
    }
    assert_eq!(mistakes("disable-require = 1\nfeatures = 1\n").len(), 2);
}

#[test]
fn kinds_of_cdi() {
    let kind = |text: &str| {
        mistakes(&format!(
            "[nvidia-container-runtime.modes.cdi]\ndefault-kind = {text:?}"
        ))
    };
    for good in ["nvidia.com/gpu", "a/b", "a_-.9/c-9"] {
        assert_eq!(kind(good).len(), 0, "{good}");
    }
    for bad in ["", "/", "a/", "/b", "9a/b", "a-/b", "a/b/c", "a/b=c"] {
        assert_eq!(kind(bad).len(), 1, "{bad}");
    }
}

#[test]
fn keys_without_meaning_are_listed_with_the_reason() {
    let reading =
        Reading::of("[nvidia-container-cli]\nldconfig = \"@/sbin/ldconfig\"\nno-cgroups = false");
    assert_eq!(reading.idle, ["nvidia-container-cli.ldconfig"]);
    assert!(without_meaning("nvidia-container-cli.ldconfig")
        .unwrap()
        .contains("without ldconfig"));
    assert_eq!(without_meaning("nvidia-container-cli.no-cgroups"), None);
    assert!(is_known("nvidia-container-cli") && is_known("features"));
    assert!(!is_known("colour") && !is_known("nvidia-container"));
}

#[test]
fn a_named_file_has_to_exist() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    assert_eq!(load(&path, false).problem, None);
    let problem = load(&path, true).problem.unwrap().to_string();
    assert!(problem.contains("there is no such file"), "{problem}");
    std::os::unix::fs::symlink("gone", &path).unwrap();
    assert!(load(&path, false).problem.is_some());
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let problem = load(&path, false).problem.unwrap().to_string();
    assert!(problem.ends_with("is not a regular file"), "{problem}");
}

#[test]
fn a_file_that_other_users_may_write_does_not_count() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, "disable-require = true\ncolour = 1\n").unwrap();
    let loaded = load(&path, true);
    assert_eq!(
        (loaded.problem, loaded.config.disable_require),
        (None, true)
    );
    let expected = format!(
        "{}: colour: unknown key, which changes nothing",
        path.display()
    );
    assert_eq!(loaded.warnings, [expected]);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    let loaded = load(&path, true);
    assert!(!loaded.config.disable_require);
    assert!(loaded
        .problem
        .unwrap()
        .message
        .contains("is writable by everyone"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&path, "disable-require = true\nfeatures = 1\n").unwrap();
    let loaded = load(&path, true);
    assert!(loaded.config.disable_require, "what is right counts");
    let problem = loaded.problem.unwrap().to_string();
    assert!(
        problem.contains("config.toml: features: expected a table"),
        "{problem}"
    );
    std::fs::write(&path, b"swarm-resource = \"\xff\"").unwrap();
    assert!(load(&path, true)
        .problem
        .unwrap()
        .message
        .ends_with("is not valid UTF-8"));
}
