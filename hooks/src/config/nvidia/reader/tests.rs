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
