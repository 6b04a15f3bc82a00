//! The one call that the compiler can't check.
#![allow(unsafe_code)]

use rustix::thread::{unshare_unsafe, UnshareFlags};

/// Moves this process into mount, IPC, network and UTS namespaces of its own,
/// and its next child into a process namespace.
pub fn leave_the_hosts() -> rustix::io::Result<()> {
    let flags = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWUTS;
    // SAFETY: what makes unshare(2) unsafe is CLONE_FILES, which parts threads
    // from each other's descriptors; it isn't among the flags.
    unsafe { unshare_unsafe(flags) }
}
