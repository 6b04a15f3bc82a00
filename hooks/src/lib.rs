//! Puts accelerator drivers into containers when they start.
//!
//! Several front ends, one engine: each of [`frontends`] fills a [`request`], the
//! [`policy`] says what of it counts, [`decide`] which features that is, [`discover`]
//! looks them up on the host, and the resulting [`edits`] are put into the container by
//! [`apply`].

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

/// musl's own allocator takes as long as all else that a start does.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
