//! musl's loader has no cache but a list of folders, `/etc/ld-musl-ARCH.path`
//! (musl `ldso/dynlink.c`: separated by newlines or colons).

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{put, Addition};
use crate::host::rootfs::Root;

/// musl's names for the architectures that drivers exist for, by glibc's cache flags.
const ARCHITECTURES: [(u32, &str); 6] = [
    (0x0303, "x86_64"),
    (0x0a03, "aarch64"),
    (0x0003, "i386"),
    (0x0903, "armhf"),
    (0x0503, "powerpc64le"),
    (0x1003, "riscv64"),
];
/// The folders that the loader searches if there is no file.
const DEFAULT: &str = "/lib:/usr/local/lib:/usr/lib";
const MAX_SIZE: u64 = 1 << 16;

/// Adds the folders at the end of the list of every musl loader in the root for which
/// there is a library.
pub fn update(root: &Root, additions: &[Addition], folders: &[&str]) -> rustix::io::Result<()> {
    let served = |flags| additions.iter().any(|a| a.flags == flags);
    for (_, architecture) in ARCHITECTURES.iter().filter(|(flags, _)| served(*flags)) {
        let loader = format!("lib/ld-musl-{architecture}.so.1");
        if root.open_in(&loader, OFlags::PATH).is_ok() {
            extend(root, &format!("ld-musl-{architecture}.path"), folders)?;
        }
    }
    Ok(())
}

fn extend(root: &Root, name: &str, folders: &[&str]) -> rustix::io::Result<()> {
    let etc = root.make_folder("etc")?;
    let mut like = rustix::fs::fstat(&etc)?;
    like.st_mode = 0o644;
    let old = match root.read(&format!("etc/{name}"), MAX_SIZE) {
        Ok((bytes, stat)) => {
            like = stat;
            String::from_utf8(bytes).map_err(|_| Errno::ILSEQ)?
        }
        Err(Errno::NOENT) => DEFAULT.to_owned(),
        Err(error) => return Err(error),
    };
    match extended(&old, folders) {
        Some(new) => put(&etc, name, new.as_bytes(), &like),
        None => Ok(()),
    }
}

/// The list with the missing folders added. `None` if none is missing.
fn extended(old: &str, folders: &[&str]) -> Option<String> {
    let mut listed: Vec<&str> =
        old.split(['\n', ':']).map(str::trim).filter(|f| !f.is_empty()).collect();
    let before = listed.len();
    for folder in folders {
        if !listed.contains(folder) {
            listed.push(folder);
        }
    }
    (listed.len() > before).then(|| listed.join("\n") + "\n")
}
