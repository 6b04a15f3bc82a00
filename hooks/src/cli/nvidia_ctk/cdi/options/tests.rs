use super::*;

fn parse(verb: Verb, words: &[&str], variables: &[(&str, &str)]) -> Result<Options> {
    let parser = lexopt::Parser::from_args(words);
    Options::parse(verb, parser, |name| {
        let mut all = variables.iter();
        let found = all.find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

/// The options as text, to compare what an option or its variable changes.
fn shown(options: &Options) -> String {
    format!("{options:?}")
}

#[test]
fn every_variable_stands_for_its_option_and_the_option_counts() {
    for (names, variable) in [GENERATE, LIST].concat() {
        let Some(variable) = variable else {
            continue;
        };
        let verb = if variable == "NVIDIA_CTK_CDI_SPEC_DIRS" {
            Verb::List
        } else {
            Verb::Generate
        };
        let (value, other) = match names[0] {
            "format" => ("json", "yaml"),
            "mode" => ("imex", "csv"),
            "device-name-strategy" => ("uuid", "index"),
            "no-all-device" => ("true", "false"),
            _ => ("a", "b"),
        };
        let usual = shown(&parse(verb, &[], &[]).unwrap());
        let by_variable = shown(&parse(verb, &[], &[(variable, value)]).unwrap());
        assert_ne!(by_variable, usual, "{variable}");
        for name in names {
            let option = format!("--{name}={value}");
            let by_option = parse(verb, &[&option], &[]).unwrap();
            let own = by_variable.replace(variable, &format!("--{name}"));
            assert_eq!(shown(&by_option), own, "{variable}");
            let both = parse(verb, &[&option], &[(variable, other)]).unwrap();
            assert_eq!(shown(&both), shown(&by_option), "{variable}");
        }
        let empty = parse(verb, &[], &[(variable, "")]).unwrap();
        assert_eq!(shown(&empty), usual, "{variable}");
    }
}

#[test]
fn lists_are_read_the_same_way_everywhere() {
    let words = ["--device-id=0, 1", "--device-id", "GPU-a,"];
    let options = parse(Verb::Generate, &words, &[]).unwrap();
    assert_eq!(options.ids, ["0", "1", "GPU-a"]);
    let variable = [("NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS", "0, 1,GPU-a")];
    let options = parse(Verb::Generate, &[], &variable).unwrap();
    assert_eq!(options.ids, ["0", "1", "GPU-a"]);
    let variable = [("NVIDIA_CTK_CDI_SPEC_DIRS", "/a,/b")];
    let options = parse(Verb::List, &[], &variable).unwrap();
    assert_eq!(options.folders, [Path::new("/a"), Path::new("/b")]);
}

#[test]
fn a_mistake_names_who_made_it() {
    const MODE: &str = "NVIDIA_CTK_CDI_GENERATE_MODE";
    const ALL: &str = "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE";
    for (words, variable, part) in [
        (&["--mode=x"][..], (MODE, "csv"), "--mode \"x\": known are"),
        (
            &["--discovery-mode=x"],
            (MODE, ""),
            "--discovery-mode \"x\"",
        ),
        (
            &[],
            (MODE, "x"),
            "NVIDIA_CTK_CDI_GENERATE_MODE \"x\": known",
        ),
        (&[], (ALL, "yes"), "NO_ALL_DEVICE \"yes\": known are true"),
        (&["--enable-hook=all"], (ALL, ""), "name each hook"),
        (&["--spec-dir=/a"], (ALL, ""), "unknown option --spec-dir"),
    ] {
        let error = parse(Verb::Generate, words, &[variable]).unwrap_err();
        assert_eq!(error.code, 2);
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(parse(Verb::Generate, &["--no-all-device", "--debug"], &[]).is_ok());
    let unused = parse(Verb::Generate, &[], &[("NVIDIA_CTK_DRIVER_ROOT", "/run")]);
    assert_eq!(unused.unwrap().unused, ["NVIDIA_CTK_DRIVER_ROOT"]);
}
