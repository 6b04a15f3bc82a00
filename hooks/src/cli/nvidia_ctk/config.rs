//! `nvidia-ctk config`: prints or changes the settings.

use std::path::Path;

use toml_edit::{Array, Value};

use crate::cli::nvidia_ctk::{debug, place_of};
use crate::config::nvidia;
use crate::engines::toml_text;
use crate::error::{exit, Error, Result};
use crate::host::files;
use crate::spec::options::{flag, print, truth, value, Opt, ParsedArgs};

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
        None => installed(),
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
        output => put(&installed(), output),
    }
}

fn installed() -> String {
    let read = |path| std::fs::read_to_string(path).ok();
    let release = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"));
    default(&release.unwrap_or_default(), Path::new("/sbin/ldconfig.real").exists())
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

const TEMPLATE: &str = include_str!("../../../config/nvidia-container-runtime.toml");

/// The text of a new installation, on a distribution with this text of os-release(5). On SUSE, devices
/// belong to the group `video`. On Ubuntu, ldconfig is a script that calls another program.
fn default(os_release: &str, has_real_ldconfig: bool) -> String {
    let value = |name: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_default().trim_matches(['"', '\''])
    };
    let mut words = value("ID=").split_whitespace().chain(value("ID_LIKE=").split_whitespace());
    let mut text = TEMPLATE.to_owned();
    if words.any(|word| word == "suse" || word == "sles" || word.starts_with("opensuse")) {
        text = text.replace("#user = \"root:video\"", "user = \"root:video\"");
    }
    if has_real_ldconfig {
        text = text.replace("@/sbin/ldconfig\"", "@/sbin/ldconfig.real\"");
    }
    text
}

/// Changes one setting: `KEY=VALUE`, `KEY` for true, or `KEY=nil`, which removes a feature's line.
/// Every other line stays.
/// Errors: the key does not exist, or the value is wrong.
pub fn set(text: &str, setting: &str) -> Result<String, String> {
    let (key, value) = match setting.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value)),
        None => (setting.trim(), None),
    };
    let mut document = toml_text::parse(text)?;
    let path: Vec<&str> = key.split('.').collect();
    let Some((name, above)) = path.split_last() else {
        return Err("expected KEY=VALUE".to_owned());
    };
    if value == Some("nil") && above == ["features"] && nvidia::is_known(key) {
        toml_text::remove(&mut document, &path);
        return Ok(toml_text::text_of(&document));
    }
    let value = right_value(key, value)?;
    let table = toml_text::table(&mut document, above)?;
    toml_text::set(table, name, value);
    Ok(toml_text::text_of(&document))
}

/// The value in the type of the key, which the reader of the file knows.
fn right_value(key: &str, value: Option<&str>) -> Result<Value, String> {
    if !nvidia::is_known(key) {
        return Err(format!("there is no setting {key:?}"));
    }
    let list = |text: &str| {
        let separator = if text.contains(':') { ':' } else { ',' };
        text.split(separator).filter(|item| !item.is_empty()).collect::<Array>()
    };
    let candidates = [
        truth(value.unwrap_or("true")).map(Value::from),
        value.map(Value::from),
        value.map(|text| Value::Array(list(text))),
    ];
    let mut problems = Vec::new();
    for candidate in candidates.into_iter().flatten() {
        let text = format!("{key} = {candidate}\n");
        match nvidia::mistakes(&text).pop() {
            None => return Ok(candidate),
            Some(problem) => problems.push(problem),
        }
    }
    // If a problem is not about the type, the type was right and the value was wrong.
    let of_value = |problem: &&String| !problem.contains(": expected ");
    let said = problems.iter().find(of_value).or(problems.first());
    Err(said.cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distributions_file_is_without_mistake() {
        for (release, real, user, ldconfig) in [
            ("ID=debian\n", false, false, "@/sbin/ldconfig"),
            ("ID=ubuntu\nID_LIKE=debian\n", true, false, "@/sbin/ldconfig.real"),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", false, true, "@/sbin/ldconfig"),
            ("ID=sles\nVERSION_ID=15\n", false, true, "@/sbin/ldconfig"),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", false, false, "@/sbin/ldconfig"),
        ] {
            let text = default(release, real);
            assert_eq!(nvidia::mistakes(&text), Vec::<String>::new());
            let table = toml_text::parse(&text).unwrap();
            let cli = table["nvidia-container-cli"].as_table().unwrap();
            assert_eq!(cli.get("user").is_some(), user, "{release}");
            assert_eq!(cli["ldconfig"].as_str(), Some(ldconfig));
        }
    }

    /// Commented lines have the defaults too.
    #[test]
    fn every_line_of_it_is_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let live: String = TEMPLATE
            .lines()
            .filter(|line| !line.starts_with("#debug") && !line.starts_with("#swarm"))
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        for text in [TEMPLATE, &*live] {
            std::fs::write(&path, text).unwrap();
            let loaded = nvidia::load(nvidia::ConfigPath { path: path.clone(), named: true });
            assert_eq!((loaded.problem, loaded.warnings), (None, Vec::new()));
            let mut config = loaded.config;
            config.capabilities.sort();
            // If these two are set, they override our settings.
            assert_eq!(config.log_level.take(), Some(crate::log::Level::Info));
            let runtimes = config.runtimes.take().unwrap();
            assert_eq!(runtimes, ["runc", "crun"]);
            assert_eq!(config, nvidia::NvidiaConfig::default());
        }
    }
}
