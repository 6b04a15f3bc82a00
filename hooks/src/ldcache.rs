//! Makes a container's loader find the libraries that are mounted into it.
//!
//! [`update`] merges entries into glibc's cache as `ldconfig` would have written them, byte
//! for byte, names their folders in a drop-in of `ld.so.conf.d` so that a later `ldconfig`
//! keeps them, and extends musl's path file. No program of host or image is run for that,
//! and no file of the image is opened unless it is known to be a regular one.

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
