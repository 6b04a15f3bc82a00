//! Puts accelerator drivers into containers when they start.
//!
//! Each of the [`frontends`] fills in a [`model::request`]. The [`model::policy`] says which parts of
//! it count, [`model::decide`] chooses the features, [`host`] looks them up, and [`apply`] puts the
//! resulting [`model::edits`] into the container.

pub mod apply;
pub mod cli;
pub mod config;
pub mod engines;
pub mod error;
pub mod frontends;
pub mod host;
pub mod log;
pub mod model;
pub mod spec;

#[cfg(test)]
#[path = "../tests/support/need.rs"]
mod need;

/// musl's own allocator takes as long as everything else that a start does.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
