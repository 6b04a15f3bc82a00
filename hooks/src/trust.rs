//! Which files may steer a program that runs as root.

use rustix::fs::{FileType, Stat};

/// What to do about a file that may not.
pub const RESOLUTION: &str = "chown root it and chmod go-w it";

/// Why this file or folder must not steer a root program, if so.
pub fn untrusted(stat: &Stat) -> Option<&'static str> {
    let mode = stat.st_mode;
    let sticky_folder = FileType::from_raw_mode(mode) == FileType::Directory && mode & 0o1000 != 0;
    if !owner_is_trusted(stat.st_uid) {
        Some("is not owned by root")
    } else if mode & 0o002 != 0 && !sticky_folder {
        Some("is writable by everyone")
    } else if mode & 0o020 != 0 && stat.st_gid != 0 {
        Some("is writable by a group")
    } else {
        None
    }
}

fn owner_is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw() || is_unmapped_root(uid)
}

/// In a rootless engine's user namespace the host's root shows as the overflow
/// user. Nothing there runs with more rights than the user has anyway.
fn is_unmapped_root(uid: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid");
    let initial = read("/proc/self/uid_map")
        .split_whitespace()
        .eq(["0", "0", "4294967295"]);
    !initial && overflow.trim().parse() == Ok(uid)
}
