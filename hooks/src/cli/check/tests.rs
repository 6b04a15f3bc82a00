use super::*;
use crate::config::settings::Settings;
use crate::model::policy::{OnRefusal, Who};

const GOOD: &str = r#"{"version":"1","activation_flag":"X","driver_feature":["a"],"inventory":
    {"a":{"libraries":["/lib/there.so","/lib/absent.so"]},"b":{"directories":["/d"]}}}"#;

/// A host with these vendor files, and its settings.
fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Loaded) {
    let dir = tempfile::tempdir().unwrap();
    let config_dir = dir.path().join("conf.d");
    for folder in ["conf.d", "lib", "dev"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    std::fs::write(dir.path().join("lib/there.so"), "").unwrap();
    for (name, text) in files {
        std::fs::write(config_dir.join(name), text).unwrap();
    }
    let settings = Settings {
        config_dir,
        root: dir.path().to_owned(),
        ..Settings::default()
    };
    let loaded = Loaded {
        settings,
        ..Loaded::default()
    };
    (dir, loaded)
}

fn ask(loaded: &Loaded, environment: &[&str]) -> Answer {
    answer_to(loaded, environment, false)
}

fn answer_to(loaded: &Loaded, environment: &[&str], privileged: bool) -> Answer {
    let environment: Vec<String> = environment.iter().map(|&e| e.to_owned()).collect();
    let said = Said {
        environment: &environment,
        privileged,
        ..Said::default()
    };
    let question = Question {
        loaded,
        said,
        nvidia: &loaded.settings.root.join("nvidia.toml"),
    };
    answer(&question).unwrap()
}

#[test]
fn the_code_says_what_is_wrong() {
    let rooted = GOOD.replace("\"version\"", "\"root\":\"/store\",\"version\"");
    let other = GOOD.replace("\"X\"", "\"Y\"");
    for (files, environment, code) in [
        (&[("x.json", GOOD)][..], &[][..], exit::DONE),
        (&[("x.json", GOOD)], &["X=all"], exit::DONE),
        (&[("x.json", GOOD)], &["X=none"], exit::DONE),
        (&[("x.json", GOOD)], &["X=c"], exit::USAGE),
        (
            &[("x.json", GOOD), ("y.json", &other)],
            &["X", "Y"],
            exit::DONE,
        ),
        (&[("x.json", GOOD), ("y.json", GOOD)], &[], exit::USAGE),
        (&[("x.json", "{")], &["Z=all"], exit::USAGE),
        (&[("x.json", &rooted)], &["X"], exit::NOT_FOUND),
        (&[("x.json", &rooted)], &[], exit::DONE),
        (&[], &["X"], exit::NOT_FOUND),
    ] {
        let (_dir, loaded) = host(files);
        assert_eq!(ask(&loaded, environment).code(), code, "{environment:?}");
    }
    let (_dir, mut loaded) = host(&[("x.json", GOOD)]);
    loaded.problem = Some(Error::usage("config.toml: colour: unknown key"));
    let answer = ask(&loaded, &[]);
    assert_eq!(answer.code(), exit::USAGE);
    assert!(answer
        .text()
        .starts_with("config.toml: colour: unknown key\n"));
}

#[test]
fn a_flag_that_two_files_claim_is_a_mistake_of_the_second() {
    let (dir, loaded) = host(&[("x.json", GOOD), ("y.json", GOOD)]);
    let text = ask(&loaded, &[]).text();
    let folder = dir.path().join("conf.d");
    let folder = folder.display();
    assert!(text.contains(&format!("{folder}/x.json: ok\n")), "{text}");
    let claimed =
        format!("{folder}/y.json: activation_flag: X is claimed by {folder}/x.json too\n");
    assert!(text.contains(&claimed), "{text}");
}

#[test]
fn each_file_and_device_is_there_or_missing() {
    let (_dir, loaded) = host(&[("x.json", GOOD)]);
    let text = ask(&loaded, &["X=a"]).text();
    assert!(text.contains("\nX (x, 1): a\n"), "{text}");
    assert!(
        text.contains("  ok      file      /lib/there.so [a]"),
        "{text}"
    );
    assert!(
        text.contains("  missing file      /lib/absent.so [a] "),
        "{text}"
    );
    assert!(!text.contains("/d ["), "{text}");
    let report: serde_json::Value = serde_json::from_str(&ask(&loaded, &[]).json()).unwrap();
    let items = report["vendors"][0]["items"].as_array().unwrap();
    let present: Vec<_> = items.iter().map(|item| &item["present"]).collect();
    assert_eq!(present, [true, false, true]);
    let (_dir, loaded) = host(&[]);
    assert!(ask(&loaded, &[])
        .text()
        .contains("conf.d: no vendor files\n"));
}

#[test]
fn what_the_policy_leaves_out_is_reported_or_refused() {
    let (_dir, mut loaded) = host(&[("x.json", GOOD)]);
    loaded.settings.policy.environment = Who::Privileged;
    let asking = ask(&loaded, &["X=a"]);
    assert_eq!((asking.code(), asking.vendors.len()), (exit::DONE, 0));
    assert_eq!(asking.ignored.len(), 1);
    assert!(asking.text().contains(&asking.ignored[0]));
    let privileged = answer_to(&loaded, &["X=a"], true);
    assert_eq!((privileged.vendors.len(), privileged.ignored.len()), (1, 0));
    loaded.settings.policy.on_refusal = OnRefusal::Fail;
    let refused = ask(&loaded, &["X=a"]);
    assert_eq!(refused.code(), exit::FAILED);
    assert!(refused
        .text()
        .contains("start refused: X of the container's environment"));
}
