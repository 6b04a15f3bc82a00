//! `nvidia-ctk runtime configure`: adds the runtime to an engine's configuration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{help, no_more, parse, sub, usage, Said};
use crate::cli::configure::{
    beside_us, carry_out, engine_of, is_hook_mode, record_path, wanted, Order,
};
use crate::cli::go_flags::{Known, Takes, Words};
use crate::engines::hooks_d::{self, Hook};
use crate::engines::Engine;
use crate::error::Result;

const KNOWN: &[Known] = &[
    (&["runtime"], Takes::Value),
    (&["config"], Takes::Value),
    (&["drop-in-config"], Takes::Value),
    (&["set-as-default", "nvidia-set-as-default"], Takes::Nothing),
    (&["nvidia-runtime-name", "runtime-name"], Takes::Value),
    (&["nvidia-runtime-path", "runtime-path"], Takes::Value),
    (&["nvidia-runtime-hook-path"], Takes::Value),
    (&["cdi.enabled", "cdi.enable", "enable-cdi"], Takes::Nothing),
    (&["config-mode"], Takes::Value),
    (&["hook-file-path", "oci-hook-path"], Takes::Value),
    (&["dry-run"], Takes::Nothing),
    // With these, NVIDIA's program asks the engine itself. Here the files are read.
    (&["config-source"], Takes::Value),
    (&["executable-path"], Takes::Value),
    (&["record"], Takes::Value),
    (&["help", "h"], Takes::Nothing),
];

const RUNTIME: &str = "nvidia-container-runtime";
const NAME_AN_ENGINE: &str =
    "name docker, containerd, crio or podman: nvidia-ctk runtime configure --runtime=docker";
const HOOK: &str = "nvidia-container-runtime-hook";

pub fn run(words: &[OsString], said: Said) -> Result<u8> {
    let (verb, words) = sub("runtime", words, &["configure"])?;
    let words = parse(words, KNOWN, "runtime configure")?;
    if verb == "help" || words.is_set("help") {
        return help("runtime configure");
    }
    no_more(&words)?;
    let path = |name| words.value(name).map(PathBuf::from);
    let engine = engine_of(words.value("runtime").unwrap_or("docker"))
        .map_err(|problem| usage(&problem).resolve(NAME_AN_ENGINE))?;
    let name = words.value("nvidia-runtime-name").unwrap_or("nvidia");
    let program = match words.value("nvidia-runtime-path") {
        Some(path) => path.to_owned(),
        None => usual_program(engine)?,
    };
    let is_hook = is_hook_mode(engine, words.value("config-mode")).map_err(|e| usage(&e))?;
    if path("hook-file-path").is_some() && !is_hook {
        return Err(usage("--hook-file-path needs --config-mode=oci-hook"));
    }
    let (is_default, cdi) = (words.flag("set-as-default"), words.flag("cdi.enabled"));
    said.debug(&format!("the runtime {name} is {program}"));
    carry_out(&Order {
        engine,
        wanted: wanted(engine, name, program, is_default, cdi).map_err(|e| usage(&e))?,
        config: path("config"),
        drop_in: path("drop-in-config"),
        hooks: is_hook.then(|| hook(&words)).transpose()?,
        record: path("record").unwrap_or_else(record_path),
        is_removed: false,
        is_dry: words.is_set("dry-run"),
        is_json: false,
        is_quiet: said.is_quiet,
    })
}

/// The hook that an engine gets instead of the runtime.
fn hook(words: &Words) -> Result<Vec<Hook>> {
    let file = words.value("hook-file-path").map(PathBuf::from);
    let usual = || Path::new(hooks_d::FOLDER).join("oci-nvidia-hook.json");
    let program = words.value("nvidia-runtime-hook-path").map(str::to_owned);
    Ok(vec![Hook {
        file: file.unwrap_or_else(usual),
        program: program.map_or_else(|| installed(HOOK), Ok)?,
        stage: "prestart",
    }])
}

/// The default program. Docker looks names up itself, and NVIDIA's tool writes a name for it.
fn usual_program(engine: Engine) -> Result<String> {
    match engine {
        Engine::Docker => Ok(RUNTIME.to_owned()),
        _ => installed(RUNTIME),
    }
}

/// The link beside this program, else the path that packages use.
fn installed(name: &str) -> Result<String> {
    let beside = beside_us(name)?;
    if Path::new(&beside).exists() {
        return Ok(beside);
    }
    Ok(format!("/usr/bin/{name}"))
}
