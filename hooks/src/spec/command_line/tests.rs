use super::*;

fn parse(line: &str) -> Arguments {
    let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    Arguments::parse(&words)
}

/// The bundles of a line, as `CONFIG CONTAINER`; "?" where they are in doubt.
fn made(line: &str) -> Vec<String> {
    let arguments = parse(line);
    let doubt = arguments.doubt.map(|_| "?".to_owned());
    let creates = arguments.creates.iter();
    let creates = creates.map(|c| format!("{} {}", c.config.display(), c.container));
    creates.chain(doubt).collect()
}

#[test]
fn lines_that_every_runtime_reads_alike() {
    for line in [
        "create --bundle /b id",
        "create --bundle=/b id",
        "create id --bundle /b",
        "create --bundle /a --bundle /b id",
        "create -b /b id",
        "restore --bundle /b --image-path /i --work-path /w -d id",
        "restore --image-path=/i --manage-cgroups-mode soft --empty-ns network id --bundle=/b",
        "run -d --pid-file /p -b /b --no-pivot id",
        "--root create --log run --log-format json --systemd-cgroup create --bundle /b --console-socket /s id",
        "--root=/r --debug create --pid-file run --bundle /b -- id",
        "--cgroup-manager cgroupfs --log=/l create -b /b id",
        "-- create -b /b id",
        // Options that no current runtime has.
        "--new create --bundle /b id",
        "--new value create --bundle /b id",
        "--new=value create --bundle /b id",
        "--new --debug --newer run create --bundle /b id",
        "create --new --bundle /b id",
        "create --new value --bundle /b id",
        "create --bundle /b --new=value id",
        "create --new value id --newer value --bundle /b",
        "-x create --bundle /b id",
        "-x/y create --bundle /b id",
    ] {
        assert_eq!(made(line), ["/b/config.json id"], "{line}");
    }
    assert_eq!(made("create id"), ["config.json id"]);
    assert_eq!(made("create --bundle= id"), ["config.json id"]);
    assert_eq!(made("create -b /b -- -b"), ["/b/config.json -b"]);
}

#[test]
fn lines_that_only_some_runtimes_take() {
    for line in [
        "create -bundle /b id", // runc
        "-root /r create -bundle /b id",
        "create -b/b id", // crun, youki
        "create id -b/b",
        "run -db/b id",
        "run -d -b/b id",
        "create --bund=/b id", // crun
        "create --b /b id",
        "--roo /r create --bun /b --pid /p id",
        "--roo=/r --lo /l create --bun=/b --con=/c id",
        "-l /l -r /r create -b /b id", // youki
        "-l/l -r/r create -c /c -p/p -b/b id",
    ] {
        assert!(made(line).contains(&"/b/config.json id".to_owned()), "{line}: {:?}", made(line));
        assert_eq!(parse(line).doubt, None, "{line}");
    }
}

#[test]
fn lines_that_runtimes_read_differently_have_every_bundle() {
    for (line, expected) in [
        // runc and youki leave the sign out, crun does not.
        ("create -b=/b id", &["/b/config.json id", "=/b/config.json id"][..]),
        // runc takes this for a name, crun for -b with a value.
        ("create -bundle=/b id", &["/b/config.json id", "undle=/b/config.json id"]),
        // Either an option or the value of an option.
        ("create --new --bundle=/b id", &["/b/config.json id", "config.json id"]),
        ("run -f c.json id", &["c.json id"]),
        ("run -b /b -f c.json id", &["c.json id", "/b/c.json id"]),
        ("run -b /b --config=/c.json id", &["/c.json id"]),
        ("run -b /b --config config.json id", &["/b/config.json id"]),
    ] {
        let mut found = made(line);
        found.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn other_commands_are_not_ours() {
    for line in [
        "",
        "--version",
        "state create",
        "delete --force run",
        "--root create state x",
        "features",
        "exec id create",
        "checkpoint --image-path /i id",
        "--log",
        "unheard-of --bundle /b create",
        "--new create state x",
        "help create",
    ] {
        assert_eq!(made(line), Vec::<String>::new(), "{line}");
    }
}

#[test]
fn a_line_that_can_not_be_understood_is_in_doubt() {
    for (line, config) in [
        ("create", "config.json "),
        ("create --bundle /b", "/b/config.json "),
        ("create --bundle /b one two", "/b/config.json one"),
        ("create id --bundle", "config.json id"),
        // `state` of a container without a name, or a container called "state".
        ("--new create state", "config.json state"),
    ] {
        assert_eq!(made(line), [config, "?"], "{line}");
    }
    let many = "create --bundle /b ".to_owned() + &"--new ".repeat(50) + "id";
    assert_eq!(parse(&many).doubt, Some(MANY));
    assert!(made(&many).contains(&"/b/config.json id".to_owned()));
}

#[test]
fn log_options() {
    for line in [
        "--log /l --log-format json create x",
        "-log /l -log-format=json create x",
        "-l /l --log-format json create",
        "--log /k --log /l --log-form=json state x",
    ] {
        let arguments = parse(line);
        assert_eq!(arguments.log, Some("/l".into()), "{line}");
        assert_eq!(arguments.log_format, LogFormat::Json, "{line}");
    }
    let text = parse("--log-format json --log-format=text create x");
    assert_eq!(text.log_format, LogFormat::Text);
    assert_eq!(parse("--log").log, None);
}
