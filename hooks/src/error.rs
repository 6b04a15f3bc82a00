//! The one error type: what happened, to what, and what to do next.

use std::fmt;

/// Exit codes of the program; `docs/reference/oci-decorator.md` explains each.
pub mod exit {
    /// Done, or nothing to do.
    pub const DONE: u8 = 0;
    /// Something failed.
    pub const FAILED: u8 = 1;
    /// Wrong usage or configuration.
    pub const USAGE: u8 = 2;
    /// Not supported on this host, or not found on it.
    pub const NOT_FOUND: u8 = 3;
}

/// An error that a person reads on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What happened, and to what.
    pub message: String,
    /// What to do next, where there is something to do.
    pub resolution: Option<String>,
    /// The exit code that the outermost layer uses.
    pub code: u8,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn failed(message: impl Into<String>) -> Self {
        Self::with_code(message, exit::FAILED)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::with_code(message, exit::USAGE)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::with_code(message, exit::NOT_FOUND)
    }

    /// The same error, with what to do about it.
    #[must_use]
    pub fn resolve(mut self, resolution: impl Into<String>) -> Self {
        self.resolution = Some(resolution.into());
        self
    }

    fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self {
            message: message.into(),
            resolution: None,
            code,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resolution {
            Some(resolution) => write!(f, "{}: {resolution}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}
