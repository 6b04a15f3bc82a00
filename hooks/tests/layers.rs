//! The order of the crate's folders, in which imports go one way. Rust itself lets any module
//! import any other.

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom. A folder imports from itself and from those before it.
const ORDER: [&str; 10] =
    ["log", "error", "model", "spec", "host", "config", "apply", "frontends", "engines", "cli"];

#[test]
fn a_folder_imports_from_those_below_it_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = [false; ORDER.len()];
    for file in sources(&src) {
        let within = file.strip_prefix(&src).unwrap();
        let folder = within.components().next().unwrap().as_os_str();
        let folder = Path::new(folder).file_stem().unwrap().to_str().unwrap();
        if matches!(folder, "lib" | "main") || within.ends_with("tests.rs") {
            continue;
        }
        let at = place(folder).unwrap_or_else(|| panic!("src/{folder} has no place in ORDER"));
        seen[at] = true;
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (line, text) in code.lines().enumerate() {
            for used in text.split("crate::").skip(1) {
                let name: String = used.chars().take_while(|c| c.is_alphanumeric()).collect();
                if place(&name).is_some_and(|used| used > at) {
                    wrong.push(format!("{}:{}: {name}", within.display(), line + 1));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "imports from above");
    assert_eq!(seen, [true; ORDER.len()]);
}

fn place(folder: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == folder)
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files.into_iter().filter(|it| it.extension() == Some("rs".as_ref()));
    rust.chain(folders.iter().flat_map(|it| sources(it))).collect()
}
