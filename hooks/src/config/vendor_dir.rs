//! Reads the folder of vendor files: `*.json`, sorted by name.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::config::vendor::{is_flag, parse, Mistake, Vendor};
use crate::error::{Error, Result};
use crate::host::rootfs::listing::names_in;
use crate::host::rootfs::{open_regular, read_whole};
use crate::host::trust::{self, untrusted, Distrust};
use crate::model::decide::{Broken, VendorFile};
use crate::model::request::Interface;
use crate::spec::json::Json;

/// Largest vendor file that is read, in bytes.
pub const MAX_SIZE: u64 = 1 << 20;

/// Reads every vendor file of the folder. A missing folder has none. If a user other than root may
/// change the folder or one above it, none of its files can be used.
/// Errors: the folder can't be read.
pub fn read(folder: &Path) -> Result<Vec<VendorFile>> {
    let found = match trust::open(folder) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(error) => return Err(cannot("open", folder, error)),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&found.fd, ".", flags, Mode::empty())
        .map_err(|error| cannot("open", folder, error))?;
    let names = names(&fd).map_err(|error| cannot("list", folder, error))?;
    Ok(names
        .into_iter()
        .map(|name| VendorFile {
            content: read_one(&fd, &folder.join(&name), &name, found.problem.as_ref()),
            path: folder.join(&name).display().to_string(),
            name: name.trim_end_matches(".json").to_owned(),
        })
        .collect())
}

fn cannot(verb: &str, folder: &Path, error: Errno) -> Error {
    let shown = folder.display();
    let failed = Error::failed(format!("can't {verb} {shown}: {error}"));
    match error {
        Errno::ACCESS => failed.resolve(format!("let every user read it: chmod a+rx {shown}")),
        Errno::NOTDIR => failed.resolve(format!("name a folder; see what it is: ls -ld {shown}")),
        _ => failed,
    }
}

fn names(folder: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let mut names = names_in(folder)?;
    names.retain(|name| is_vendor_file(name));
    names.sort();
    Ok(names)
}

/// Editors and package managers leave files with other names behind, some with a dot in front.
fn is_vendor_file(name: &str) -> bool {
    !name.starts_with('.') && name.strip_suffix(".json").is_some()
}

fn read_one(
    folder: &OwnedFd,
    path: &Path,
    name: &str,
    distrust: Option<&Distrust>,
) -> std::result::Result<Vendor, Broken> {
    let (bytes, problem) = read_bytes(folder, path, name)?;
    let mistake = |distrust: &Distrust| Mistake::new("", distrust.mistake_of(path));
    let mut mistakes: Vec<_> = distrust.into_iter().chain(&problem).map(mistake).collect();
    let Ok(text) = std::str::from_utf8(&bytes) else {
        mistakes.push(Mistake::new("", "not valid UTF-8"));
        return Err(broken(mistakes, &String::from_utf8_lossy(&bytes)));
    };
    match parse(text) {
        Ok(vendor) if mistakes.is_empty() => Ok(vendor),
        Ok(_) => Err(broken(mistakes, text)),
        Err(found) => {
            mistakes.extend(found);
            Err(broken(mistakes, text))
        }
    }
}

/// An open vendor file, and why a user other than root may have written it.
struct Opened {
    fd: OwnedFd,
    stat: Stat,
    problem: Option<Distrust>,
}

fn open(folder: &OwnedFd, path: &Path, name: &str) -> rustix::io::Result<Opened> {
    // Only regular files are opened, because opening a device can have an effect.
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
            let fd = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?;
            let stat = rustix::fs::fstat(&fd)?;
            let path = path.to_owned();
            let problem = untrusted(&stat).map(|why| Distrust { path, why });
            Ok(Opened { fd, stat, problem })
        }
        // Anyone who may change a folder in the link's path chooses its target.
        FileType::Symlink => {
            let found = trust::open(path)?;
            let (fd, stat) = open_regular(found.fd)?;
            let problem = found.problem;
            Ok(Opened { fd, stat, problem })
        }
        _ => Err(Errno::INVAL),
    }
}

fn read_bytes(
    folder: &OwnedFd,
    path: &Path,
    name: &str,
) -> std::result::Result<(Vec<u8>, Option<Distrust>), Broken> {
    let read = open(folder, path, name).and_then(|opened| {
        let bytes = read_whole(&opened.fd, &opened.stat, MAX_SIZE)?;
        Ok((bytes, opened.problem))
    });
    read.map_err(|error| {
        let (problem, text) = match error {
            Errno::INVAL => ("not a regular file".to_owned(), String::new()),
            Errno::FBIG => (
                format!("larger than {MAX_SIZE} bytes"),
                beginning(folder, path, name),
            ),
            other => (format!("can't be read: {other}"), String::new()),
        };
        broken(vec![Mistake::new("", problem)], &text)
    })
}

/// The beginning of a file that is too large, in which its flag is looked for.
fn beginning(folder: &OwnedFd, path: &Path, name: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(opened) = open(folder, path, name) {
        // The bytes before an error are good enough.
        let _ = File::from(opened.fd).take(MAX_SIZE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn broken(mistakes: Vec<Mistake>, text: &str) -> Broken {
    Broken {
        mistakes,
        flags: flags_in(text),
        interfaces: interfaces_in(text),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    const GOOD: &str = r#"{"activation_flag":"X","driver_feature":[],"inventory":{}}"#;

    fn problem(file: &VendorFile) -> String {
        let broken = file.content.as_ref().unwrap_err();
        broken
            .mistakes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn reads_json_files_in_order_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "b.json",
            "a.json",
            "README",
            "a.json.rpmsave",
            ".hidden.json",
        ] {
            std::fs::write(dir.path().join(name), GOOD).unwrap();
        }
        let files = read(dir.path()).unwrap();
        let names: Vec<_> = files.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(files.iter().all(|f| f.content.is_ok()));
        assert!(read(&dir.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_folder_above_that_others_may_change_makes_every_file_unusable() {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().canonicalize().unwrap().join("above");
        let folder = above.join("conf.d");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a.json"), GOOD).unwrap();
        assert!(read(&folder).unwrap()[0].content.is_ok());
        std::fs::set_permissions(&above, PermissionsExt::from_mode(0o777)).unwrap();
        let file = &read(&folder).unwrap()[0];
        let expected = format!(
            "{0} is writable by everyone; correct the owner and the mode: chown -h root {0} && chmod go-w {0}",
            above.display(),
        );
        assert_eq!(problem(file), expected);
        assert_eq!(file.content.as_ref().unwrap_err().flags, ["X"]);
        // Who may change the target's folder chooses the file that a link leads to.
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(folder.join("a.json"), other.join("link.json")).unwrap();
        assert_eq!(problem(&read(&other).unwrap()[0]), expected);
        std::fs::set_permissions(&above, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(read(&other).unwrap()[0].content.is_ok());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(read(&dir.path().join("file")).is_err());
    }

    #[test]
    fn unusable_files_say_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("folder.json")).unwrap();
        std::fs::write(
            path("latin.json"),
            b"{\"activation_flag\": \"X\", \"version\": \"\xfc\"}",
        )
        .unwrap();
        std::fs::write(path("huge.json"), GOOD).unwrap();
        let huge = std::fs::File::options().write(true).open(path("huge.json"));
        huge.unwrap().set_len(100 << 20).unwrap();
        std::fs::write(path("open.json"), GOOD).unwrap();
        let mode = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path("open.json"), mode).unwrap();
        let files = read(dir.path()).unwrap();
        let problems: Vec<_> = files.iter().map(problem).collect();
        assert_eq!(problems[0], "not a regular file");
        assert_eq!(problems[1], "larger than 1048576 bytes");
        assert_eq!(problems[2], "not valid UTF-8");
        assert!(problems[3].starts_with("is writable by everyone"));
        assert_eq!(files[1].content.as_ref().unwrap_err().flags, ["X"]);
        assert_eq!(files[2].content.as_ref().unwrap_err().flags, ["X"]);
        assert_eq!(files[3].content.as_ref().unwrap_err().flags, ["X"]);
    }

    #[test]
    fn flags_are_found_in_broken_text() {
        assert_eq!(flags_in("{\"activation_flag\" :\n \"OCI_A\","), ["OCI_A"]);
        assert_eq!(
            flags_in("\"activation_flag\": 3, \"activation_flag\":\"B\""),
            ["B"]
        );
        assert_eq!(
            flags_in(r#"{"activation_flag":"A","x":{"activation_flag":"B"}}"#),
            ["A"]
        );
        assert!(flags_in("activation_flag = X").is_empty());
    }

    #[test]
    fn interfaces_are_found_in_broken_text() {
        for (text, expected) in [
            (
                r#"{"interfaces":["nvidia","x"],"colour":1}"#,
                &[Interface::Nvidia][..],
            ),
            (
                r#"{"interfaces" : [ "amd", "nvidia" ], "#,
                &[Interface::Amd, Interface::Nvidia],
            ),
            (r#"{"interfaces":"nvidia"}"#, &[]),
            (r#"{"inventory":{"nvidia":{}}}"#, &[]),
            (r#"{"interfaces":[],"activation_flag":"nvidia","#, &[]),
        ] {
            assert_eq!(interfaces_in(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(?s).{0,200}", tail in "[\\[\\]{}\":, a-z_]{0,40}") {
            let _ = parse(&text);
            let _ = flags_in(&format!("\"activation_flag\"{text}{tail}"));
            let _ = interfaces_in(&format!("\"interfaces\"{text}{tail}"));
            let _ = parse(&format!("{{\"activation_flag\":{tail}"));
        }
    }
}
