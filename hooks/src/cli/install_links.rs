//! `oci-decorator install-links`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::go_flags::{Known, Takes, Words};
use super::{print, usage};
use crate::configure::links::{self, Done};
use crate::error::{Error, Result};
use crate::oci::json::quote;

const KNOWN: &[Known] = &[
    (&["remove"], Takes::Nothing),
    (&["json"], Takes::Nothing),
    (&["help", "h"], Takes::Nothing),
];

/// Makes or removes the links with NVIDIA's names. Options may stand before and behind the folder.
pub fn run(words: &[OsString]) -> Result<u8> {
    let mut words: Vec<OsString> = words.to_vec();
    // A folder is named once, so that options can be sorted before it.
    words.sort_by_key(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let words = Words::parse(&words, KNOWN).map_err(|e| usage(&format!("install-links: {e}")))?;
    if words.is_set("help") {
        return print(super::HELP);
    }
    let [folder] = words.rest.as_slice() else {
        return Err(usage(
            &"install-links: say in which folder, for example /usr/bin",
        ));
    };
    let folder = std::path::absolute(folder)
        .map_err(|e| Error::failed(format!("{}: {e}", folder.to_string_lossy())))?;
    let program = own_program()?;
    let is_removed = words.is_set("remove");
    let done = if is_removed {
        links::remove(&folder, &program)?
    } else {
        links::install(&folder, &program)?
    };
    if words.is_set("json") {
        return print(&json(&done));
    }
    let verb = if is_removed {
        "was removed"
    } else {
        "was made"
    };
    let lines = done
        .changed
        .iter()
        .map(|path| format!("{} {verb}\n", path.display()));
    let lines: String = lines.collect();
    print(if lines.is_empty() {
        "nothing to do\n"
    } else {
        &lines
    })
}

/// The file behind the names.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .map_err(|e| Error::failed(format!("can't tell where this program lies: {e}")))
}

fn json(done: &Done) -> String {
    let paths = done
        .changed
        .iter()
        .map(|path| quote(&path.display().to_string()));
    let paths: Vec<_> = paths.collect();
    let target = quote(&done.target.display().to_string());
    format!(
        "{{\"target\": {target}, \"changed\": [{}]}}\n",
        paths.join(", ")
    )
}
