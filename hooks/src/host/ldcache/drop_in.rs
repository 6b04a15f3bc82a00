//! The drop-in that makes a later `ldconfig` in the container keep our folders.

use rustc_hash::FxHashSet;
use rustix::io::Errno;

use super::put;
use crate::host::rootfs::Root;
use crate::model::glob;

const CONF: &str = "etc/ld.so.conf";
const FOLDER: &str = "etc/ld.so.conf.d";
/// Its name sorts first, so that it takes precedence over copies in the image.
const NAME: &str = "00-oci-decorator.conf";
/// Its name sorts before the other, so that its folder comes before the driver's folders.
const COMPAT_NAME: &str = "00-oci-decorator-compat.conf";
const HEADER: &str =
    "# Written by oci-decorator: folders of the drivers that this container was given.\n";
const MAX_CONF: u64 = 1 << 16;

/// The drop-in of an earlier start, or empty bytes if there is none.
pub fn read(root: &Root) -> String {
    match root.read(&format!("{FOLDER}/{NAME}"), MAX_CONF) {
        Ok((bytes, _)) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

/// The folder that [`put_compat`] wrote for this container.
pub fn compat(root: &Root) -> Option<String> {
    let (bytes, _) = root.read(&format!("{FOLDER}/{COMPAT_NAME}"), MAX_CONF).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let first = folders(&text).next().map(str::to_owned);
    first
}

/// Records which folder of the image comes before the driver's, or that none does.
pub fn put_compat(root: &Root, compat: Option<&str>) -> rustix::io::Result<()> {
    if compat == self::compat(root).as_deref() {
        return Ok(());
    }
    let folder = root.make_folder(FOLDER)?;
    match compat {
        Some(path) => {
            let mut like = rustix::fs::fstat(&folder)?;
            like.st_mode = 0o644;
            let text = format!("{HEADER}{path}\n");
            put(&folder, COMPAT_NAME, text.as_bytes(), &like)
        }
        None => rustix::fs::unlinkat(&folder, COMPAT_NAME, rustix::fs::AtFlags::empty()),
    }
}

/// The folders that a drop-in lists.
pub fn folders(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| line.starts_with('/'))
}

/// Writes the drop-in where `ld.so.conf` includes it. Folders that the `old` one
/// lists stay in it, as the cache by itself does not say that they are ours.
pub fn update(root: &Root, old: &str, folders: &[&str]) -> rustix::io::Result<()> {
    let new = content(old, folders);
    if new == old || new == HEADER || !included(root)? {
        return Ok(());
    }
    let folder = root.make_folder(FOLDER)?;
    let mut like = rustix::fs::fstat(&folder)?;
    like.st_mode = 0o644;
    put(&folder, NAME, new.as_bytes(), &like)
}

fn content(old: &str, new: &[&str]) -> String {
    let mut listed = FxHashSet::default();
    let mut text = HEADER.to_owned();
    for folder in new.iter().copied().chain(folders(old)) {
        if listed.insert(folder) {
            text.push_str(folder);
            text.push('\n');
        }
    }
    text
}

fn included(root: &Root) -> rustix::io::Result<bool> {
    match root.read(CONF, MAX_CONF) {
        Ok((bytes, _)) => {
            Ok(includes(&String::from_utf8_lossy(&bytes), &format!("/{FOLDER}/{NAME}")))
        }
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// True when a line `include PATTERN …` covers the path (ldconfig(8)).
fn includes(conf: &str, path: &str) -> bool {
    conf.lines().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        words.next() == Some("include")
            && words.any(|pattern| {
                if pattern.starts_with('/') {
                    glob::matches(pattern, path)
                } else {
                    glob::matches(&format!("/etc/{pattern}"), path)
                }
            })
    })
}
