//! Puts accelerator drivers into containers when they start.
//!
//! Each of the [`frontends`] fills in a [`request`]. The [`policy`] says which parts of it count,
//! [`decide`] chooses the features, [`discover`] looks them up on the host, and [`apply`] puts the
//! resulting [`edits`] into the container.

pub mod apply;
pub mod cli;
pub mod config;
pub mod configure;
pub mod decide;
pub mod discover;
pub mod edits;
pub mod error;
pub mod frontends;
pub mod ldcache;
pub mod log;
pub mod oci;
pub mod policy;
mod publish;
pub mod request;
pub mod rootfs;
mod syscalls;

#[cfg(test)]
#[path = "../tests/support/need.rs"]
mod need;

/// musl's own allocator takes as long as everything else that a start does.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
