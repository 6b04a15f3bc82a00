//! The formats of the Open Container Initiative: command lines of runtimes, what specs ask
//! for, states.

pub mod command_line;
pub mod config;
pub mod json;
pub mod options;
pub mod state;

/// Largest config.json that is read, in bytes.
pub const MAX_CONFIG: u64 = 64 << 20;
