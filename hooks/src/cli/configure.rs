//! `oci-decorator configure`, and the code that it shares with `nvidia-ctk runtime configure`.

mod report;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::go_flags::{Known, Takes, Words};
use super::print;
use crate::engines::hooks_d::{self, Hook};
use crate::engines::plan::{self, Done, Job};
use crate::engines::{containerd, crio, files, record, Engine, Wanted};
use crate::error::{exit, Error, Result};

const HELP: &str = include_str!("configure.txt");

const KNOWN: &[Known] = &[
    (&["help", "h"], Takes::Nothing),
    (&["set-as-default"], Takes::Nothing),
    (&["cdi"], Takes::Nothing),
    (&["runtime-name"], Takes::Value),
    (&["runtime-path"], Takes::Value),
    (&["config"], Takes::Value),
    (&["drop-in-config"], Takes::Value),
    (&["config-mode"], Takes::Value),
    (&["hook-folder"], Takes::Value),
    (&["record"], Takes::Value),
    (&["dry-run"], Takes::Nothing),
    (&["remove"], Takes::Nothing),
    (&["json"], Takes::Nothing),
];

const NAME_AN_ENGINE: &str =
    "name docker, containerd, crio or podman, for example: oci-decorator configure docker";

/// A part of a command line, or what is wrong with it.
type Parsed<T> = std::result::Result<T, String>;

/// The parsed command line.
// Each is an option of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug)]
pub struct Order {
    pub engine: Engine,
    pub wanted: Wanted,
    /// The engine's file, if it is not the default one.
    pub config: Option<PathBuf>,
    /// A file beside containerd's.
    pub drop_in: Option<PathBuf>,
    /// Hooks to add instead of the runtime.
    pub hooks: Option<Vec<Hook>>,
    pub record: PathBuf,
    pub is_removed: bool,
    pub is_dry: bool,
    pub is_json: bool,
    pub is_quiet: bool,
}

/// Runs `oci-decorator configure`.
pub fn run(words: &[OsString]) -> Result<u8> {
    let Some((engine, words)) = words.split_first() else {
        return Err(usage("the engine is missing").resolve(NAME_AN_ENGINE));
    };
    if ["-h", "--help"].iter().any(|word| engine == word) {
        return print(HELP);
    }
    let engine = engine_of(&engine.to_string_lossy())
        .map_err(|problem| usage(&problem).resolve(NAME_AN_ENGINE))?;
    let words = Words::parse(words, KNOWN).map_err(|e| usage(&e))?;
    if words.is_set("help") {
        return print(HELP);
    }
    words.no_more().map_err(|e| usage(&e))?;
    carry_out(&order(engine, &words)?)
}

fn usage(problem: &str) -> Error {
    Error::usage(format!("configure: {problem}"))
        .resolve("see its options: oci-decorator configure --help")
}

fn order(engine: Engine, words: &Words) -> Result<Order> {
    let path = |name| words.value(name).map(PathBuf::from);
    let name = words.value("runtime-name").unwrap_or("oci-decorator");
    let program = match words.value("runtime-path") {
        Some(path) => path.to_owned(),
        None => beside_us("oci-decorator-runtime")?,
    };
    let folder = path("hook-folder").unwrap_or_else(|| hooks_d::FOLDER.into());
    let hooks = || -> Result<Vec<Hook>> {
        let program = beside_us("oci-decorator")?;
        let stages = [(10, "precreate"), (20, "prestart")];
        let hook = stages.map(|(number, stage)| Hook {
            file: folder.join(format!("{number}-oci-decorator-{stage}.json")),
            program: program.clone(),
            stage,
        });
        Ok(hook.into())
    };
    let is_hook = is_hook_mode(engine, words.value("config-mode")).map_err(|e| usage(&e))?;
    Ok(Order {
        engine,
        wanted: wanted(
            engine,
            name,
            program,
            words.flag("set-as-default"),
            words.flag("cdi"),
        )
        .map_err(|e| usage(&e))?,
        config: path("config"),
        drop_in: path("drop-in-config"),
        hooks: is_hook.then(hooks).transpose()?,
        record: path("record").unwrap_or_else(record_path),
        is_removed: words.is_set("remove"),
        is_dry: words.is_set("dry-run"),
        is_json: words.is_set("json"),
        is_quiet: false,
    })
}

/// The engine of that name. Errors here and below say what is wrong; the caller adds how its
/// command is used.
pub fn engine_of(word: &str) -> Parsed<Engine> {
    let known = || Engine::ALL.map(|(name, _)| name).join(", ");
    Engine::from_word(word).ok_or_else(|| format!("unknown engine {word:?}; known are {}", known()))
}

/// True for the mode `oci-hook`. Errors: the mode is unknown, or the engine reads no hook files.
pub fn is_hook_mode(engine: Engine, mode: Option<&str>) -> Parsed<bool> {
    match mode.unwrap_or("config-file") {
        "config-file" => Ok(false),
        "oci-hook" if matches!(engine, Engine::Crio | Engine::Podman) => Ok(true),
        "oci-hook" => Err(format!(
            "{} reads no files with hooks; crio and podman do",
            engine.word()
        )),
        other => Err(format!(
            "unknown --config-mode {other:?}; known are config-file, oci-hook"
        )),
    }
}

/// The runtime to add. Errors: engines do not accept the name, or the engine can't start the
/// program.
pub fn wanted(
    engine: Engine,
    name: &str,
    program: String,
    is_default: Option<bool>,
    cdi: Option<bool>,
) -> Parsed<Wanted> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(format!(
            "{name:?} is not a name for a runtime: use letters, digits, '.', '_' and '-'"
        ));
    }
    if engine != Engine::Docker && !program.starts_with('/') {
        let engine = engine.word();
        return Err(format!(
            "{program:?} is not an absolute path, which {engine} needs"
        ));
    }
    Ok(Wanted {
        name: name.to_owned(),
        program,
        is_default,
        cdi,
    })
}

/// The path of another name of this program, in the program's folder.
pub fn beside_us(name: &str) -> Result<String> {
    let own = std::env::current_exe()
        .map_err(|e| Error::failed(format!("can't find this program's own path: {e}")))?;
    Ok(own.with_file_name(name).display().to_string())
}

/// The record of root, or of a user: rootless engines have their files in the user's home.
pub fn record_path() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return record::DEFAULT_PATH.into();
    }
    let set = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    match state {
        Some(folder) => folder.join("oci-decorator/runtimes.json"),
        None => record::DEFAULT_PATH.into(),
    }
}

/// Carries the command out, and prints what was done.
pub fn carry_out(order: &Order) -> Result<u8> {
    let mut notes = Vec::new();
    let done = match &order.hooks {
        Some(hooks) => {
            let put = |hook| hooks_d::put(hook, &order.record, order.is_removed, order.is_dry);
            hooks.iter().map(put).collect::<Result<Vec<_>>>()?
        }
        None => vec![edit(order, &mut notes)?],
    };
    if order.is_json {
        print(&report::json(order, &done, &notes))
    } else if order.is_dry && !order.is_removed {
        say_notes(&notes);
        let texts = done.iter().filter_map(|done| done.after.as_deref());
        print(&texts.collect::<Vec<_>>().join("\n"))
    } else if order.is_quiet {
        Ok(exit::DONE)
    } else {
        say_notes(&notes);
        print(&report::text(order, &done))
    }
}

fn say_notes(notes: &[String]) {
    use std::io::Write;
    for note in notes {
        let _ = writeln!(std::io::stderr(), "note: {note}");
    }
}

fn edit(order: &Order, notes: &mut Vec<String>) -> Result<Done> {
    let main = order.config.clone();
    let main = main.unwrap_or_else(|| order.engine.file(&order.wanted.name));
    let (file, others) = match order.engine {
        Engine::Containerd => beside_containerd(order, &main, notes)?,
        Engine::Crio if order.config.is_none() => (main.clone(), crios(&main, notes)),
        _ => (main, Vec::new()),
    };
    // The record's keys are absolute paths.
    let file = std::path::absolute(&file).unwrap_or(file);
    let job = Job {
        engine: order.engine,
        file,
        others,
        record: order.record.clone(),
        is_dry: order.is_dry,
    };
    if order.is_removed {
        job.take_out(&order.wanted.name)
    } else {
        job.enter(&order.wanted)
    }
}

/// containerd's own file, or an imported file if one is requested or is the default. Also returns
/// the texts of the other files.
fn beside_containerd(
    order: &Order,
    main: &Path,
    notes: &mut Vec<String>,
) -> Result<(PathBuf, Vec<String>)> {
    let text = files::read(main)?.unwrap_or_default();
    let shown = main.display();
    let wrong = |problem: String| {
        Error::failed(format!("{shown}: {problem}. The file is unchanged"))
            .resolve(plan::by_hand(main))
    };
    let found = containerd::notes(&text).map_err(wrong)?;
    notes.extend(found.into_iter().map(|note| format!("{shown}: {note}")));
    let folder = containerd::import_folder(&text).map_err(wrong)?;
    let has_it = containerd::program(&text, &order.wanted.name)
        .map_err(wrong)?
        .is_some();
    let file = match (&order.drop_in, &folder) {
        (Some(file), Some(folder)) if file.parent() == Some(folder) => file.clone(),
        (Some(file), _) => {
            let folder = file.parent().unwrap_or(Path::new("/")).display();
            return Err(Error::failed(format!(
                "{shown} does not import {folder}/*.toml in the way of version 3, so that {} would not be merged into it",
                file.display()
            ))
            .resolve("leave --drop-in-config out, and the file itself gets the runtime: oci-decorator configure containerd"));
        }
        (None, Some(folder)) if !has_it => folder.join(format!("99-{}.toml", order.wanted.name)),
        (None, _) => return Ok((main.to_owned(), Vec::new())),
    };
    Ok((file, vec![text]))
}

/// The texts of the files that CRI-O reads, except for ours. They are only copied from: what can't
/// be read is a note.
fn crios(ours: &Path, notes: &mut Vec<String>) -> Vec<String> {
    let mut paths = vec![PathBuf::from("/etc/crio/crio.conf")];
    let folder = ours.parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut more: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|p| p != ours)
        .collect();
    more.sort();
    paths.extend(more);
    let mut texts = Vec::new();
    for path in paths {
        let read = files::read_others(&path).map_err(|error| error.message);
        match read.and_then(|text| crio::check(text.as_deref()).map(|()| text)) {
            Ok(text) => texts.extend(text),
            Err(problem) => notes.push(format!("{} is left out: {problem}", path.display())),
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A copy of the default runtime is made from what can be read.
    #[test]
    fn what_lies_beside_cri_os_file_is_no_reason_to_refuse() {
        let dir = tempfile::tempdir().unwrap();
        let (here, other) = (dir.path().join("crio.conf.d"), dir.path().join("other"));
        for folder in [&here, &other, &here.join("folder")] {
            std::fs::create_dir(folder).unwrap();
        }
        let model = "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\nmonitor_path = \"/m\"\n";
        std::fs::write(other.join("kata"), model).unwrap();
        symlink("/nowhere", here.join("00-gone")).unwrap();
        symlink(other.join("kata"), here.join("10-kata")).unwrap();
        symlink("/dev/zero", here.join("20-device")).unwrap();
        std::fs::write(here.join("30-broken"), "[[").unwrap();
        std::fs::write(here.join("40-latin"), b"\xff").unwrap();
        let file = here.join("99-ours.conf");
        let mut notes = Vec::new();
        let others = crios(&file, &mut notes);
        assert_eq!(notes.len(), 4, "{notes:?}");
        let job = Job {
            engine: Engine::Crio,
            file: file.clone(),
            others,
            record: dir.path().join("record/runtimes.json"),
            is_dry: false,
        };
        let ours = wanted(Engine::Crio, "ours", "/x".to_owned(), None, None).unwrap();
        assert!(job.enter(&ours).unwrap().is_change());
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("monitor_path = \"/m\""), "{text}");
        assert!(job.take_out("ours").unwrap().after.is_none() && !file.exists());
    }
}
