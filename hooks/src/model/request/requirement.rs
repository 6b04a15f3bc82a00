//! What an image requires of the driver and the devices, in the language of `NVIDIA_REQUIRE_*`:
//! conditions like `cuda>=12.2`. A comma means "and", a blank means "or".
//!
//! The rules are those of NVIDIA's own tool: a condition is evaluated only if the result depends
//! on it, a condition about something that the host does not know counts as met, and `12.0`
//! equals `12`.

use std::cmp::Ordering;
use std::fmt;

use crate::log::brief;

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Cuda,
    Driver,
    Arch,
    Brand,
}

impl Subject {
    pub const WORDS: [(&'static str, Self); 4] = [
        ("cuda", Self::Cuda),
        ("driver", Self::Driver),
        ("arch", Self::Arch),
        ("brand", Self::Brand),
    ];

    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize].0
    }
}

/// Whether a value in this order to the condition's meets the condition.
type Comparison = fn(Ordering) -> bool;

const COMPARISONS: [(&str, Comparison); 6] = [
    ("=", Ordering::is_eq),
    ("!=", Ordering::is_ne),
    ("<", Ordering::is_lt),
    ("<=", Ordering::is_le),
    (">", Ordering::is_gt),
    (">=", Ordering::is_ge),
];
const SIGNS: [char; 4] = ['<', '>', '=', '!'];

/// What one variable requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The variable, with its value where the requirement follows from that value.
    pub by: String,
    pub text: String,
}

/// What a host knows about itself and about one of its devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known<'a> {
    pub cuda: Option<&'a str>,
    pub driver: Option<&'a str>,
    pub arch: Option<&'a str>,
    pub brand: Option<&'a str>,
}

impl<'a> Known<'a> {
    pub fn of(&self, subject: Subject) -> Option<&'a str> {
        match subject {
            Subject::Cuda => self.cuda,
            Subject::Driver => self.driver,
            Subject::Arch => self.arch,
            Subject::Brand => self.brand,
        }
    }
}

/// "cuda 12.2, driver 535.261.03", for messages.
impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Subject::WORDS.into_iter();
        let known: Vec<String> = known
            .filter_map(|(word, subject)| Some(format!("{word} {}", self.of(subject)?)))
            .collect();
        f.write_str(&known.join(", "))
    }
}

/// The result of a requirement on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Met,
    /// Met as far as the host can tell: it knows nothing about these.
    MetUnlessKnown(Vec<Subject>),
    Unmet,
    /// This part is not a condition.
    Invalid(String),
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = brief(&self.text);
        if self.by.contains('=') {
            write!(f, "{} requires {text}", brief(&self.by))
        } else {
            write!(f, "the image requires {}={text}", self.by)
        }
    }
}

impl Requirement {
    pub fn check(&self, known: &Known) -> Outcome {
        let mut unknown = Vec::new();
        let mut is_unmet = false;
        for alternative in self.text.split(' ').filter(|part| !part.is_empty()) {
            unknown.clear();
            match all_met(alternative, known, &mut unknown) {
                Err(part) => return Outcome::Invalid(part),
                Ok(true) if unknown.is_empty() => return Outcome::Met,
                Ok(true) => return Outcome::MetUnlessKnown(unknown),
                Ok(false) => is_unmet = true,
            }
        }
        if is_unmet {
            Outcome::Unmet
        } else {
            Outcome::Met
        }
    }

    /// Whether a condition of it is about the subject.
    pub fn is_about(&self, subject: Subject) -> bool {
        let mut parts = self.text.split([' ', ',']);
        parts.any(|part| parse(part).is_some_and(|condition| condition.subject == subject))
    }
}

/// Errors: the first part that is not a condition.
fn all_met(alternative: &str, known: &Known, unknown: &mut Vec<Subject>) -> Result<bool, String> {
    for part in alternative.split(',').filter(|part| !part.is_empty()) {
        let condition = parse(part).ok_or(part)?;
        match known.of(condition.subject) {
            None => unknown.push(condition.subject),
            Some(value) => match condition.holds(value) {
                Some(true) => {}
                Some(false) => return Ok(false),
                // The host's own value can't be compared.
                None => unknown.push(condition.subject),
            },
        }
    }
    Ok(true)
}

struct Condition<'a> {
    subject: Subject,
    comparison: Comparison,
    value: &'a str,
}

/// `None`: the text is not a condition.
fn parse(text: &str) -> Option<Condition<'_>> {
    let (name, rest) = text.split_at(text.find(SIGNS)?);
    let value = rest.trim_start_matches(SIGNS);
    let sign = &rest[..rest.len() - value.len()];
    let mut subjects = Subject::WORDS.into_iter();
    let (_, subject) = subjects.find(|(word, _)| word.eq_ignore_ascii_case(name))?;
    let (_, comparison) = COMPARISONS.into_iter().find(|(text, _)| *text == sign)?;
    let comparable = match subject {
        Subject::Brand => matches!(sign, "=" | "!="),
        _ => is_version(value),
    };
    (comparable && !value.is_empty()).then_some(Condition { subject, comparison, value })
}

impl Condition<'_> {
    fn holds(&self, value: &str) -> Option<bool> {
        let order = if self.subject == Subject::Brand {
            value.to_ascii_lowercase().cmp(&self.value.to_ascii_lowercase())
        } else if is_version(value) {
            compare(value, self.value)
        } else {
            return None;
        };
        Some((self.comparison)(order))
    }
}

/// Digits and dots, a digit first.
pub fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Compares versions number by number. A missing number counts as 0.
fn compare(one: &str, other: &str) -> Ordering {
    // Numbers may have any length, so they are compared as text without leading zeros.
    let numbers = |text: &str| -> Vec<String> {
        let parts = text.split('.').filter(|part| !part.is_empty());
        parts.map(|part| part.trim_start_matches('0').to_owned()).collect()
    };
    let (one, other) = (numbers(one), numbers(other));
    let none = String::new();
    for at in 0..one.len().max(other.len()) {
        let (a, b) = (one.get(at).unwrap_or(&none), other.get(at).unwrap_or(&none));
        let order = a.len().cmp(&b.len()).then_with(|| a.cmp(b));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}
