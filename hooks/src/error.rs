//! The one error type: what happened, to what, and what to do next.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use crate::log::printable;

/// Exit codes of the program; `docs/reference/oci-decorator.md` explains each.
pub mod exit {
    /// Done, or nothing to do.
    pub const DONE: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    /// Not supported on this host, or not found on it.
    pub const NOT_FOUND: u8 = 3;
}

/// An error. At a container's start, it is one line ([`fmt::Display`]), because engines and logs
/// show one. A command that a person types prints what to do on a line of its own
/// ([`Error::lines`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What happened, and to what.
    pub message: String,
    /// What to do next, where there is something to do.
    pub resolution: Option<String>,
    /// The exit code that the outermost layer uses.
    pub code: u8,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

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

    /// A file can't be read or changed, with what to do about a missing permission, a read-only
    /// file system and a full one.
    pub fn of_file(verb: &str, path: &Path, error: &std::io::Error) -> Self {
        let failed = Self::failed(format!("can't {verb} {}: {error}", path.display()));
        let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
        let there = there.display();
        match error.kind() {
            ErrorKind::PermissionDenied => failed.resolve(format!(
                "run the command as root (sudo), or see who may do it: ls -ld {there}"
            )),
            ErrorKind::ReadOnlyFilesystem => failed
                .resolve(format!("see which file system is read-only: findmnt --target {there}")),
            ErrorKind::StorageFull => failed.resolve(format!("make room: df -h {there}")),
            _ => failed,
        }
    }

    /// The same error, with what to do about it.
    #[must_use]
    pub fn resolve(mut self, resolution: impl Into<String>) -> Self {
        self.resolution = Some(resolution.into());
        self
    }

    /// The error as a command prints it: what happened, then what to do.
    pub fn lines(&self) -> Vec<String> {
        let resolution = self.resolution.iter();
        let resolution = resolution.map(|text| format!("What to do: {}", printable(text)));
        let message = std::iter::once(printable(&self.message));
        message.chain(resolution).collect()
    }

    /// The same error with everything in its message, for a program that a container waits for.
    #[must_use]
    pub fn on_one_line(self) -> Self {
        Self { message: self.to_string(), resolution: None, code: self.code }
    }

    fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self { message: message.into(), resolution: None, code }
    }
}

/// In reports for programs, an error is its text.
impl serde::Serialize for Error {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
