//! Reads the folders of specifications. A later folder overrides an earlier one.

use std::path::PathBuf;

use rustix::io::Errno;

use super::{is_kind, parse, Document, Syntax};
use crate::config::folder::{self, Unusable};
use crate::error::{Error, Result};
use crate::model::vendor::{summary, Mistake};
use crate::spec::json::Json;

pub use crate::config::folder::MAX_SIZE;

/// The folders that engines read, in ascending priority.
pub const DEFAULT: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// A file as it was found, with or without mistakes.
#[derive(Debug)]
pub struct SpecFile {
    pub path: PathBuf,
    /// The position of its folder. A higher one overrides a lower one.
    pub priority: usize,
    pub content: std::result::Result<Document, Broken>,
}

/// What is known about a file that can't be used.
#[derive(Debug)]
pub struct Broken {
    pub mistakes: Vec<Mistake>,
    /// The kind that its text appears to name.
    pub kind: Option<String>,
}

impl Broken {
    fn of(file: Unusable, syntax: Syntax) -> Self {
        Self { kind: kind_in(&file.text, syntax), mistakes: file.mistakes }
    }

    /// The first mistake, and how many more there are.
    pub fn summary(&self) -> String {
        summary(&self.mistakes)
    }
}

/// Reads every specification of the folders. A missing folder (`None`) has none.
/// Errors: a folder can't be read.
pub fn read(folders: &[Option<PathBuf>]) -> Result<Vec<SpecFile>> {
    let mut specs = Vec::new();
    for (priority, folder) in folders.iter().enumerate() {
        let Some(folder) = folder else { continue };
        let syntax = |name: &str| Syntax::of(name).unwrap_or(Syntax::Json);
        let is_wanted = |name: &str| Syntax::of(name).is_some();
        let files = folder::read(folder, is_wanted, |name, text| parse(text, syntax(name)));
        let files = match files {
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            other => {
                other.map_err(|e| Error::failed(format!("can't read {}: {e}", folder.display())))?
            }
        };
        specs.extend(files.into_iter().map(|file| SpecFile {
            priority,
            content: file.content.map_err(|broken| Broken::of(broken, syntax(&file.name))),
            path: file.path,
        }));
    }
    Ok(specs)
}

/// The kind that a text names, even if the text is malformed.
fn kind_in(text: &str, syntax: Syntax) -> Option<String> {
    if let Ok(Json::Object(members)) = syntax.parse(text) {
        let stated = members.iter().find(|(key, _)| key == "kind");
        if let Some(kind) = stated.and_then(|(_, kind)| kind.text()) {
            return Some(kind.to_owned());
        }
    }
    text.split("kind").skip(1).find_map(|rest| {
        let rest = rest.trim_start_matches(['"', '\'']).trim_start();
        let rest = rest.strip_prefix(':')?.trim_start();
        let value = rest.trim_start_matches(['"', '\'']);
        let end = value.find(|c: char| !c.is_ascii_alphanumeric() && !"./_-".contains(c));
        let kind = &value[..end.unwrap_or(value.len())];
        is_kind(kind).then(|| kind.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_broken_text_is_found() {
        for (text, syntax, kind) in [
            ("{\"kind\" : \"a.com/b\", ", Syntax::Json, Some("a.com/b")),
            ("kind: a.com/b\n\t: x", Syntax::Yaml, Some("a.com/b")),
            ("  'kind': 'a/b'\n\t", Syntax::Yaml, Some("a/b")),
            ("mankind: x\n\t", Syntax::Yaml, None),
            ("", Syntax::Json, None),
        ] {
            assert_eq!(kind_in(text, syntax).as_deref(), kind, "{text}");
        }
    }
}
