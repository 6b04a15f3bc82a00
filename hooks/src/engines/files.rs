//! Reads and writes files of engines: whole or not at all, with the owner, the permissions and the
//! `SELinux` label of the old file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{fchown, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::XattrFlags;

use super::lock::Lock;
use crate::error::{Error, Result};
use crate::host::publish::write_through;

/// Larger than any hand-written configuration.
const MAX_SIZE: u64 = 16 << 20;
/// The mode of new files.
const MODE: u32 = 0o644;
const LABEL: &str = "security.selinux";

/// The text of a file. `None`: it does not exist. Errors: it is not a regular file or not UTF-8, is
/// too large, or is a link to another folder, so another program may own it.
pub fn read(path: &Path) -> Result<Option<String>> {
    read_others(&real(path)?)
}

/// The same of a file that is never changed: a link is followed anywhere.
pub fn read_others(path: &Path) -> Result<Option<String>> {
    let shown = path.display();
    let fail = |problem: &str| Error::failed(format!("can't read {shown}: {problem}"));
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::of_file("read", path, &error)),
    };
    if !about.is_file() {
        return Err(fail("it is not a regular file").resolve(move_away(path)));
    }
    if about.len() > MAX_SIZE {
        return Err(fail(&format!("it is larger than {MAX_SIZE} bytes")).resolve(move_away(path)));
    }
    let bytes = std::fs::read(path).map_err(|error| Error::of_file("read", path, &error))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        fail("it is not valid UTF-8").resolve(format!(
            "correct these lines: LC_ALL=C.UTF-8 grep -naxv '.*' {shown}"
        ))
    })?;
    Ok(Some(text))
}

fn move_away(path: &Path) -> String {
    let shown = path.display();
    format!("move it away, and run the command again: mv {shown} {shown}.old")
}

/// Writes a file by one rename, synced, or to what is no file, as `write_through` says. Missing folders are made. `held` locks its folder.
pub fn write(held: &Lock, path: &Path, text: &str, mode: Option<u32>) -> Result<()> {
    if write_through(path, text.as_bytes()).map_err(|e| Error::of_file("write", path, &e))? {
        return Ok(());
    }
    let path = real(path)?;
    let fail = |error: std::io::Error| Error::of_file("write", &path, &error);
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(fail)?;
    remove_drafts(held, &path);
    let draft = draft_of(&path);
    let written = fill(&draft, &path, text, mode)
        .and_then(|()| std::fs::rename(&draft, &path))
        .and_then(|()| File::open(folder)?.sync_all());
    written.map_err(|error| {
        let _ = std::fs::remove_file(&draft);
        fail(error)
    })
}

fn fill(draft: &Path, path: &Path, text: &str, mode: Option<u32>) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(text.as_bytes())?;
    let old = std::fs::metadata(path).ok();
    if let Some(old) = &old {
        let new = file.metadata()?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        keep_label(path, &file);
    }
    let kept = old.map(|old| old.permissions().mode() & 0o777);
    let mode = mode.or(kept).unwrap_or(MODE);
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    file.sync_all()
}

/// Copies the `SELinux` label of the old file, as a new file has the folder's label.
fn keep_label(path: &Path, file: &File) {
    let mut label = [0; 256];
    if let Ok(length) = rustix::fs::getxattr(path, LABEL, &mut label[..]) {
        let _ = rustix::fs::fsetxattr(file, LABEL, &label[..length], XattrFlags::empty());
    }
}

/// Removes a file, which may be missing. `held` locks its folder.
pub fn remove(held: &Lock, path: &Path) -> Result<()> {
    let path = real(path)?;
    remove_drafts(held, &path);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::of_file("remove", &path, &error))
        }
        _ => Ok(()),
    }
}

/// The missing folders above a file, the outermost first.
pub fn missing_folders(path: &Path) -> Vec<String> {
    let above = path
        .ancestors()
        .skip(1)
        .filter(|f| !f.as_os_str().is_empty());
    let missing = above.take_while(|folder| !folder.exists());
    let mut missing: Vec<_> = missing.map(|f| f.display().to_string()).collect();
    missing.reverse();
    missing
}

/// Removes folders that are empty.
pub fn remove_folders(folders: &[String]) {
    for folder in folders.iter().rev() {
        let _ = std::fs::remove_dir(folder);
    }
}

/// The real path of a file. A link within the folder is followed. Errors: the link leads elsewhere.
fn real(path: &Path) -> Result<PathBuf> {
    // A name without a folder means the working folder.
    let path = &std::path::absolute(path).map_err(|error| Error::of_file("find", path, &error))?;
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink());
    if !is_link {
        return Ok(path.to_owned());
    }
    let shown = path.display();
    let target = std::fs::canonicalize(path).map_err(|error| {
        Error::failed(format!("{shown} is a link that can't be followed: {error}"))
            .resolve(format!("remove it: rm {shown}"))
    })?;
    let own = path.parent().map(std::fs::canonicalize);
    if own.and_then(std::result::Result::ok).as_deref() == target.parent() {
        return Ok(target);
    }
    let target = target.display();
    Err(Error::failed(format!(
        "{shown} is a link to {target}, which another program may own"
    ))
    .resolve(format!("to change it anyway, name it: --config {target}")))
}

/// The name of a draft, which no other process or thread uses.
pub(super) fn draft_of(path: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (own, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    path.with_file_name(format!("{}.{own}.{number}", draft_name(path)))
}

fn draft_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.oci-decorator")
}

/// Removes drafts of killed runs. While the folder is locked, there are no other drafts.
pub(super) fn remove_drafts(held: &Lock, path: &Path) {
    if !held.is_sure() {
        return;
    }
    let name = draft_name(path);
    let is_draft = |found: &str| {
        let rest = found.strip_prefix(&name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|e| is_draft(&e.file_name().to_string_lossy())) {
        let _ = std::fs::remove_file(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::lock;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, text: &str, mode: Option<u32>) -> Result<()> {
        super::write(&lock::take(&[path], true)?, path, text, mode)
    }

    fn remove(path: &Path) -> Result<()> {
        super::remove(&lock::take(&[path], false)?, path)
    }

    #[test]
    fn a_file_keeps_its_owner_and_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        let folders = missing_folders(&path);
        assert_eq!(folders.len(), 2);
        assert!(folders[0].ends_with("/a") && folders[1].ends_with("/a/b"));
        assert_eq!(read(&path).unwrap(), None);
        write(&path, "one", None).unwrap();
        let about = || std::fs::metadata(&path).unwrap();
        assert_eq!(about().mode() & 0o777, 0o644);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        if crate::need::root("chown") {
            std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
        }
        let before = about();
        write(&path, "two", None).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), "two");
        let found = (about().uid(), about().gid(), about().mode());
        assert_eq!(found, (before.uid(), before.gid(), before.mode()));
        assert_ne!(about().ino(), before.ino(), "no reader sees half of it");
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1
        );
        remove(&path).unwrap();
        remove(&path).unwrap();
        remove_folders(&folders);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_is_followed_in_its_folder_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("other")).unwrap();
        std::fs::write(path("real"), "x").unwrap();
        std::fs::write(path("other/real"), "x").unwrap();
        symlink("real", path("beside")).unwrap();
        symlink("other/real", path("elsewhere")).unwrap();
        symlink("gone", path("dangling")).unwrap();
        write(&path("beside"), "y", None).unwrap();
        assert_eq!(std::fs::read_to_string(path("real")).unwrap(), "y");
        assert!(std::fs::symlink_metadata(path("beside"))
            .unwrap()
            .is_symlink());
        for (name, expected) in [
            ("elsewhere", "is a link to"),
            ("dangling", "can't be followed"),
        ] {
            for error in [
                read(&path(name)).unwrap_err(),
                write(&path(name), "y", None).unwrap_err(),
                remove(&path(name)).unwrap_err(),
            ] {
                assert!(error.message.contains(expected), "{error}");
                assert!(error.resolution.is_some());
            }
        }
        assert_eq!(std::fs::read_to_string(path("other/real")).unwrap(), "x");
    }

    #[test]
    fn drafts_of_killed_runs_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let kept = [
            ".file.oci-decoratorx",
            ".file2.oci-decorator.7.0",
            "file.oci-decorator",
        ];
        let left = [".file.oci-decorator", ".file.oci-decorator.7.0"];
        for gone in [
            write as fn(&Path, &str, Option<u32>) -> Result<()>,
            |path, _, _| remove(path),
        ] {
            for name in kept.iter().chain(&left) {
                std::fs::write(path(name), "").unwrap();
            }
            gone(&path("file"), "x", None).unwrap();
            assert!(kept.iter().all(|name| path(name).exists()));
            assert!(!left.iter().any(|name| path(name).exists()));
        }
        assert_ne!(draft_of(&path("file")), draft_of(&path("file")));
    }

    #[test]
    fn a_file_that_is_not_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let problem = || read(&path).unwrap_err().message;
        std::fs::write(&path, b"\xff").unwrap();
        assert!(problem().ends_with("it is not valid UTF-8"));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_SIZE + 1).unwrap();
        assert!(problem().contains("it is larger than"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(problem().ends_with("it is not a regular file"));
        let failed = write(&path, "x", None).unwrap_err();
        assert!(failed.message.contains("can't write"), "{failed}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
