//! `nvidia-ctk runtime configure`: adds the runtime to an engine's configuration.

use std::path::Path;

use super::debug;
use crate::cli::configure::{beside_us, engine_of, is_hook_mode, runtime, Order, REPLACE};
use crate::cli::print;
use crate::engines::hooks_d::Hook;
use crate::engines::Engine;
use crate::error::Result;
use crate::spec::options::{flag, value, Opt, ParsedArgs};

pub const OPTIONS: &[Opt] = &[
    value(&["runtime"]),
    value(&["config"]),
    value(&["drop-in-config"]),
    flag(&["set-as-default", "nvidia-set-as-default"]),
    value(&["nvidia-runtime-name", "runtime-name"]),
    value(&["nvidia-runtime-path", "runtime-path"]),
    value(&["nvidia-runtime-hook-path"]),
    flag(&["cdi.enabled", "cdi.enable", "enable-cdi"]),
    value(&["config-mode"]),
    value(&["hook-file-path", "oci-hook-path"]),
    flag(&["dry-run"]),
    REPLACE,
    // With these, NVIDIA's program asks the engine itself. Here the files are read.
    value(&["config-source"]),
    value(&["executable-path"]),
];

const RUNTIME: &str = "nvidia-container-runtime";
const HOOK: &str = "nvidia-container-runtime-hook";

pub fn run(args: &ParsedArgs) -> Result<u8> {
    let hint =
        "name docker, containerd, crio or podman: nvidia-ctk runtime configure --runtime=docker";
    let engine = engine_of(args, args.value("runtime").unwrap_or("docker"), hint)?;
    let name = args.value("nvidia-runtime-name").unwrap_or("nvidia");
    let program = match args.value("nvidia-runtime-path") {
        Some(path) => path.to_owned(),
        // Docker looks names up itself, and NVIDIA's tool writes a name for it.
        None if engine == Engine::Docker => RUNTIME.to_owned(),
        None => installed(RUNTIME)?,
    };
    // As with NVIDIA's tool, the file of a hook is no engine's, and is printed unless it has a path.
    let is_hook = is_hook_mode(args, Engine::Podman)?;
    let hook_file = args.path("hook-file-path")?;
    if hook_file.is_some() && !is_hook {
        return Err(args.wrong("--hook-file-path needs --config-mode=oci-hook"));
    }
    let is_printed = is_hook && hook_file.is_none();
    let hooks = || -> Result<Vec<Hook>> {
        let program = args.value("nvidia-runtime-hook-path").map(str::to_owned);
        Ok(vec![Hook {
            file: hook_file.unwrap_or_else(|| "oci-nvidia-hook.json".into()),
            program: program.map_or_else(|| installed(HOOK), Ok)?,
            stage: "prestart",
        }])
    };
    if is_printed {
        return print(&hooks()?.iter().map(Hook::text).collect::<String>());
    }
    debug(args, &format!("the runtime {name} is {program}"));
    Order {
        engine,
        runtime: runtime(args, engine, name, program, ["set-as-default", "cdi.enabled"])?,
        config: args.path("config")?,
        drop_in: args.path("drop-in-config")?,
        hooks: is_hook.then(hooks).transpose()?,
        is_given: args.value("nvidia-runtime-path").is_some(),
        is_removed: false,
        is_replacing: args.is_set("replace"),
        is_dry: args.is_set("dry-run"),
        is_json: false,
        is_quiet: args.is_set("quiet"),
    }
    .carry_out()
}

/// The link beside this program, else the path that packages use.
fn installed(name: &str) -> Result<String> {
    let beside = beside_us(name)?;
    if Path::new(&beside).exists() {
        return Ok(beside);
    }
    Ok(format!("/usr/bin/{name}"))
}
