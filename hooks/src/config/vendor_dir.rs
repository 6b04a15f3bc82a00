//! Reads the folder of vendor files: `*.json`, sorted by name.

use std::path::Path;

use rustix::io::Errno;

use crate::config::folder::{self, ConfigFile, Unusable};
use crate::config::vendor::{is_flag, parse};
use crate::error::{Error, Result};
use crate::model::request::Interface;
use crate::model::vendor::{Broken, Vendor, VendorFile};
use crate::spec::json::Json;

/// Reads every vendor file of the folder. A missing folder has none. If a user other than root may
/// change the folder or one above it, none of its files can be used.
/// Errors: the folder can't be read.
pub fn read(folder: &Path) -> Result<Vec<VendorFile>> {
    let files =
        folder::read(folder, |name| name.strip_suffix(".json").is_some(), |_, text| parse(text));
    match files {
        Ok(files) => Ok(files.into_iter().map(vendor_file).collect()),
        Err(Errno::NOENT) => Ok(Vec::new()),
        Err(error) => Err(cannot_read(folder, error)),
    }
}

fn vendor_file(file: ConfigFile<Vendor>) -> VendorFile {
    VendorFile {
        content: file.content.map_err(broken),
        path: file.path.display().to_string(),
        name: file.name.trim_end_matches(".json").to_owned(),
    }
}

fn broken(file: Unusable) -> Broken {
    Broken {
        flags: flags_in(&file.text),
        interfaces: interfaces_in(&file.text),
        mistakes: file.mistakes,
    }
}

fn cannot_read(folder: &Path, error: Errno) -> Error {
    let shown = folder.display();
    let failed = Error::failed(format!("can't open {shown}: {error}"));
    match error {
        Errno::ACCESS => failed.resolve(format!("let every user read it: chmod a+rx {shown}")),
        Errno::NOTDIR => failed.resolve(format!("name a folder; see what it is: ls -ld {shown}")),
        _ => failed,
    }
}

/// The interfaces that a text names, even if it is not valid JSON.
fn interfaces_in(text: &str) -> Vec<Interface> {
    if let Ok(Json::Object(members)) = serde_json::from_str(text) {
        let lists = members.iter().filter(|(key, _)| key == "interfaces");
        let words = lists.flat_map(|(_, value)| match value {
            Json::Array(items) => items.iter().filter_map(Json::text).collect(),
            _ => Vec::new(),
        });
        return words.filter_map(Interface::from_word).collect();
    }
    let lists = text.split("\"interfaces\"").skip(1);
    let lists = lists.filter_map(|rest| rest.split(']').next());
    let words = lists.flat_map(|list| list.split('"'));
    words.filter_map(Interface::from_word).collect()
}

/// The activation flags that a text names, even if it is not valid JSON.
fn flags_in(text: &str) -> Vec<String> {
    if let Ok(Json::Object(members)) = serde_json::from_str(text) {
        return members
            .iter()
            .filter(|(key, _)| key == "activation_flag")
            .filter_map(|(_, value)| value.text())
            .filter(|flag| is_flag(flag))
            .map(str::to_owned)
            .collect();
    }
    text.split("\"activation_flag\"")
        .skip(1)
        .filter_map(|rest| {
            let rest = rest.trim_start().strip_prefix(':')?.trim_start();
            let flag = rest.strip_prefix('"')?.split('"').next()?;
            is_flag(flag).then(|| flag.to_owned())
        })
        .collect()
}
