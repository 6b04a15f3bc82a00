use super::*;

fn parse(line: &str) -> Arguments {
    let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    Arguments::parse(&words)
}

/// The bundles of a line, as `CONFIG CONTAINER`; "?" where they are ambiguous.
fn made(line: &str) -> Vec<String> {
    let arguments = parse(line);
    let ambiguity = arguments.ambiguity.map(|_| "?".to_owned());
    let creates = arguments.creates.iter();
    let creates = creates.map(|c| format!("{} {}", c.config.display(), c.container));
    creates.chain(ambiguity).collect()
}

#[test]
fn a_line_has_its_bundles_or_none_or_is_ambiguous() {
    let b = &["/b/config.json id"][..];
    for (line, expected) in [
        ("create --bundle /b id", b),
        ("create --bundle=/b id", b),
        ("create id --bundle /b", b),
        ("create --bundle /a --bundle /b id", b),
        ("restore --image-path=/i --manage-cgroups-mode soft --empty-ns network id --bundle=/b", b),
        ("run -d --pid-file /p -b /b --no-pivot id", b),
        ("--root create --log run --log-format json --systemd-cgroup create -b /b id", b),
        ("--root=/r --debug create --pid-file run --bundle /b -- id", b),
        ("-l /l -r /r create -b /b id", b), // youki
        ("create id", &["config.json id"]),
        ("create --bundle= id", &["config.json id"]),
        ("create -b /b -- -b", &["/b/config.json -b"]),
        ("run -b /b -f c.json id", &["c.json id", "/b/c.json id"]),
        ("run -b /b --config config.json id", b),
        // Commands that make no container, whatever follows.
        ("", &[]),
        ("--version", &[]),
        ("state create", &[]),
        ("--root create state x", &[]),
        ("exec id create", &[]),
        ("--log", &[]),
        ("--new state x", &[]),
        ("unheard-of --bundle /b create", &[]),
        // Unknown options: what the line may name.
        ("create --new --bundle /b id", &["/b/config.json id", "config.json id", "?"]),
        ("create --new=value --bundle=/b id", &["/b/config.json id", "config.json id", "?"]),
        ("--new value create --bundle /b id", &["/b/config.json ", "config.json ", "?"]),
        ("--new create state x", &["config.json state", "?"]),
        ("create", &["config.json ", "?"]),
        ("create --bundle /b one two", &["/b/config.json one", "config.json one", "?"]),
        // What hides a bundle.
        ("create -b/b id", &["?"]),
        ("create -b=/b id", &["?"]),
        ("create -bundle /b id", &["?"]),
        ("create --bund=/b id", &["?"]),
        ("run -db/b id", &["?"]),
        ("run --new --config /c id", &["?"]),
        ("-x create --bundle /b id", &["?"]),
    ] {
        assert_eq!(made(line), expected, "{line}");
    }
}

#[test]
fn log_options() {
    for line in [
        "--log /l --log-format json create x",
        "-l /l --log-format=json create",
        "--log /k --log /l --log-format=json state x",
    ] {
        let arguments = parse(line);
        assert_eq!(arguments.log, Some("/l".into()), "{line}");
        assert_eq!(arguments.log_format, LogFormat::Json, "{line}");
    }
    let text = parse("--log-format json --log-format=text create x");
    assert_eq!(text.log_format, LogFormat::Text);
    assert_eq!(parse("--log").log, None);
}
