//! `oci-decorator install-links`: links with the names of NVIDIA's programs.

use std::ffi::OsString;
use std::path::PathBuf;

use super::configure::record_path;
use super::go_flags::{Known, Takes, Words};
use super::print;
use crate::engines::links::{Done, Links, RECORD};
use crate::engines::owner::owner;
use crate::error::{Error, Result};
use crate::spec::json::quote;

const KNOWN: &[Known] = &[
    (&["remove"], Takes::Nothing),
    (&["record"], Takes::Value),
    (&["json"], Takes::Nothing),
    (&["help", "h"], Takes::Nothing),
];

/// Makes or removes the links. Options may stand before and after the folder.
pub fn run(words: &[OsString]) -> Result<u8> {
    let words = parse(words)?;
    if words.is_set("help") {
        return print(&super::help::of(super::HELP, "install-links"));
    }
    let [folder] = words.rest.as_slice() else {
        return Err(wrong("the folder is missing"));
    };
    let folder = std::path::absolute(folder)
        .map_err(|e| Error::failed(format!("{}: {e}", folder.to_string_lossy())))?;
    let program = own_program()?;
    let is_removed = words.is_set("remove");
    let record = words.value("record").map(PathBuf::from);
    let record = record.unwrap_or_else(|| record_path().with_file_name(RECORD));
    let links = Links {
        folder: &folder,
        program: &program,
        record: &record,
        owner,
    };
    let done = if is_removed {
        links.remove()?
    } else {
        links.install()?
    };
    if words.is_set("json") {
        return print(&json(&done));
    }
    print(&text(&done, is_removed))
}

/// Reads the words before and after the folder.
fn parse(words: &[OsString]) -> Result<Words> {
    let mut given = Words::parse(words, KNOWN).map_err(|e| wrong(&e))?;
    if let Some((folder, behind)) = given.rest.clone().split_first() {
        let behind = Words::parse(behind, KNOWN).map_err(|e| wrong(&e))?;
        given.add(behind, folder);
    }
    Ok(given)
}

/// The report as text.
fn text(done: &Done, is_removed: bool) -> String {
    let verb = if is_removed {
        "was removed"
    } else {
        "was made"
    };
    let changed = done.changed.iter();
    let changed = changed.map(|path| format!("{} {verb}\n", path.display()));
    let notes = done.notes.iter().map(|note| format!("note: {note}\n"));
    let text: String = changed.chain(notes).collect();
    if text.is_empty() {
        "nothing to do\n".to_owned()
    } else {
        text
    }
}

fn wrong(problem: &str) -> Error {
    Error::usage(format!("install-links: {problem}"))
        .resolve("name one folder, for example: oci-decorator install-links /usr/bin")
}

/// The real path of this program.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .map_err(|e| Error::failed(format!("can't find this program's own path: {e}")))
}

fn json(done: &Done) -> String {
    let paths = done
        .changed
        .iter()
        .map(|path| quote(&path.display().to_string()));
    let paths: Vec<_> = paths.collect();
    let notes: Vec<_> = done.notes.iter().map(|note| quote(note)).collect();
    let target = quote(&done.target.display().to_string());
    format!(
        "{{\"target\": {target}, \"changed\": [{}], \"notes\": [{}]}}\n",
        paths.join(", "),
        notes.join(", ")
    )
}
