//! `oci-decorator install-links`: links with the names of NVIDIA's programs.

use std::path::PathBuf;

use serde_json::json;

use super::{print, JSON};
use crate::engines::links::Links;
use crate::error::{Error, Result};
use crate::spec::options::{flag, Opt, ParsedArgs};

pub const OPTIONS: &[Opt] = &[flag(&["remove"]), JSON];

/// Makes or removes the links.
pub fn run(args: &ParsedArgs) -> Result<u8> {
    let [folder] = args.operands.as_slice() else {
        let error = args.wrong("the folder is missing");
        return Err(
            error.resolve("name one folder, for example: oci-decorator install-links /usr/bin")
        );
    };
    let folder = std::path::absolute(folder)
        .map_err(|e| Error::failed(format!("{}: {e}", folder.to_string_lossy())))?;
    let program = own_program()?;
    let links = Links::new(&folder, &program);
    let (changed, verb) = if args.is_set("remove") {
        (links.remove()?, "removed")
    } else {
        (links.install()?, "made")
    };
    let changed: Vec<_> = changed.iter().map(|path| path.display().to_string()).collect();
    print(&if args.is_set("json") {
        format!("{}\n", json!({"target": links.target.to_string_lossy(), "changed": changed}))
    } else if changed.is_empty() {
        "nothing to do\n".to_owned()
    } else {
        let text = changed.iter().flat_map(|path| [path.as_str(), " was ", verb, "\n"]);
        text.collect()
    })
}

/// The real path of this program.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .map_err(|e| Error::failed(format!("can't find this program's own path: {e}")))
}
