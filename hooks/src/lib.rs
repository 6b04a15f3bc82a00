//! Puts accelerator drivers into containers when they start.
//!
//! One engine, several doors: [`decide`] says which features a container asks
//! for, [`collect`] looks them up on the host, and the resulting [`edits`] are
//! applied to the container's [`spec`] and, by the [`shim`], to its root.

pub mod arguments;
mod bundle;
pub mod cdi;
pub mod check;
pub mod cli;
pub mod clock;
pub mod collect;
mod container;
pub mod decide;
pub mod edits;
pub mod elf;
pub mod engine;
pub mod environment;
pub mod error;
pub mod fold;
pub mod glob;
pub mod hook;
pub mod host;
pub mod inroot;
pub mod json;
pub mod ldcache;
pub mod level;
pub mod libcache;
pub mod log;
mod publish;
pub mod settings;
pub mod shim;
pub mod spec;
pub mod stdio;
mod syscalls;
mod trust;
pub mod vendor;
pub mod vendor_dir;

/// musl's own allocator takes as long as all else that a start does.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
