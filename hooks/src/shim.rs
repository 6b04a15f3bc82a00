//! The runtime shim: edits the bundle of a container that is about to be made,
//! then becomes the low-level runtime. Every other command passes through.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::Access;

use crate::arguments::{Arguments, Create, LogFormat};
use crate::bundle;
use crate::clock;
use crate::container;
use crate::engine::{self, Door};
use crate::error::{exit, Error, Result};
use crate::fold::fold;
use crate::json::quote;
use crate::level::Level;
use crate::log::{append, printable, Log, Note};
use crate::settings::{self, Settings};
use crate::spec::Spec;

/// The name under which the program is a runtime.
pub const NAME: &str = "oci-decorator-runtime";
/// Where commands are looked up when there is no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the command line of a runtime. Comes back only when that failed.
pub fn run(words: &[OsString]) -> u8 {
    let arguments = Arguments::parse(words);
    let error = match start(&arguments, words) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    report(&arguments, &printable(&error.to_string()));
    exit::FAILED
}

fn start(arguments: &Arguments, words: &[OsString]) -> Result<std::convert::Infallible> {
    let loaded = settings::load(settings::named_by_environment().as_deref());
    let settings = match &arguments.create {
        Some(create) => {
            let settings = loaded?;
            decorate(&settings, create)?;
            settings
        }
        // Broken settings must not keep anybody from stopping a container.
        None => loaded.unwrap_or_default(),
    };
    become_runtime(&settings.runtimes, words)
}

/// Edits what the container is made from.
fn decorate(settings: &Settings, create: &Create) -> Result<()> {
    let log = Log::new(
        settings.log_level,
        settings.log_file.clone(),
        &create.container,
    );
    let edited = edit_bundle(settings, create, &log);
    if let Err(error) = &edited {
        log.write(&Note::new(Level::Error, format!("start refused: {error}")));
    }
    edited
}

fn edit_bundle(settings: &Settings, create: &Create, log: &Log) -> Result<()> {
    let name = create.config.as_deref().unwrap_or(Path::new("config.json"));
    let path = create.bundle.join(name);
    let Some((text, stat)) = bundle::read_config(&path)? else {
        return Ok(()); // The runtime says what is missing in its own words.
    };
    let spec = Spec::parse(&text)?;
    let door = Door {
        config_dir: &settings.config_dir,
        root: &settings.root,
        log,
    };
    let Some(mut edits) = engine::edits(&door, &spec.environment()?)? else {
        return Ok(());
    };
    let root = spec.root_path()?.map(|root| create.bundle.join(&*root));
    let root = root.map(|path| container::open_root(&path)).transpose()?;
    if let Some(root) = &root {
        fold(&mut edits, root, &spec.mounts()?);
    }
    let edited = spec.edited(&edits)?;
    if edited != text {
        bundle::write_config(&path, &edited, &stat).map_err(|e| {
            Error::failed(format!("can't write {}: {e}", path.display()))
                .resolve("the bundle must be writable for what its environment asks for")
        })?;
    }
    if let Some(root) = &root {
        container::prepare(root, &edits, log);
    }
    Ok(())
}

fn become_runtime(runtimes: &[String], words: &[OsString]) -> Result<std::convert::Infallible> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let program = find(runtimes, &path).ok_or_else(|| {
        Error::not_found(format!(
            "no low-level runtime found: {}",
            runtimes.join(", ")
        ))
        .resolve("install one, or name it under \"runtimes\" in config.toml")
    })?;
    let error = Command::new(&program).args(words).exec();
    Err(Error::failed(format!(
        "can't run {}: {error}",
        program.display()
    )))
}

/// The first runtime that can be executed and is not this program itself.
fn find(runtimes: &[String], path: &OsStr) -> Option<PathBuf> {
    let own = std::fs::metadata("/proc/self/exe").ok();
    let own = own.map(|m| (m.dev(), m.ino()));
    runtimes
        .iter()
        .flat_map(|name| -> Vec<PathBuf> {
            if name.starts_with('/') {
                vec![name.into()]
            } else {
                std::env::split_paths(path).map(|d| d.join(name)).collect()
            }
        })
        .find(|candidate| {
            std::fs::metadata(candidate)
                .is_ok_and(|m| m.is_file() && Some((m.dev(), m.ino())) != own)
                && rustix::fs::access(candidate, Access::EXEC_OK).is_ok()
        })
}

/// Tells the engine why the start is refused: on stderr, and where it asked
/// for the runtime's log, in the runtime's own format, so that it is shown.
fn report(arguments: &Arguments, message: &str) {
    let message = format!("oci-decorator: {message}");
    // First, as a closed pipe at standard error ends the program.
    if let Some(log) = &arguments.log {
        append(log, &entry(&message, arguments.log_format));
    }
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// A line as runc logs it.
fn entry(message: &str, format: LogFormat) -> String {
    let (time, text) = (clock::now(), quote(message));
    match format {
        LogFormat::Json => format!("{{\"level\":\"error\",\"msg\":{text},\"time\":\"{time}\"}}\n"),
        LogFormat::Text => format!("time=\"{time}\" level=error msg={text}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn runtimes_are_tried_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        make("notexec", 0o644);
        let second = make("second", 0o755);
        std::os::unix::fs::symlink("/proc/self/exe", dir.path().join("self")).unwrap();
        let list = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let path = dir.path().as_os_str();
        assert_eq!(
            find(&list(&["absent", "notexec", "self", "second"]), path),
            Some(second.clone())
        );
        let absolute = second.display().to_string();
        assert_eq!(find(&list(&[&absolute]), OsStr::new("")), Some(second));
        assert_eq!(find(&list(&["absent"]), path), None);
    }
}
