//! `nvidia-ctk config`: prints or changes the settings.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::config_text::{default, set, Flavour};
use super::{help, no_more, parse, usage, Said};
use crate::cli::go_flags::{Known, Takes, Words};
use crate::cli::print;
use crate::config::nvidia::{self, Place};
use crate::engines::files;
use crate::engines::lock::{self, Lock};
use crate::error::{exit, Error, Result};

const KNOWN: &[Known] = &[
    (&["config-file", "config", "c"], Takes::Value),
    (&["set"], Takes::Value),
    (&["in-place", "i"], Takes::Nothing),
    (&["output", "o"], Takes::Value),
    (&["help", "h"], Takes::Nothing),
];

/// Runs the command. `named` is the file that the words before the command name.
pub fn run(words: &[OsString], named: Option<&Path>, said: Said) -> Result<u8> {
    let mut words = parse(words, KNOWN, "config")?;
    let is_default = words.rest.first().is_some_and(|word| word == "default");
    if is_default {
        words = parse(&words.rest[1..], KNOWN, "config default")?;
    }
    if words.is_set("help") {
        return help(if is_default {
            "config default"
        } else {
            "config"
        });
    }
    no_more(&words)?;
    if is_default {
        let file = output(&words, None)?;
        let held = file.as_deref().map(hold).transpose()?;
        return put(&default(flavour()), file.as_deref().zip(held.as_ref()));
    }
    let place = place(words.value("config-file").map(Path::new).or(named));
    let file = output(&words, Some(&place))?;
    // Locked before it is read, as another command's change would be lost otherwise.
    let held = file.as_deref().map(hold).transpose()?;
    let mut text = match files::read(&place.path)? {
        Some(text) => text,
        None if place.named && !words.is_set("in-place") => {
            let shown = place.path.display();
            return Err(
                Error::not_found(format!("there is no file {shown}")).resolve(format!(
                    "`nvidia-ctk config default --output {shown}` makes it"
                )),
            );
        }
        None => default(flavour()),
    };
    for setting in words.values("set") {
        text = set(&text, setting).map_err(|problem| {
            Error::usage(format!("--set {setting:?}: {problem}"))
                .resolve("`nvidia-ctk config default` shows every key")
        })?;
        said.debug(&format!("{setting} is set"));
    }
    put(&text, file.as_deref().zip(held.as_ref()))
}

fn hold(file: &Path) -> Result<Lock> {
    lock::take(&[file], true)
}

/// The settings file that counts for a command line.
pub fn place(option: Option<&Path>) -> Place {
    let variable = |name| std::env::var_os(name);
    nvidia::place(
        option,
        variable(nvidia::VARIABLE).as_deref(),
        variable(nvidia::XDG_VARIABLE).as_deref(),
    )
}

fn flavour() -> Flavour {
    let read = |path| std::fs::read_to_string(path).ok();
    let release = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"));
    let has_real = Path::new("/sbin/ldconfig.real").exists();
    Flavour::of(&release.unwrap_or_default(), has_real)
}

fn output(words: &Words, place: Option<&Place>) -> Result<Option<PathBuf>> {
    let named = words.value("output").filter(|path| *path != "-");
    match (words.is_set("in-place"), named, place) {
        (true, Some(_), _) => Err(usage(
            "config: --in-place and --output name different files",
        )),
        (true, None, Some(place)) => Ok(Some(place.path.clone())),
        (true, None, None) => Err(usage(
            "config default: --in-place names no file; use --output",
        )),
        (false, named, _) => Ok(named.map(PathBuf::from)),
    }
}

fn put(text: &str, file: Option<(&Path, &Lock)>) -> Result<u8> {
    match file {
        None => print(text),
        Some((file, held)) => {
            files::write(held, file, text, None)?;
            Ok(exit::DONE)
        }
    }
}
