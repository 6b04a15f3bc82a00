//! Reads the files of a folder of configuration. Whatever is wrong with one is its mistake, and all
//! mistakes of a file are collected: a user other than root may have written it, it can't be read,
//! and what its reader finds in the tree of its JSON or YAML.

use std::borrow::Cow;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustc_hash::{FxBuildHasher, FxHashSet};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::host::rootfs::{names_in, open_regular, open_trusted, read_whole, untrusted, Distrust};
use crate::model::edits::is_variable;
use crate::model::vendor::Mistake;
use crate::spec::config::members;

pub const MAX_SIZE: u64 = 1 << 20;

#[derive(Debug)]
pub struct Unusable {
    pub mistakes: Vec<Mistake>,
    /// As much of its text as could be read, in which its purpose may be found.
    pub text: String,
}

/// Reads the files with these names, sorted; each is made of its name, path and content.
/// Errors: the folder can't be read.
pub fn read<T, F>(
    folder: &Path,
    is_wanted: impl Fn(&str) -> bool,
    parse: impl Fn(&str, &str) -> Result<T, Vec<Mistake>>,
    make: impl Fn(&str, &Path, Result<T, Unusable>) -> F,
) -> rustix::io::Result<Vec<F>> {
    let found = open_trusted(folder)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&found.fd, ".", flags, Mode::empty())?;
    let mut names = names_in(&opened)?;
    // Editors and package managers leave files with a dot in front behind.
    names.retain(|name| !name.starts_with('.') && is_wanted(name));
    let read = |name: String| {
        let path = folder.join(&name);
        let content = read_file(&opened, &path, &name).and_then(|file| {
            let distrust = found.problem.iter().chain(&file.distrust);
            let mut mistakes: Vec<_> =
                distrust.map(|it| Mistake::new("", it.mistake_of(&path))).collect();
            let parsed = match file.damage {
                Some(damage) => Err(vec![Mistake::new("", damage)]),
                None => parse(&name, &file.text),
            };
            match parsed {
                Ok(content) if mistakes.is_empty() => return Ok(content),
                parsed => mistakes.extend(parsed.err().unwrap_or_default()),
            }
            Err(Unusable { mistakes, text: file.text })
        });
        make(&name, &path, content)
    };
    Ok(names.into_iter().map(read).collect())
}

#[derive(Debug)]
pub struct FileText {
    pub text: String,
    /// Why this is not the whole file, or not its exact text.
    pub damage: Option<String>,
    /// Why a user other than root may have written it.
    pub distrust: Option<Distrust>,
}

/// Reads an open file. Of one that is too large, the beginning is read.
pub fn text_of(
    fd: &OwnedFd,
    mut stat: Stat,
    distrust: Option<Distrust>,
) -> rustix::io::Result<FileText> {
    let mut damage = None;
    if u64::try_from(stat.st_size).is_ok_and(|size| size > MAX_SIZE) {
        damage = Some(format!("larger than {MAX_SIZE} bytes"));
        stat.st_size = i64::try_from(MAX_SIZE).unwrap_or_default();
    }
    let bytes = read_whole(fd, &stat, MAX_SIZE)?;
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        damage.get_or_insert_with(|| "not valid UTF-8".to_owned());
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    Ok(FileText { text, damage, distrust })
}

fn read_file(folder: &OwnedFd, path: &Path, name: &str) -> Result<FileText, Unusable> {
    let opened = open(folder, path, name);
    opened.and_then(|(fd, stat, distrust)| text_of(&fd, stat, distrust)).map_err(|error| {
        let problem = match error {
            Errno::INVAL => "not a regular file".to_owned(),
            other => format!("can't be read: {other}"),
        };
        Unusable { mistakes: vec![Mistake::new("", problem)], text: String::new() }
    })
}

/// An open file, and why a user other than root may have written it.
type Opened = (OwnedFd, Stat, Option<Distrust>);

fn open(folder: &OwnedFd, path: &Path, name: &str) -> rustix::io::Result<Opened> {
    // Only regular files are opened, because opening a device can have an effect.
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
            let fd = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?;
            let stat = rustix::fs::fstat(&fd)?;
            let path = path.to_owned();
            let distrust = untrusted(&stat).map(|why| Distrust { path, why });
            Ok((fd, stat, distrust))
        }
        // Anyone who may change a folder in the link's path chooses its target.
        FileType::Symlink => {
            let found = open_trusted(path)?;
            let (fd, stat) = open_regular(found.fd)?;
            Ok((fd, stat, found.problem))
        }
        _ => Err(Errno::INVAL),
    }
}

// The reader of trees: takes values out of a file, and collects every mistake with its place. The
// readers of each format are methods of it.

pub type Members<'a> = Vec<(&'a str, &'a Json<'a>)>;

/// What was read only counts if there are no mistakes.
#[derive(Debug, Default)]
pub struct Reader {
    pub mistakes: Vec<Mistake>,
}

impl Reader {
    pub fn note(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.mistakes.push(Mistake::new(key, problem));
    }

    pub fn expected(&mut self, key: &str, what: &str, found: &Json) {
        self.note(key, format!("expected {what}, found {}", found.kind()));
    }

    /// The members of an object, without unknown and repeated ones. Without known ones, all are.
    pub fn members<'a>(&mut self, key: &str, value: &'a Json<'_>, known: &[&str]) -> Members<'a> {
        let Json::Object(members) = value else {
            self.expected(key, "an object", value);
            return Vec::new();
        };
        let mut seen = FxHashSet::with_capacity_and_hasher(members.len(), FxBuildHasher);
        let mut kept = Vec::with_capacity(members.len());
        for (name, value) in members {
            let name = &**name;
            if !seen.insert(name) {
                self.note(join(key, name), "given twice");
            } else if !known.is_empty() && !known.contains(&name) {
                let problem = format!("unknown field; known are {}", known.join(", "));
                self.note(join(key, name), problem);
            } else {
                kept.push((name, value));
            }
        }
        kept
    }

    pub fn string(&mut self, key: &str, value: &Json) -> Option<String> {
        if value.text().is_none() {
            self.expected(key, "a string", value);
        }
        value.text().map(str::to_owned)
    }

    /// The strings of a list, with what a check finds wrong about each.
    pub fn strings(
        &mut self,
        key: &str,
        value: &Json,
        check: fn(&str) -> Option<String>,
    ) -> Vec<String> {
        let Json::Array(items) = value else {
            self.expected(key, "a list of strings", value);
            return Vec::new();
        };
        let mut strings = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            // A start reads hundreds of paths: their places are only written down for mistakes.
            let place = || format!("{key}[{i}]");
            let Some(text) = item.text() else {
                self.expected(&place(), "a string", item);
                continue;
            };
            if let Some(problem) = check(text) {
                self.note(place(), problem);
            }
            strings.push(text.to_owned());
        }
        strings
    }

    pub fn variables(&mut self, key: &str, node: Option<&Json>) -> Vec<String> {
        let found = self.texts(key, node);
        for entry in found.iter().filter(|entry| !is_variable(entry)) {
            self.note(key, format!("{entry:?} is not NAME=value"));
        }
        found
    }

    pub fn path(&mut self, key: &str, members: &Members, field: &str) -> String {
        let path = self.required(key, members, field);
        if !path.is_empty() && (!path.starts_with('/') || path.contains('\0')) {
            self.note(format!("{key}.{field}"), format!("{path:?} is not an absolute path"));
        }
        path
    }

    pub fn number(&mut self, key: &str, node: &Json) -> Option<u32> {
        let Some(number) = node.integer() else {
            self.expected(key, "a whole number", node);
            return None;
        };
        let number = u32::try_from(number).ok();
        if number.is_none() {
            self.note(key, "it is out of range");
        }
        number
    }

    /// For the kernel, the largest number means no group: setgroups(2).
    pub fn group(&mut self, key: &str, node: &Json) -> Option<u32> {
        let group = self.number(key, node)?;
        if group == u32::MAX {
            self.note(key, format!("{group} is not a group"));
            return None;
        }
        Some(group)
    }

    pub fn texts(&mut self, key: &str, node: Option<&Json>) -> Vec<String> {
        node.map(|node| self.strings(key, node, |_| None)).unwrap_or_default()
    }

    pub fn required(&mut self, key: &str, members: &Members, field: &str) -> String {
        let found = self.optional(key, members, field);
        if found.is_none() && get(members, field).is_none_or(|node| node.text().is_some()) {
            self.note(join(key, field), "missing");
        }
        found.unwrap_or_default()
    }

    /// An empty string counts as a missing one, as for the engines' readers.
    pub fn optional(&mut self, key: &str, members: &Members, field: &str) -> Option<String> {
        let node = get(members, field)?;
        match node.text() {
            Some("") => None,
            Some(text) => Some(text.to_owned()),
            None => {
                self.expected(&join(key, field), "a string", node);
                None
            }
        }
    }

    pub fn list<'a>(
        &mut self,
        key: &str,
        node: Option<&'a Json<'a>>,
    ) -> Vec<(String, &'a Json<'a>)> {
        match node {
            None => Vec::new(),
            Some(Json::Array(items)) => {
                let numbered = items.iter().enumerate();
                numbered.map(|(at, item)| (format!("{key}[{at}]"), item)).collect()
            }
            Some(other) => {
                self.expected(key, "a list", other);
                Vec::new()
            }
        }
    }
}

pub fn join(key: &str, name: &str) -> String {
    if key.is_empty() {
        name.to_owned()
    } else {
        format!("{key}.{name}")
    }
}

/// A member that exists and is not null.
pub fn get<'a>(members: &Members<'a>, field: &str) -> Option<&'a Json<'a>> {
    let found = members.iter().find(|(name, _)| *name == field);
    found.map(|(_, node)| *node).filter(|node| !node.is_null())
}

/// A value of JSON, or of YAML, whose objects keep the order and the duplicates of their keys.
/// Strings are borrowed from the text where they have no escapes.
///
/// Nesting deeper than 127 is an error of the parser, so neither parsing nor
/// dropping one can run out of stack.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    Number(f64),
    Text(Cow<'a, str>),
    /// YAML without quotes. Its type depends on the field.
    Plain(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl Json<'_> {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) | Self::Plain(_) => "a string",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    pub fn is_null(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Plain(text) => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Plain(text) if !self.is_null() => Some(text),
            _ => None,
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            Self::Plain(text) => match &**text {
                "true" | "True" | "TRUE" => Some(true),
                "false" | "False" | "FALSE" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            // Numbers up to this limit are exact, and no field has larger ones.
            #[allow(clippy::cast_possible_truncation)]
            Self::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                Some(*number as i64)
            }
            Self::Plain(text) => plain_integer(text),
            _ => None,
        }
    }
}

/// Reads a number of YAML 1.1 or 1.2. The engines' readers take a leading zero for octal.
fn plain_integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let radix = |digits: &str, radix| {
        let plain = digits.chars().all(|c| c.is_digit(radix));
        plain.then(|| i64::from_str_radix(digits, radix).ok()).flatten()
    };
    let value = if let Some(hex) = digits.strip_prefix("0x") {
        radix(hex, 16)
    } else if let Some(octal) = digits.strip_prefix("0o") {
        radix(octal, 8)
    } else if digits.len() > 1 && digits.starts_with('0') {
        radix(digits, 8)
    } else {
        radix(digits, 10)
    };
    value.map(|value| sign * value)
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    // No key that is read here holds a number, so its value doesn't matter.
    #[allow(clippy::cast_precision_loss)]
    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value as f64))
    }

    #[allow(clippy::cast_precision_loss)]
    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Json<'de>, A::Error> {
        members(map).map(Json::Object)
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// The kind and the device of a name: `vendor.com/class=device`. `None`: it is not a CDI name.
pub fn qualified(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(kind, device)| is_kind(kind) && is_device(device))
}

/// True for `vendor.com/class`.
pub fn is_kind(text: &str) -> bool {
    let is_part =
        |part: &str| part.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(part, "_-.");
    text.split_once('/').is_some_and(|(vendor, class)| is_part(vendor) && is_part(class))
}

/// True for the name of a device within its kind.
pub fn is_device(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_word(text, "_-.:")
}

fn is_word(text: &str, others: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.ends_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_that_is_too_large_the_beginning_is_known() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x".repeat(1_048_577)).unwrap();
        let parse = |_: &str, _: &str| -> Result<(), _> { panic!("it is parsed") };
        let found = read(dir.path(), |_| true, parse, |_, _, content| content).unwrap();
        let unusable = found[0].as_ref().unwrap_err();
        assert_eq!(unusable.text, "x".repeat(1_048_576));
    }

    #[test]
    fn plain_text_is_what_its_place_makes_of_it() {
        let plain = |text: &'static str| Json::Plain(text.into());
        for (text, number) in [
            ("0", Some(0)),
            ("195", Some(195)),
            ("-1", Some(-1)),
            ("0666", Some(0o666)),
            ("0o666", Some(0o666)),
            ("0x1b", Some(27)),
            ("08", None),
            ("1.5", None),
            ("--1", None),
            ("-+1", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(plain(text).integer(), number, "{text}");
        }
        assert_eq!(plain("0").text(), Some("0"));
        assert_eq!(plain("~").text(), None);
        assert_eq!(plain("true").boolean(), Some(true));
        assert_eq!(Json::Text("true".into()).boolean(), None);
        assert_eq!(Json::Text("1".into()).integer(), None);
        assert_eq!(Json::Number(1.5).integer(), None);
    }
}
