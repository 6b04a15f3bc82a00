//! `oci-decorator configure`, with the code that it shares with `nvidia-ctk runtime configure`, and
//! `oci-decorator install-links`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::JSON;
use crate::engines::drop_ins::{check, put_hook, Hook, HOOKS_FOLDER};
use crate::engines::{by_hand, containerd, links, Done, Engine, Job, RuntimeEntry};
use crate::error::{exit, Error, Result};
use crate::frontends::nvidia::look_for_low_level;
use crate::host::files::{self, is_executable, PATH};
use crate::host::own_program;
use crate::spec::options::{flag, print, value, Opt, ParsedArgs};

pub const OPTIONS: &[Opt] = &[
    flag(&["set-as-default"]),
    flag(&["cdi"]),
    value(&["runtime-name"]),
    value(&["runtime-path"]),
    value(&["config"]),
    value(&["drop-in-config"]),
    value(&["config-mode"]),
    value(&["hook-folder"]),
    flag(&["dry-run"]),
    flag(&["remove"]),
    REPLACE,
    JSON,
];

/// Takes the runtime out of the other file that has it. NVIDIA's program does not have it.
pub const REPLACE: Opt = flag(&["replace"]);

// Each is an option of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug)]
pub struct Order {
    pub engine: Engine,
    pub runtime: RuntimeEntry,
    /// The engine's file, if it is not the default one.
    pub config: Option<PathBuf>,
    /// A file beside containerd's.
    pub drop_in: Option<PathBuf>,
    pub hooks: Option<Vec<Hook>>,
    /// The user named the runtime's program.
    pub is_given: bool,
    pub is_removed: bool,
    /// The runtime stays in one file only.
    pub is_replacing: bool,
    pub is_dry: bool,
    pub is_json: bool,
    pub is_quiet: bool,
}

pub fn run(args: &ParsedArgs) -> Result<u8> {
    let hint =
        "name docker, containerd, crio or podman, for example: oci-decorator configure docker";
    let Some(engine) = args.operands.first() else {
        return Err(args.wrong("the engine is missing").resolve(hint));
    };
    let engine = engine_of(args, &engine.to_string_lossy(), hint)?;
    let program = match args.value("runtime-path") {
        Some(path) => path.to_owned(),
        None => beside_us("oci-decorator-runtime")?,
    };
    let folder = args.path("hook-folder")?.unwrap_or_else(|| HOOKS_FOLDER.into());
    let hooks = || {
        let program = Path::new(&program).with_file_name("oci-decorator").display().to_string();
        let stages = [(10, "precreate"), (20, "prestart")];
        let hook = |(number, stage)| Hook {
            file: folder.join(format!("{number}-oci-decorator-{stage}.json")),
            program: program.clone(),
            stage,
        };
        stages.map(hook).into()
    };
    let name = args.value("runtime-name").unwrap_or("oci-decorator");
    let hooks = is_hook_mode(args, engine)?.then(hooks);
    Order::of(args, engine, name, program, hooks)?.carry_out()
}

pub fn engine_of(args: &ParsedArgs, word: &str, hint: &str) -> Result<Engine> {
    Engine::from_word(word).ok_or_else(|| {
        let known = Engine::ALL.map(|(name, _)| name).join(", ");
        let problem = format!("unknown engine {word:?}; known are {known}");
        args.wrong(&problem).resolve(hint)
    })
}

/// True for the mode `oci-hook`. Errors: the mode is unknown, or the engine reads no hook files.
pub fn is_hook_mode(args: &ParsedArgs, engine: Engine) -> Result<bool> {
    match args.value("config-mode").unwrap_or("config-file") {
        "config-file" | "config" => Ok(false),
        "oci-hook" | "hook" if matches!(engine, Engine::Crio | Engine::Podman) => Ok(true),
        "oci-hook" | "hook" => {
            Err(args
                .wrong(&format!("{} reads no files with hooks; crio and podman do", engine.word())))
        }
        other => Err(args
            .wrong(&format!("unknown --config-mode {other:?}; known are config-file, oci-hook"))),
    }
}

/// The path of another name of this program, in the program's folder.
pub fn beside_us(name: &str) -> Result<String> {
    Ok(own_program()?.with_file_name(name).display().to_string())
}

impl Order {
    /// The order of a command line. Errors: engines do not accept the name of the runtime, or the
    /// engine can't start its program.
    pub fn of(
        args: &ParsedArgs,
        engine: Engine,
        name: &str,
        program: String,
        hooks: Option<Vec<Hook>>,
    ) -> Result<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(args.wrong(&format!(
                "{name:?} is not a name for a runtime: use letters, digits, '.', '_' and '-'"
            )));
        }
        if engine != Engine::Docker && !program.starts_with('/') {
            let engine = engine.word();
            return Err(
                args.wrong(&format!("{program:?} is not an absolute path, which {engine} needs"))
            );
        }
        let (is_default, cdi) = (args.flag("set-as-default"), args.flag("cdi"));
        Ok(Self {
            engine,
            runtime: RuntimeEntry { name: name.to_owned(), program, is_default, cdi },
            config: args.path("config")?,
            drop_in: args.path("drop-in-config")?,
            hooks,
            is_given: args.value("runtime-path").is_some(),
            is_removed: args.is_set("remove"),
            is_replacing: args.is_set("replace"),
            is_dry: args.is_set("dry-run"),
            is_json: args.is_set("json"),
            is_quiet: args.is_set("quiet"),
        })
    }

    /// Carries the order out, and prints what was done. Errors: the engine would start a program
    /// that is not there, or every container by a runtime that finds no low-level runtime.
    pub fn carry_out(&self) -> Result<u8> {
        let mut notes = Vec::new();
        if !self.is_removed && self.hooks.is_none() {
            self.look(&mut notes)?;
        }
        let done = match &self.hooks {
            Some(hooks) => {
                let put = |hook| put_hook(hook, self.is_removed, self.is_dry);
                hooks.iter().map(put).collect::<Result<Vec<_>>>()?
            }
            None => self.edit(&mut notes)?,
        };
        if self.is_dry && !self.is_json {
            notes.extend(done.iter().filter(|it| it.is_change()).map(|it| self.line(it)));
        }
        if self.is_json {
            return print(self.json(&done, &notes));
        }
        if self.is_quiet && !self.is_dry {
            return Ok(exit::DONE);
        }
        for note in &notes {
            let _ = writeln!(std::io::stderr(), "note: {note}");
        }
        if self.is_dry && !self.is_removed {
            let texts = done.iter().filter_map(|done| done.after.as_deref());
            return print(texts.collect::<Vec<_>>().join("\n"));
        }
        print(self.text(&done))
    }

    /// Looks at what the engine will start.
    fn look(&self, notes: &mut Vec<String>) -> Result<()> {
        let program = Path::new(&self.runtime.program);
        if !self.is_dry && program.is_absolute() && !is_executable(program) {
            let shown = program.display();
            let error =
                Error::not_found(format!("{shown} is not a program, and nothing was changed"));
            return Err(error.resolve(if self.is_given {
                "leave --runtime-path out for the runtime beside this program".to_owned()
            } else {
                format!("make the link: ln -s oci-decorator {shown}")
            }));
        }
        let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !links::is_name_of_ours(name) {
            return Ok(());
        }
        let path = std::env::var_os("PATH").unwrap_or_else(|| PATH.into());
        let Err(error) = look_for_low_level(name, path) else {
            return Ok(());
        };
        // The engine is started by systemd, whose PATH may be longer than the caller's.
        let is_nowhere = look_for_low_level(name, PATH.into()).is_err();
        if is_nowhere && self.runtime.is_default == Some(true) && !self.is_dry {
            let message = format!("{}, so that no container would start", error.message);
            return Err(Error { message, ..error });
        }
        notes.push(error.to_string());
        Ok(())
    }

    fn edit(&self, notes: &mut Vec<String>) -> Result<Vec<Done>> {
        let usual = || self.engine.file(&self.runtime.name);
        let main = self.config.clone().unwrap_or_else(usual);
        let (file, mut others) = match self.engine {
            Engine::Containerd => self.beside_containerd(&main, notes)?,
            Engine::Crio if self.config.is_none() => (main.clone(), crios(&main, notes)),
            _ => (main.clone(), Vec::new()),
        };
        let mut runtime = self.runtime.clone();
        let mut twins = Vec::new();
        for (twin, text) in self.twins(&main, &file)? {
            let shown = twin.display();
            if !self.is_replacing && !self.is_removed {
                let name = &runtime.name;
                notes.push(format!("{shown} has the runtime {name} too, and the engine uses one of the two files: --replace takes it out there"));
                continue;
            }
            if runtime.is_default.is_none() && self.engine.is_default(&text, &runtime.name) {
                runtime.is_default = Some(true);
            }
            // The runtimes of containerd's own file decide which of them ours needs beside it.
            let is_main = twin == main;
            if is_main && !self.is_removed {
                let left = self.engine.without(&text, &runtime.name, false);
                others = vec![left.map_err(|problem| unchanged(&twin, &problem))?];
            }
            let others = if is_main { Vec::new() } else { vec![text] };
            twins.push(Job { engine: self.engine, file: twin, others, is_dry: self.is_dry });
        }
        let job = Job { engine: self.engine, file, others, is_dry: self.is_dry };
        let mut done =
            vec![if self.is_removed { job.remove(&runtime)? } else { job.add(&runtime)? }];
        for twin in twins {
            done.push(twin.remove(&runtime)?);
        }
        Ok(done)
    }

    /// The other files that the engine reads and that have our runtime, with their texts: for CRI-O
    /// the one with the other ending, for containerd its own file or the imported one.
    fn twins(&self, main: &Path, file: &Path) -> Result<Vec<(PathBuf, String)>> {
        let path = match self.engine {
            Engine::Crio if file.extension().is_some_and(|it| it == "toml") => {
                file.with_extension("conf")
            }
            Engine::Containerd if file != main => main.to_owned(),
            Engine::Containerd => {
                let text = files::read(main)?.unwrap_or_default();
                let found = containerd::look(&text, &self.runtime.name).unwrap_or_default();
                match found.import_folder {
                    Some(folder) => folder.join(drop_in_name(&self.runtime.name)),
                    None => return Ok(Vec::new()),
                }
            }
            _ => return Ok(Vec::new()),
        };
        let text = files::read_others(&path).unwrap_or_default().unwrap_or_default();
        let program = self.engine.program(&text, &self.runtime.name).unwrap_or_default();
        let is_ours = |it: &String| *it == self.runtime.program || links::is_name_of_ours(it);
        Ok(program.filter(is_ours).map(|_| (path, text)).into_iter().collect())
    }

    /// containerd's own file, or an imported file if one is requested or is the default. Also
    /// returns the texts of the other files.
    fn beside_containerd(
        &self,
        main: &Path,
        notes: &mut Vec<String>,
    ) -> Result<(PathBuf, Vec<String>)> {
        let text = files::read(main)?.unwrap_or_default();
        let shown = main.display();
        let found = containerd::look(&text, &self.runtime.name)
            .map_err(|problem| unchanged(main, &problem))?;
        notes.extend(found.notes.into_iter().map(|note| format!("{shown}: {note}")));
        let file = match (&self.drop_in, &found.import_folder) {
            (Some(file), Some(folder)) if file.parent() == Some(folder) => file.clone(),
            (Some(file), _) => {
                let folder = file.parent().unwrap_or(Path::new("/")).display();
                return Err(Error::failed(format!(
                    "{shown} does not import {folder}/*.toml in the way of version 3, so that {} would not be merged into it",
                    file.display()
                ))
                .resolve("leave --drop-in-config out, and the file itself gets the runtime: oci-decorator configure containerd"));
            }
            (None, Some(folder)) if !found.has_runtime || self.is_replacing => {
                folder.join(drop_in_name(&self.runtime.name))
            }
            (None, _) => return Ok((main.to_owned(), Vec::new())),
        };
        Ok((file, vec![text]))
    }

    fn line(&self, done: &Done) -> String {
        let what = match (done.is_change(), self.is_dry, &done.after) {
            (false, ..) => "needs no change",
            (true, true, Some(_)) => "would be written",
            (true, true, None) => "would be removed",
            (true, false, Some(_)) => "was written",
            (true, false, None) => "was removed",
        };
        format!("{} {what}", done.file.display())
    }

    fn text(&self, done: &[Done]) -> String {
        let mut lines: Vec<String> = done.iter().map(|done| self.line(done)).collect();
        let is_used = self.engine == Engine::Podman && self.hooks.is_none() && !self.is_removed;
        let use_it = || format!("podman run --runtime {} IMAGE", self.runtime.name);
        let next = self.restart(done).map(str::to_owned).or_else(|| is_used.then(use_it));
        lines.extend(next.map(|command| format!("next: {command}")));
        lines.join("\n") + "\n"
    }

    fn json(&self, done: &[Done], notes: &[String]) -> String {
        let file = |done: &Done| {
            json!({
                "path": done.file.display().to_string(),
                "changed": done.is_change(),
                "before": done.before,
                "after": done.after,
            })
        };
        let document = json!({
            "engine": self.engine.word(),
            "changed": done.iter().any(Done::is_change),
            "files": done.iter().map(file).collect::<Vec<_>>(),
            "next": self.restart(done),
            "notes": notes,
        });
        format!("{document}\n")
    }

    /// The command after which the engine uses its new file.
    fn restart(&self, done: &[Done]) -> Option<&'static str> {
        let changed = done.iter().find(|done| done.is_change());
        let changed = changed.filter(|_| self.hooks.is_none())?;
        let (before, after) = (changed.before.as_deref(), changed.after.as_deref());
        self.engine.reread(before, after)
    }
}

fn drop_in_name(runtime: &str) -> String {
    format!("99-{runtime}.toml")
}

fn unchanged(file: &Path, problem: &str) -> Error {
    Error::failed(format!("{}: {problem}. The file is unchanged", file.display()))
        .resolve(by_hand(file))
}

/// The texts of the files that CRI-O reads, except for ours. They are only copied from: what can't
/// be read is a note.
fn crios(ours: &Path, notes: &mut Vec<String>) -> Vec<String> {
    let mut paths = vec![PathBuf::from("/etc/crio/crio.conf")];
    let folder = ours.parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let others = entries.map(|entry| entry.path()).filter(|path| path != ours);
    let mut others: Vec<_> = others.collect();
    others.sort();
    paths.extend(others);
    let mut texts = Vec::new();
    for path in paths {
        let read = files::read_others(&path).map_err(|error| error.message);
        match read.and_then(|text| check(text.as_deref()).map(|()| text)) {
            Ok(text) => texts.extend(text),
            Err(problem) => notes.push(format!("{} is left out: {problem}", path.display())),
        }
    }
    texts
}

pub const LINK_OPTIONS: &[Opt] = &[flag(&["remove"]), JSON];

/// `install-links`: makes or removes links with the names of NVIDIA's programs.
pub fn run_links(args: &ParsedArgs) -> Result<u8> {
    let [folder] = args.operands.as_slice() else {
        let error = args.wrong("the folder is missing");
        return Err(
            error.resolve("name one folder, for example: oci-decorator install-links /usr/bin")
        );
    };
    let folder = std::path::absolute(folder)
        .map_err(|e| Error::failed(format!("{}: {e}", folder.to_string_lossy())))?;
    let program = own_program()?;
    let links = links::Links::new(&folder, &program);
    let (changed, verb) = if args.is_set("remove") {
        (links.remove()?, "removed")
    } else {
        (links.install()?, "made")
    };
    let changed: Vec<_> = changed.iter().map(|path| path.display().to_string()).collect();
    print(&if args.is_set("json") {
        format!("{}\n", json!({"target": links.target.to_string_lossy(), "changed": changed}))
    } else if changed.is_empty() {
        "nothing to do\n".to_owned()
    } else {
        let text = changed.iter().flat_map(|path| [path.as_str(), " was ", verb, "\n"]);
        text.collect()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A copy of the default runtime is made from what can be read.
    #[test]
    fn what_lies_beside_cri_os_file_is_no_reason_to_refuse() {
        let dir = tempfile::tempdir().unwrap();
        let (here, other) = (dir.path().join("crio.conf.d"), dir.path().join("other"));
        for folder in [&here, &other, &here.join("folder")] {
            std::fs::create_dir(folder).unwrap();
        }
        let model = "[crio.runtime.runtimes.crun]\nmonitor_path = \"/m\"\n";
        std::fs::write(other.join("crun"), model).unwrap();
        symlink("/nowhere", here.join("00-gone")).unwrap();
        symlink(other.join("crun"), here.join("10-crun")).unwrap();
        symlink("/dev/zero", here.join("20-device")).unwrap();
        std::fs::write(here.join("30-broken"), "[[").unwrap();
        std::fs::write(here.join("40-latin"), b"\xff").unwrap();
        let mut notes = Vec::new();
        let others = crios(&here.join("99-ours.conf"), &mut notes);
        assert_eq!((notes.len(), others), (4, vec![model.to_owned()]), "{notes:?}");
    }
}
