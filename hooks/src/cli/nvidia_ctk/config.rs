//! `nvidia-ctk config`: prints or changes the settings.

use std::path::Path;

use super::config_text::{default, set, Flavour};
use super::{debug, place_of};
use crate::cli::print;
use crate::error::{exit, Error, Result};
use crate::host::files;
use crate::spec::options::{flag, value, Opt, ParsedArgs};

pub const OPTIONS: &[Opt] = &[
    value(&["config-file", "config", "c"]),
    value(&["set"]),
    flag(&["in-place", "i"]),
    value(&["output", "o"]),
];

pub fn run(args: &ParsedArgs) -> Result<u8> {
    let place = place_of(args);
    let is_in_place = args.is_set("in-place");
    let output = match (is_in_place, output(args)) {
        (true, Some(_)) => return Err(args.wrong("--in-place and --output name different files")),
        (true, None) => Some(&*place.path),
        (false, output) => output,
    };
    // Locked before it is read, as another command's change would be lost otherwise.
    let _held = output.map(|_| files::lock()).transpose()?;
    let mut text = match files::read(&place.path)? {
        Some(text) => text,
        None if place.named && !is_in_place => {
            let shown = place.path.display();
            return Err(Error::not_found(format!("there is no file {shown}"))
                .resolve(format!("`nvidia-ctk config default --output {shown}` makes it")));
        }
        None => default(flavour()),
    };
    for setting in args.each("set").map(|given| &given.value) {
        text = set(&text, setting).map_err(|problem| {
            Error::usage(format!("--set {setting:?}: {problem}"))
                .resolve("`nvidia-ctk config default` shows every key")
        })?;
        debug(args, &format!("{setting} is set"));
    }
    put(&text, output)
}

pub fn run_default(args: &ParsedArgs) -> Result<u8> {
    match output(args) {
        None if args.is_set("in-place") => {
            Err(args.wrong("--in-place names no file; use --output"))
        }
        output => put(&default(flavour()), output),
    }
}

fn flavour() -> Flavour {
    let read = |path| std::fs::read_to_string(path).ok();
    let release = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"));
    let has_real = Path::new("/sbin/ldconfig.real").exists();
    Flavour::of(&release.unwrap_or_default(), has_real)
}

fn output(args: &ParsedArgs) -> Option<&Path> {
    let named = args.value("output").filter(|path| *path != "-");
    named.map(Path::new)
}

fn put(text: &str, file: Option<&Path>) -> Result<u8> {
    match file {
        None => print(text),
        Some(file) => files::write(file, text, None).map(|()| exit::DONE),
    }
}
