//! Writes log lines to journald or syslog, and to a file if the settings name one.
//!
//! All of it is best effort. A log that can't be written never stops a container,
//! and a daemon that doesn't read never delays one.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};

const IDENTIFIER: &str = "oci-decorator";
/// <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>
const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";
/// This many characters are enough to recognize a value.
const BRIEF: usize = 80;
/// Facility "daemon" (RFC 5424, section 6.2.1).
const FACILITY: usize = 3 << 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub level: Level,
    pub message: String,
    pub vendor: Option<String>,
    pub feature: Option<String>,
    /// The vendor's own `log_level`, which applies to its lines.
    pub limit: Option<Level>,
}

impl Note {
    pub fn new(level: Level, message: impl Into<String>) -> Self {
        Self { level, message: message.into(), vendor: None, feature: None, limit: None }
    }

    #[must_use]
    pub fn vendor(mut self, vendor: &str) -> Self {
        self.vendor = Some(vendor.to_owned());
        self
    }

    #[must_use]
    pub fn feature(mut self, feature: &str) -> Self {
        self.feature = Some(feature.to_owned());
        self
    }

    #[must_use]
    pub fn limit(mut self, limit: Level) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// Where lines go. Nothing is opened before the first line, or before [`Log::open`].
#[derive(Debug)]
pub struct Log {
    level: Level,
    path: Option<PathBuf>,
    container: String,
    file: OnceCell<Option<File>>,
    /// A socket to a daemon, and whether that is journald.
    daemon: OnceCell<Option<(UnixDatagram, bool)>>,
}

impl Log {
    /// A log of lines up to this level, about this container (its id, or an empty string).
    pub fn new(level: Level, path: Option<PathBuf>, container: &str) -> Self {
        let container = container.to_owned();
        Self { level, path, container, file: OnceCell::new(), daemon: OnceCell::new() }
    }

    /// Opens what lines go to, before this process gives up the rights or leaves the namespace that
    /// this takes.
    pub fn open(&self) {
        self.file();
        self.daemon();
    }

    fn file(&self) -> Option<&File> {
        let path = self.path.as_ref()?;
        self.file.get_or_init(|| open(path)).as_ref()
    }

    fn daemon(&self) -> Option<&(UnixDatagram, bool)> {
        let connect = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            let journal = socket.connect(JOURNAL).is_ok();
            (journal || socket.connect(SYSLOG).is_ok()).then_some((socket, journal))
        };
        self.daemon.get_or_init(connect).as_ref()
    }

    pub fn write_all(&self, notes: &[Note]) {
        for note in notes {
            self.write(note);
        }
    }

    /// Logs why a start is refused, if it is.
    pub fn refusal<T>(&self, done: &Result<T, impl Display>) {
        if let Err(error) = done {
            self.write(&Note::new(Level::Error, format!("start refused: {error}")));
        }
    }

    pub fn write(&self, note: &Note) {
        if note.level > note.limit.unwrap_or(self.level) {
            return;
        }
        self.send(note);
        if let Some(mut file) = self.file() {
            let line = format!("{} {} {}\n", now(), note.level.word(), self.line(note));
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// Sends the line to the first daemon that is running. A daemon that wasn't is not
    /// tried again.
    fn send(&self, note: &Note) {
        if let Some((socket, journal)) = self.daemon() {
            let datagram =
                if *journal { self.journal_datagram(note) } else { self.syslog_datagram(note) };
            // If the queue is full, the line is lost; waiting would delay the start.
            let _ = socket.send(datagram.as_bytes());
        }
    }

    fn fields<'a>(&'a self, note: &'a Note) -> impl Iterator<Item = (&'static str, &'a str)> {
        [
            ("vendor", note.vendor.as_deref().unwrap_or_default()),
            ("feature", note.feature.as_deref().unwrap_or_default()),
            ("container", self.container.as_str()),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
    }

    /// The note on one line, with what it is about.
    fn line(&self, note: &Note) -> String {
        let about: Vec<String> =
            self.fields(note).map(|(name, value)| format!("{name}={}", printable(value))).collect();
        let message = printable(&note.message);
        if about.is_empty() {
            message
        } else {
            format!("{message} [{}]", about.join(" "))
        }
    }

    fn journal_datagram(&self, note: &Note) -> String {
        use std::fmt::Write;
        let mut datagram = format!(
            "MESSAGE={}\nPRIORITY={}\nSYSLOG_IDENTIFIER={IDENTIFIER}\n",
            self.line(note),
            note.level as usize
        );
        for (name, value) in self.fields(note) {
            let name = name.to_uppercase();
            let value = printable(value);
            let _ = writeln!(datagram, "OCI_DECORATOR_{name}={value}");
        }
        datagram
    }

    fn syslog_datagram(&self, note: &Note) -> String {
        format!(
            "<{}>{IDENTIFIER}[{}]: {}",
            FACILITY + note.level as usize,
            std::process::id(),
            self.line(note)
        )
    }
}

/// A value that a person wrote, shortened for a message if it is long.
pub fn brief(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(BRIEF) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// The text on one line: control characters are written as Rust escapes them.
pub fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) {
        text.chars()
            .flat_map(|c| {
                let escaped = c.is_control().then(|| c.escape_default());
                let plain = (!c.is_control()).then_some(c);
                escaped.into_iter().flatten().chain(plain)
            })
            .collect()
    } else {
        text.to_owned()
    }
}

/// Adds a line to a file. A link in its place is not followed.
pub fn append(file: &Path, line: &str) {
    if let Some(mut file) = open(file) {
        let _ = file.write_all(line.as_bytes());
    }
}

fn open(file: &Path) -> Option<File> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    rustix::fs::open(file, flags, Mode::from_raw_mode(0o640)).ok().map(File::from)
}

/// The current time in UTC to the second, in the format of RFC 3339. 1970 if the clock was never set.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    rfc3339(since.map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as `2026-11-20T13:04:05Z`. Days to date after
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// How severe a line is, as syslog names and numbers it (RFC 5424, section 6.2.1); a lower number is
/// more severe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Emergency = 0,
    Alert,
    Critical,
    Error,
    Warning,
    Notice,
    #[default]
    Info,
    Debug,
}

/// The vendor files' spelling, then the one that `config.toml` and log files use.
const NAMES: [(&str, &str, Level); 8] = [
    ("LOG_EMERG", "emergency", Level::Emergency),
    ("LOG_ALERT", "alert", Level::Alert),
    ("LOG_CRIT", "critical", Level::Critical),
    ("LOG_ERR", "error", Level::Error),
    ("LOG_WARNING", "warning", Level::Warning),
    ("LOG_NOTICE", "notice", Level::Notice),
    ("LOG_INFO", "info", Level::Info),
    ("LOG_DEBUG", "debug", Level::Debug),
];

impl Level {
    /// Reads `LOG_WARNING` and its like.
    pub fn from_syslog(name: &str) -> Option<Self> {
        NAMES.iter().find(|n| n.0 == name).map(|n| n.2)
    }

    /// Reads `warning` and its like.
    pub fn from_word(word: &str) -> Option<Self> {
        NAMES.iter().find(|n| n.1 == word).map(|n| n.2)
    }

    pub fn word(self) -> &'static str {
        NAMES[self as usize].1
    }

    pub fn syslog_names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|n| n.0)
    }

    pub fn words() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|n| n.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        Log::new(Level::Info, None, "c1")
    }

    #[test]
    fn a_line_says_what_it_is_about_and_stays_one_line() {
        let note = Note::new(Level::Warning, "no\nsuch file").vendor("nvidia").feature("compute");
        assert_eq!(
            log().line(&note),
            "no\\nsuch file [vendor=nvidia feature=compute container=c1]"
        );
        let datagram = log().journal_datagram(&note);
        assert!(datagram.contains("PRIORITY=4\n"));
        assert!(datagram.contains("OCI_DECORATOR_VENDOR=nvidia\n"));
        assert!(log().syslog_datagram(&note).starts_with("<28>oci-decorator["));
    }

    #[test]
    fn the_vendors_own_level_counts_for_its_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::new(Level::Info, Some(dir.path().join("log")), "c1");
        log.write(&Note::new(Level::Debug, "dropped"));
        log.write(&Note::new(Level::Debug, "kept").limit(Level::Debug));
        log.write(&Note::new(Level::Info, "dropped").limit(Level::Error));
        let text = std::fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(text.ends_with("Z debug kept [container=c1]\n"), "{text}");
    }

    #[test]
    fn known_moments() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_179_845), "2026-11-20T13:04:05Z");
    }
}
