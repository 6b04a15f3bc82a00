//! Lets a container's loader find the libraries that are mounted into it.
//!
//! [`update`] merges entries into glibc's cache, byte for byte as `ldconfig` would write
//! them. It names their folders in a drop-in of `ld.so.conf.d`, so that a later `ldconfig`
//! keeps them, and extends musl's path file. It runs no program of the host or the image,
//! and opens a file of the image only if it is known to be a regular file.

mod cache;
pub mod drop_in;
mod merge;
mod musl;
mod parse;
mod update;
mod write;

pub use cache::{compare_names, Cache, Entry};
pub use merge::{merge, Addition};
pub use parse::{parse, Unreadable};
pub use update::{update, MAX_CACHE};
pub use write::write;
