//! A recorded corpus: what the program does with specifications, vendor files, CDI files,
//! environments and command lines, compared byte for byte. `corpus/README.md` has the format;
//! `UPDATE_CORPUS=1` records it again; `CORPUS_ONLY=WORDS` plays the groups with these words in
//! their titles.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::support::{make_folders_above, need, program, runtime, Tree};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
const PROGRAM: &str = env!("CARGO_BIN_EXE_oci-decorator");

/// What the program said, with neither its path nor glibc's words for what musl says otherwise.
fn said_anywhere(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .replace(PROGRAM, "<program>")
        .replace("Too many levels of symbolic links", "Symbolic link loop")
}

#[test]
fn what_is_recorded_is_what_happens() {
    // As it is installed, with the runtime beside the program.
    let _ = std::os::unix::fs::symlink("oci-decorator", format!("{PROGRAM}-runtime"));
    // The libraries of its hosts are made by the machine's own linker.
    let here = need::need(cfg!(target_arch = "x86_64"), "x86-64");
    if !here || !need::root("the corpus has device nodes") {
        return;
    }
    // Runtimes make folders with what an engine's umask leaves.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let files: Vec<PathBuf> = sorted(Path::new(FOLDER), "cases");
    let played: Vec<Played> = std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| play(file))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut messages = String::from(HEAD);
    let mut known = BTreeSet::new();
    for (file, played) in files.iter().zip(&played) {
        let name = file.file_stem().unwrap().to_string_lossy();
        for (case, lines) in &played.messages {
            let new: Vec<_> = lines.lines().filter(|l| known.insert((*l).to_string())).collect();
            if !new.is_empty() {
                writeln!(messages, "\n{name}: {case}\n    {}", new.join("\n    ")).unwrap();
            }
        }
    }
    let mut differences = String::new();
    for (file, played) in files.iter().zip(&played) {
        differences += &compare(file, &played.recorded);
    }
    if only().is_some() {
        println!("{messages}");
    } else {
        differences += &compare(&Path::new(FOLDER).join("messages.txt"), &messages);
    }
    assert!(
        differences.is_empty(),
        "\n{differences}\nIf this is meant, record it: UPDATE_CORPUS=1 hooks/build.sh cargo test --test it corpus"
    );
}

const HEAD: &str = "\
What the program says, each line once, below the first case in which it says it: standard error,
reports for people, and the log (with the level). Read it as prose.
";

/// What the titles of the groups to play have.
fn only() -> Option<String> {
    std::env::var("CORPUS_ONLY").ok()
}

/// The difference between a recorded file and this text, which replaces it where that is asked for.
fn compare(file: &Path, text: &str) -> String {
    let recorded = fs::read_to_string(file).unwrap_or_default();
    if recorded == text {
        return String::new();
    }
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        fs::write(file, text).unwrap();
        return String::new();
    }
    let tree = Tree::new();
    tree.file("now", text);
    let diff = Command::new("diff").args(["-U2"]).arg(file).arg(tree.path("now")).output().unwrap();
    String::from_utf8_lossy(&diff.stdout).into_owned()
}

fn sorted(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == extension)).collect();
    found.sort();
    found
}

struct Played {
    recorded: String,
    messages: Vec<(String, String)>,
}

/// The set-up lines of a group, and the command of its cases.
#[derive(Default)]
struct Group {
    setup: Vec<String>,
    run: String,
    spec: String,
}

fn play(file: &Path) -> Played {
    let text = fs::read_to_string(file).unwrap();
    let mut played = Played { recorded: String::new(), messages: Vec::new() };
    let mut group = Group::default();
    let mut tree: Option<Tree> = None;
    let mut results = BTreeMap::new();
    let mut is_left_out = false;
    for line in text.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if key == "==" {
            is_left_out = only().is_some_and(|words| !rest.contains(&words));
        }
        if is_left_out || !line.starts_with("    ") {
            writeln!(played.recorded, "{line}").unwrap();
        }
        if is_left_out || line.starts_with("    ") {
            continue;
        }
        match key {
            "" | "#" => {}
            "==" => {
                group = Group::default();
                results.clear();
            }
            "run" => rest.clone_into(&mut group.run),
            "spec" => rest.clone_into(&mut group.spec),
            ">" | "$" | "&" => {
                if key != "&" {
                    tree = Some(Tree::new());
                    group.setup.iter().for_each(|line| prepare(tree.as_ref().unwrap(), line));
                }
                let tree = tree.as_ref().expect("a case before");
                let result =
                    if key == ">" { ask(tree, &group, &words(rest)) } else { command(tree, rest) };
                for line in shortened(&result.result, line, &mut results).lines() {
                    writeln!(played.recorded, "    {line}").unwrap();
                }
                played.messages.push((line.to_owned(), result.said));
            }
            _ => group.setup.push(line.to_owned()),
        }
    }
    played
}

/// A long result that a case of the group had before, but for the number of config.json, in one line.
fn shortened(result: &str, case: &str, results: &mut BTreeMap<String, String>) -> String {
    let (numbers, rest): (Vec<_>, Vec<_>) =
        result.lines().partition(|line| line.starts_with("config.json "));
    if rest.len() < 4 {
        return result.to_owned();
    }
    match results.entry(rest.join("\n")) {
        Entry::Occupied(known) => {
            format!("{}\nthe rest as {}", numbers.join("\n"), known.get()).trim().to_owned()
        }
        Entry::Vacant(free) => {
            free.insert(case.to_owned());
            result.to_owned()
        }
    }
}

/// Words as a shell reads them: quotes keep blanks.
fn words(line: &str) -> Vec<String> {
    let (mut found, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(q), _) if c == q => quote = None,
            (None, ' ') => found.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word);
    found
}

/// One line of set-up, in a tree.
fn prepare(tree: &Tree, line: &str) {
    let all = words(line);
    let word = |at: usize| all[at].as_str();
    let rest = |after: usize| line.splitn(after + 2, ' ').nth(after + 1).unwrap_or_default();
    match word(0) {
        "host" => {
            let text = fs::read_to_string(format!("{FOLDER}/hosts/{}", word(1))).unwrap();
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.for_each(|line| prepare(tree, line));
        }
        "folder" => _ = tree.folder(word(1)),
        "file" => {
            let content = fs::read_to_string(format!("{FOLDER}/files/{}", word(2))).unwrap();
            tree.file(word(1), content.replace("@/", &format!("{}/", tree.shown())));
        }
        "write" => {
            let content = rest(1).replace("\\n", "\n").replace("@/", &format!("{}/", tree.shown()));
            tree.file(word(1), content);
        }
        "add" => {
            let content = rest(1).replace("\\n", "\n").replace("@/", &format!("{}/", tree.shown()));
            let before = fs::read_to_string(tree.path(word(1))).unwrap_or_default();
            tree.file(word(1), before + &content + "\n");
        }
        "replace" => {
            let text = tree.text(word(1));
            assert!(text.contains(word(2)), "{line}: not in {text}");
            tree.file(word(1), text.replace(word(2), word(3)));
        }
        "link" => tree.link(word(1), &word(2).replace("@/", &format!("{}/", tree.shown()))),
        "remove" => {
            let path = tree.path(word(1));
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
        "mode" => {
            let mode = u32::from_str_radix(word(1), 8).unwrap();
            fs::set_permissions(tree.path(word(2)), PermissionsExt::from_mode(mode)).unwrap();
        }
        // A low-level runtime that only says how it was started.
        "low" => {
            static LOW: OnceLock<Tree> = OnceLock::new();
            let script = || {
                let tree = Tree::new();
                tree.script("low", "echo \"low ${0##*/} $*\"");
                tree
            };
            tree.link(
                &format!("bin/{}", word(1)),
                &LOW.get_or_init(script).path("low").to_string_lossy(),
            );
        }
        "owner" => {
            let owner = Some(word(1).parse().unwrap());
            std::os::unix::fs::chown(tree.path(word(2)), owner, None).unwrap();
        }
        "fifo" => {
            let mode = Mode::from_raw_mode(0o600);
            mknodat(CWD, tree.path(word(1)), FileType::Fifo, mode, 0).unwrap();
        }
        "library" => tree.library(word(1), all.get(2).map_or("", String::as_str), &[]),
        "node" => {
            let path = tree.path(word(1));
            make_folders_above(&path);
            let (major, minor) = word(2).split_once(':').unwrap();
            let number = makedev(major.parse().unwrap(), minor.parse().unwrap());
            mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(0o600), number)
                .unwrap();
            let mode = u32::from_str_radix(all.get(3).map_or("666", String::as_str), 8).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let group = all.get(4).map(|group| group.parse().unwrap());
            std::os::unix::fs::chown(&path, None, group).unwrap();
        }
        other => panic!("unknown set-up {other:?}: {line}"),
    }
}

struct Outcome {
    result: String,
    said: String,
}

/// Makes the case's specification, lets the group's command edit it, and edits it again.
fn ask(tree: &Tree, group: &Group, asked: &[String]) -> Outcome {
    let spec = fs::read_to_string(format!("{FOLDER}/specs/{}.json", group.spec)).unwrap();
    let spec = spec.replace("@/", &format!("{}/", tree.shown()));
    let mut spec: Value = serde_json::from_str(&spec).unwrap();
    let mut variables = Vec::new();
    let mut raw = None;
    for word in asked {
        let push = |spec: &mut Value, at: &str, item: Value| {
            let mut place = &mut *spec;
            let (parents, last) = at.rsplit_once('/').unwrap();
            for key in parents.split('/').filter(|key| !key.is_empty()) {
                place = &mut place[key];
            }
            if place[last].is_null() {
                place[last] = json!([]);
            }
            place[last].as_array_mut().unwrap().push(item);
        };
        if let Some(text) = word.strip_prefix("text:") {
            raw = Some(text.replace("\\n", "\n"));
        } else if let Some((name, value)) = word.strip_prefix('%').and_then(|w| w.split_once('=')) {
            variables.push((name.to_owned(), value.replace("@/", &format!("{}/", tree.shown()))));
        } else if let Some((key, value)) = word.strip_prefix('@').and_then(|w| w.split_once('=')) {
            spec["annotations"][key] = json!(value);
        } else if let Some(capability) = word.strip_prefix('+') {
            push(&mut spec, "/process/capabilities/bounding", json!(capability));
        } else if let Some(path) = word.strip_prefix("hook:") {
            push(&mut spec, "/hooks/prestart", json!({"path": path, "args": [path, "prestart"]}));
        } else if let Some(id) = word.strip_prefix("device:") {
            let destination = format!("/var/run/nvidia-container-devices/{id}");
            push(
                &mut spec,
                "/mounts",
                json!({"destination": destination, "source": "/dev/null", "type": "bind"}),
            );
        } else if let Some((from, to)) = word.strip_prefix("mount:").and_then(|w| w.split_once(':'))
        {
            let source = from.replace("@/", &format!("{}/", tree.shown()));
            push(
                &mut spec,
                "/mounts",
                json!({"destination": to, "source": source, "type": "bind", "options": ["rbind"]}),
            );
        } else if let Some((pointer, value)) =
            word.strip_prefix('/').and_then(|w| w.split_once('='))
        {
            let mut place = &mut spec;
            for key in pointer.split('/') {
                place = match key.parse::<usize>() {
                    Ok(at) => &mut place[at],
                    Err(_) => &mut place[key],
                };
            }
            let value = value.replace("@/", &format!("{}/", tree.shown()));
            *place = serde_json::from_str(&value).unwrap();
        } else {
            push(&mut spec, "/process/env", json!(word));
        }
    }
    // As engines write it: on one line, and with a member that nobody knows.
    let before = raw.unwrap_or_else(|| spec.to_string());
    tree.file("bundle/config.json", &before);
    let run: Vec<String> = words(&group.run);
    if run[0] == "hook" {
        return hooked(tree, &spec, &run[1..], &variables);
    }
    let is_filter = run.iter().any(|word| word == "precreate");
    let mut outcome = start(tree, &run, &variables, is_filter.then_some(&before));
    if is_filter || raw_is_broken(&before) {
        return outcome;
    }
    let after = tree.text("bundle/config.json");
    start(tree, &run, &variables, None);
    if tree.text("bundle/config.json") != after {
        outcome.result += "a second start differs\n";
    }
    outcome
}

fn raw_is_broken(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_err()
}

/// Where the program's coverage is measured, the file for it.
fn profile() -> Option<String> {
    std::env::var("LLVM_PROFILE_FILE").ok()
}

/// Runs a command with the state of the bundle on standard input, or a line of set-up.
fn command(tree: &Tree, line: &str) -> Outcome {
    let verb = line.split(' ').next().unwrap_or_default();
    if matches!(verb, "write" | "add" | "replace" | "remove" | "node" | "link" | "mode" | "library")
    {
        prepare(tree, line);
        return Outcome { result: String::new(), said: String::new() };
    }
    let line = words(line);
    let split = line.iter().position(|word| !word.starts_with('%')).unwrap();
    let variables: Vec<_> = line[..split]
        .iter()
        .map(|word| word[1..].split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.replace("@/", &format!("{}/", tree.shown()))))
        .collect();
    start(tree, &line[split..], &variables, None)
}

/// Starts the program under a name. What it does is the outcome.
fn start(
    tree: &Tree,
    line: &[String],
    variables: &[(String, String)],
    input: Option<&str>,
) -> Outcome {
    let shown = tree.shown();
    let before = snapshot(tree);
    let config = fs::read_to_string(tree.path("bundle/config.json")).unwrap_or_default();
    let _ = fs::remove_file(tree.path("log"));
    let state = json!({"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 1, "bundle": tree.path("bundle")});
    let input = input.map_or_else(|| state.to_string(), str::to_owned);
    let folder = [("bundle/rootfs", line[0] == "nvidia-cdi-hook"), ("bundle", true), ("", true)];
    let folder = folder.iter().find(|(folder, fits)| *fits && tree.path(folder).is_dir());
    let nvidia = tree.path("nvidia.toml");
    let mut child = program(&line[0])
        .args(line[1..].iter().map(|word| {
            word.replace("@/", &format!("{shown}/")).replace("=@", &format!("={shown}"))
        }))
        .env_clear()
        .env("PATH", format!("{shown}/bin"))
        .envs(profile().map(|path| ("LLVM_PROFILE_FILE", path)))
        .env("OCI_DECORATOR_CONFIG", tree.path("config.toml"))
        .envs(nvidia.is_file().then_some(("NVIDIA_CTK_CONFIG_FILE_PATH", &nvidia)))
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(tree.path(folder.unwrap().0))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let fed = input.clone();
    let feeder = std::thread::spawn(move || {
        use std::io::Write;
        let _ = stdin.write_all(fed.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    let neutral = |bytes: &[u8]| {
        let text = said_anywhere(bytes);
        text.replace(&shown, "@").replace(env!("CARGO_PKG_VERSION"), "<version>")
    };
    let mut outcome = Outcome { result: String::new(), said: neutral(&output.stderr) };
    match output.status.code() {
        Some(0) => {}
        code => writeln!(outcome.result, "exit {}", code.unwrap_or(-1)).unwrap(),
    }
    let printed = neutral(&output.stdout);
    if line.iter().any(|word| word == "precreate") {
        outcome.result += &spec_changes(&neutral(input.as_bytes()), &printed);
    } else if line.iter().any(|word| word == "--dry-run")
        || line.get(1).is_some_and(|word| word == "config")
    {
        shown_text(&mut outcome.result, &printed);
    } else if let Some(value) = document(&printed) {
        judge_cdi(&mut outcome.result, &output.stdout);
        value_lines(&mut outcome.result, "", &brief_cdi(masked(value, &mut outcome.said)), 0);
    } else if let Some(low) = printed.strip_prefix("low ") {
        write!(outcome.result, "started {low}").unwrap();
    } else {
        outcome.said += &printed;
    }
    let edited = fs::read(tree.path("bundle/config.json")).unwrap_or_default();
    outcome.result += &spec_changes(&neutral(config.as_bytes()), &neutral(&edited));
    changed_files(&mut outcome, tree, &before, &neutral);
    add_log(&mut outcome.said, tree, &neutral);
    outcome
}

/// Adds the lines of the log, without their times.
fn add_log(said: &mut String, tree: &Tree, neutral: &dyn Fn(&[u8]) -> String) {
    let log = neutral(&fs::read(tree.path("log")).unwrap_or_default());
    for line in log.lines() {
        writeln!(said, "log: {}", line.split_once(' ').map_or(line, |(_, rest)| rest)).unwrap();
    }
}

/// Where `CDI_VALIDATOR` names a program, what it says of a specification, which is a failure.
fn judge_cdi(out: &mut String, text: &[u8]) {
    let Some(validator) = std::env::var_os("CDI_VALIDATOR") else {
        return;
    };
    let shown = String::from_utf8_lossy(text);
    if shown.contains("cdiVersion") && shown.contains("containerEdits") {
        let suffix = if shown.starts_with('{') { "json" } else { "yaml" };
        let tree = Tree::new();
        let file = tree.file(&format!("spec.{suffix}"), text);
        let output = Command::new(validator).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            writeln!(out, "CDI_VALIDATOR: {line}").unwrap();
        }
    }
}

/// A document of JSON, or of YAML, which has lists or tables.
fn document(text: &str) -> Option<Value> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    let text = text
        .strip_prefix('#')
        .map_or(text, |rest| rest.split_once('\n').map_or("", |(_, rest)| rest));
    if !text.starts_with("---") {
        return None;
    }
    let documents = yaml_rust2::YamlLoader::load_from_str(text).ok()?;
    Some(of_yaml(documents.first()?))
}

fn of_yaml(yaml: &yaml_rust2::Yaml) -> Value {
    use yaml_rust2::Yaml;
    match yaml {
        Yaml::Hash(map) => {
            let pairs = map
                .iter()
                .map(|(key, value)| (key.as_str().unwrap_or_default().to_owned(), of_yaml(value)));
            Value::Object(pairs.collect())
        }
        Yaml::Array(items) => items.iter().map(of_yaml).collect(),
        Yaml::Integer(number) => json!(number),
        Yaml::Boolean(flag) => json!(flag),
        Yaml::String(text) | Yaml::Real(text) => json!(text),
        _ => Value::Null,
    }
}

/// Prose becomes a mark, because its words are in `messages.txt`.
fn masked(value: Value, said: &mut String) -> Value {
    match value {
        Value::String(text)
            if text.matches(' ').count() >= 3 && !text.contains("\\n") && !text.contains('{') =>
        {
            writeln!(said, "{}", text.replace('\n', "⏎")).unwrap();
            json!("…")
        }
        Value::Array(items) => items.into_iter().map(|item| masked(item, said)).collect(),
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(key, value)| (key, masked(value, said))).collect())
        }
        other => other,
    }
}

const WIDTH: usize = 180;

/// The usual forms of CDI's nodes and mounts in fewer words.
fn brief_cdi(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(brief_cdi).collect(),
        Value::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
            let keys: Vec<_> = map.keys().map(String::as_str).collect();
            let at = |source: String, target: String| match source.strip_suffix(&target) {
                Some(root) => format!("{root}|{target}"),
                None => format!("{source} at {target}"),
            };
            match keys[..] {
                ["hostPath", "path"] => json!(at(text("hostPath"), text("path"))),
                ["args", "env", "hookName", "path"]
                    if map["env"] == json!(["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]) =>
                {
                    let words = map["args"].to_string().replace(['[', ']', '"'], "");
                    json!(format!("{} {} {words}", text("hookName"), text("path")))
                }
                ["containerPath", "hostPath", "options"] => {
                    let options = map["options"].to_string().replace(['[', ']', '"'], "");
                    json!(format!("{} {options}", at(text("hostPath"), text("containerPath"))))
                }
                _ => Value::Object(
                    map.into_iter().map(|(key, value)| (key, brief_cdi(value))).collect(),
                ),
            }
        }
        other => other,
    }
}

/// A value on one line where it fits, else a line for each member.
fn value_lines(out: &mut String, label: &str, value: &Value, depth: usize) {
    let whole = value.to_string();
    let indent = "  ".repeat(depth);
    if whole.len() + label.len() + indent.len() <= WIDTH {
        writeln!(out, "{indent}{label}{whole}").unwrap();
        return;
    }
    match value {
        Value::Object(map) => {
            writeln!(out, "{indent}{label}{{").unwrap();
            map.iter()
                .for_each(|(key, value)| value_lines(out, &format!("{key}: "), value, depth + 1));
            writeln!(out, "{indent}}}").unwrap();
        }
        Value::Array(items) => {
            writeln!(out, "{indent}{label}[").unwrap();
            for value in items {
                value_lines(out, "", value, depth + 1);
            }
            writeln!(out, "{indent}]").unwrap();
        }
        _ => writeln!(out, "{indent}{label}{whole}").unwrap(),
    }
}

/// What changed in a specification, and a number for all its bytes.
fn spec_changes(before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let mut out = format!("config.json {:08x}\n", number_of(after));
    match (serde_json::from_str(before), serde_json::from_str(after)) {
        (Ok(before), Ok(after)) => value_changes(&mut out, "", &before, &after),
        _ => shown_text(&mut out, after),
    }
    out
}

/// FNV-1a: the same on every machine.
fn number_of(text: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

fn value_changes(out: &mut String, at: &str, before: &Value, after: &Value) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(old), Value::Object(new)) => {
            let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
            let none = |key: &str| {
                if key.contains("evices") || key == "mounts" {
                    json!([])
                } else {
                    Value::Null
                }
            };
            for key in keys {
                let at = format!("{at}.{key}");
                match (old.get(key), new.get(key)) {
                    (Some(old), Some(new)) => value_changes(out, &at, old, new),
                    (None, Some(new)) if new.is_array() => value_changes(out, &at, &none(key), new),
                    (None, Some(new)) => writeln!(out, "{at} + {new}").unwrap(),
                    (old, _) => writeln!(out, "{at} - {}", old.unwrap()).unwrap(),
                }
            }
        }
        (Value::Null, Value::Array(_)) => value_changes(out, at, &json!([]), after),
        (Value::Array(old), Value::Array(new)) => {
            let front = old.iter().zip(new).take_while(|(a, b)| a == b).count();
            let (old, new) = (&old[front..], &new[front..]);
            let back = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
            old[..old.len() - back]
                .iter()
                .for_each(|item| writeln!(out, "{at} - {}", brief(item)).unwrap());
            new[..new.len() - back]
                .iter()
                .for_each(|item| writeln!(out, "{at} + {}", brief(item)).unwrap());
        }
        _ => writeln!(out, "{at} = {after}").unwrap(),
    }
}

/// The usual forms of devices and mounts in fewer words; any other one whole.
fn brief(item: &Value) -> String {
    let text = |key: &str| item[key].as_str().unwrap_or("?").to_owned();
    let keys = item.as_object().map(|map| map.keys().map(String::as_str).collect::<BTreeSet<_>>());
    let is =
        |names: &[&str]| keys.as_ref().is_some_and(|keys| *keys == names.iter().copied().collect());
    if is(&["path", "type", "major", "minor", "fileMode", "uid", "gid"]) {
        let mode = item["fileMode"].as_u64().unwrap_or_default();
        let owner = format!("{}:{}", item["uid"], item["gid"]);
        return format!(
            "{} {} {}:{} {mode:o} {owner}",
            text("path"),
            text("type"),
            item["major"],
            item["minor"]
        );
    }
    if is(&["allow", "type", "major", "minor", "access"]) {
        let verb = if item["allow"] == true { "allow" } else { "deny" };
        return format!(
            "{verb} {} {}:{} {}",
            text("type"),
            item["major"],
            item["minor"],
            text("access")
        );
    }
    if is(&["destination", "type", "source", "options"]) {
        let options = item["options"].to_string().replace(['[', ']', '"'], "");
        let (source, destination) = (text("source"), text("destination"));
        let at = match source.strip_suffix(&destination) {
            Some(root) => format!("{root}|{destination}"),
            None => format!("{source} at {destination}"),
        };
        return format!("{at} {} {options}", text("type"));
    }
    item.to_string()
}

fn shown_text(out: &mut String, text: &str) {
    text.lines().for_each(|line| writeln!(out, "| {line}").unwrap());
    if !text.is_empty() && !text.ends_with('\n') {
        writeln!(out, "| (no end of line)").unwrap();
    }
}

type Files = BTreeMap<String, (u32, u64, Vec<u8>)>;

/// Every file below, with its mode, device number and content.
fn snapshot(tree: &Tree) -> Files {
    let mut files = Files::new();
    let _ = fs::remove_dir_all(tree.path("state"));
    for name in tree.listing() {
        if matches!(name.as_str(), "log" | "bundle/config.json") || name.starts_with("bin") {
            continue;
        }
        let path = tree.path(&name);
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if kind.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let number = if kind.is_char_device() { found.rdev() } else { 0 };
        files.insert(name, (found.mode(), number, content));
    }
    files
}

fn changed_files(
    outcome: &mut Outcome,
    tree: &Tree,
    before: &Files,
    neutral: &dyn Fn(&[u8]) -> String,
) {
    let after = snapshot(tree);
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        writeln!(outcome.result, "removed {name}").unwrap();
    }
    for (name, new) in &after {
        if before.get(name) == Some(new) {
            continue;
        }
        let (mode, number, content) = new;
        let (kind, mode) = (mode & 0o170_000, mode & 0o7777);
        let verb = if before.contains_key(name) { "changed" } else { "new" };
        let usual = mode == if kind == 0o040_000 { 0o755 } else { 0o644 };
        let mode = if usual || kind == 0o120_000 { String::new() } else { format!(" {mode:o}") };
        let text = neutral(content);
        match kind {
            0o040_000 => writeln!(outcome.result, "{verb} {name}/{mode}").unwrap(),
            0o120_000 => writeln!(outcome.result, "{verb} {name} -> {text}").unwrap(),
            0o020_000 => {
                let (major, minor) = (rustix::fs::major(*number), rustix::fs::minor(*number));
                writeln!(outcome.result, "{verb} {name} c {major}:{minor}{mode}").unwrap();
            }
            _ => {
                writeln!(outcome.result, "{verb} {name}{mode}").unwrap();
                let mut lines = String::new();
                if name.ends_with("ld.so.cache") {
                    let cache = Command::new("/sbin/ldconfig")
                        .arg("-pC")
                        .arg(tree.path(name))
                        .output()
                        .unwrap();
                    let text = neutral(&cache.stdout);
                    text.lines()
                        .skip(1)
                        .filter(|l| l.starts_with('\t'))
                        .for_each(|l| writeln!(lines, "{}", l.trim()).unwrap());
                } else if let Some(value) = document(&text) {
                    judge_cdi(&mut lines, content);
                    let value = brief_cdi(masked(value, &mut outcome.said));
                    value_lines(&mut lines, "", &value, 0);
                } else {
                    shown_text(&mut lines, &text);
                }
                lines.lines().for_each(|line| writeln!(outcome.result, "  {line}").unwrap());
            }
        }
    }
}

/// Starts a container of the real runc with the program as its hook, and looks into it.
fn hooked(tree: &Tree, asked: &Value, words: &[String], variables: &[(String, String)]) -> Outcome {
    let mut outcome = Outcome { result: String::new(), said: String::new() };
    if runtime::find("runc").is_none() {
        return outcome;
    }
    let entries: Vec<_> =
        asked["process"]["env"].as_array().unwrap().iter().map(|e| e.as_str().unwrap()).collect();
    let mut spec = runtime::bundle(tree, &entries);
    spec["annotations"] = asked["annotations"].clone();
    if spec["annotations"].is_null() {
        spec.as_object_mut().unwrap().remove("annotations");
    }
    let is_passed = |mount: &&Value| mount["type"] == "bind" || mount["type"] == "tmpfs";
    let more = asked["mounts"].as_array().into_iter().flatten().filter(is_passed);
    spec["mounts"].as_array_mut().unwrap().extend(more.cloned());
    let (stage, arguments) = words.split_first().unwrap();
    let arguments: Vec<_> =
        arguments.iter().map(|word| word.replace("@/", &format!("{}/", tree.shown()))).collect();
    let environment: Vec<_> = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .chain(profile().map(|path| format!("LLVM_PROFILE_FILE={path}")))
        .collect();
    spec["hooks"] = json!({stage: [{"path": PROGRAM, "args": arguments, "env": environment}]});
    tree.file("bundle/config.json", spec.to_string());
    let before = snapshot(tree);
    let shown = tree.shown();
    let container = shown.rsplit("/.").next().unwrap_or_default();
    let neutral = |bytes: &[u8]| {
        let text = said_anywhere(bytes);
        text.replace(&shown, "@").replace(&format!("test{container}"), "c1")
    };
    let mut runc = Command::new("runc");
    match runtime::create(&mut runc, tree) {
        Err(_) => outcome.result += "refused\n",
        Ok(container) => {
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", container.pid)).unwrap();
            for line in mounts.lines() {
                let fields: Vec<_> = line.split(' ').collect();
                if !matches!(fields[4], "/" | "/proc" | "/dev") {
                    let options = fields[5].replace(",relatime", "");
                    writeln!(outcome.result, "mount {} {options}", fields[4]).unwrap();
                }
            }
            // Those of the runtime are links, a console, and nodes of the kernel's own.
            let mut nodes = Vec::new();
            find_nodes(&container.path("/dev"), &mut nodes);
            for (path, found) in
                nodes.iter().filter(|(_, found)| rustix::fs::major(found.rdev()) == 240)
            {
                let name = path.strip_prefix(container.path("/dev")).unwrap().display();
                let (major, minor) =
                    (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
                writeln!(
                    outcome.result,
                    "node /dev/{name} c {major}:{minor} {:o} {}:{}",
                    found.mode() & 0o777,
                    found.uid(),
                    found.gid()
                )
                .unwrap();
            }
        }
    }
    let _ = fs::remove_file(tree.path("pid"));
    let _ = fs::remove_file(tree.path("output"));
    changed_files(&mut outcome, tree, &before, &neutral);
    add_log(&mut outcome.said, tree, &neutral);
    outcome
}

fn find_nodes(folder: &Path, found: &mut Vec<(PathBuf, fs::Metadata)>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            find_nodes(&path, found);
        } else if about.file_type().is_char_device() {
            found.push((path, about));
        }
    }
}
