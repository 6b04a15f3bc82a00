//! The formats of the Open Container Initiative: command lines of runtimes, bundles, what specs
//! ask for, states.

pub mod bundle;
pub mod command_line;
pub mod config;
pub mod json;
pub mod keys;
pub mod options;
pub mod state;
