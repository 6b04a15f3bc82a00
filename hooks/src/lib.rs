//! Puts accelerator drivers into containers when they start.
//!
//! Each of the [`frontends`] fills in a [`model::request`]. The [`model::policy`] says which parts of
//! it count, [`model::decide`] chooses the features, [`host`] looks them up, and [`apply`] puts the
//! resulting [`model::edits`] into the container.

pub mod apply;
pub mod cli;
/// The configuration of a host: settings, vendor files and CDI specifications.
pub mod config {
    pub mod cdi;
    pub mod nvidia;
    pub mod reader;
    pub mod settings;
    pub mod vendor;
}
pub mod engines;
pub mod error;
pub mod frontends;
pub mod host;
pub mod log;
/// What a container asks for, what the policy lets it have, and the edits that follow. Pure: it
/// looks at no host and changes no container.
pub mod model {
    pub mod decide;
    pub mod edits;
    pub mod policy;
    pub mod request;
    pub mod vendor;
}
/// The formats of the Open Container Initiative: command lines of runtimes, what specs ask for,
/// states; and the command lines of this program.
pub mod spec {
    pub mod command_line;
    pub mod config;
    pub mod options;
}

#[cfg(test)]
#[path = "../tests/support/need.rs"]
mod need;

/// musl's own allocator takes as long as everything else that a start does.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
