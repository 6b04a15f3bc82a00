//! Severities, as syslog names and numbers them (RFC 5424, section 6.2.1).

/// How severe a line is; a lower number is more severe.
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

    #[test]
    fn every_name_leads_back_to_its_level() {
        for (number, (syslog, word, level)) in NAMES.into_iter().enumerate() {
            assert_eq!(level as usize, number);
            assert_eq!(Level::from_syslog(syslog), Some(level));
            assert_eq!(Level::from_word(word), Some(level));
            assert_eq!(level.word(), word);
        }
    }
}
