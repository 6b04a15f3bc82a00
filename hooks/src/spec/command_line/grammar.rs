//! The two ways in which runtimes write options, and every reading of a line in them.
//!
//! [`Grammar::Go`] is runc's (Go's flag package, options in any place, as urfave/cli has
//! them): `-name`, `--name`, `-name=value`, `-name value`; a single letter is an ordinary
//! name. [`Grammar::Unix`] is crun's (getopt) and youki's (clap): `--name`, `-n`,
//! `-nvalue`, `-nm`; crun also takes `--na` for `--name`. In both, `--` ends the options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::names::{Meaning, Names, CREATE, CREATING, GLOBAL, OTHER};
use super::LogFormat;

/// Readings of one line that are followed to their end. Real lines have two.
const MOST: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grammar {
    Go,
    Unix,
}

/// One way to read a line.
#[derive(Debug, Clone, Default)]
pub struct Reading<'a> {
    pub log: Option<&'a OsStr>,
    pub log_format: LogFormat,
    pub creates: bool,
    /// The command is `restore`, of which crun 1.21 ignores all names but the first.
    pub restores: bool,
    pub bundle: Option<&'a OsStr>,
    pub config: Option<&'a OsStr>,
    pub container: Option<&'a OsStr>,
    /// Words of the command that aren't options.
    operands: usize,
    /// An option at the end lacks its value.
    cut: bool,
    /// How many options it has that no known runtime takes.
    pub unknown: usize,
}

impl Reading<'_> {
    /// True if a runtime could carry it out: each needs exactly one name for a new container.
    pub fn is_valid(&self) -> bool {
        let are_names = self.operands == 1 || self.restores && self.operands > 1;
        !self.creates || are_names && !self.cut
    }
}

/// Every reading that begins with a known command.
pub struct Readings<'a> {
    pub all: Vec<Reading<'a>>,
    /// False: there are more.
    pub complete: bool,
}

pub fn readings(words: &[OsString]) -> Readings<'_> {
    let mut found = Readings { all: Vec::new(), complete: true };
    let mut open: Vec<Place> = [Grammar::Unix, Grammar::Go].map(Place::start).into();
    let mut followed = 0;
    while let Some(mut place) = open.pop() {
        if place.follow(words, &mut open) {
            found.all.push(place.reading);
        }
        followed += 1;
        if followed + open.len() > MOST {
            found.complete = false;
            break;
        }
    }
    found
}

/// A reading under way.
#[derive(Clone)]
struct Place<'a> {
    grammar: Grammar,
    at: usize,
    in_command: bool,
    only_operands: bool,
    reading: Reading<'a>,
}

/// The kinds of word.
#[derive(Clone, Copy)]
struct Item<'a> {
    meaning: Meaning,
    value: Option<&'a OsStr>,
    /// The value is the next word.
    takes_next: bool,
    /// No known runtime has this option.
    unknown: bool,
}

impl<'a> Item<'a> {
    /// With its value in the same word, or without one.
    fn whole(meaning: Meaning, value: Option<&'a OsStr>) -> Self {
        Self { meaning, value, takes_next: false, unknown: false }
    }

    fn takes(meaning: Meaning) -> Self {
        Self { takes_next: true, ..Self::whole(meaning, None) }
    }

    fn unknown(self) -> Self {
        Self { unknown: true, ..self }
    }
}

impl<'a> Place<'a> {
    fn start(grammar: Grammar) -> Self {
        Self {
            grammar,
            at: 0,
            in_command: false,
            only_operands: false,
            reading: Reading::default(),
        }
    }

    /// Reads to the end and leaves the other ways to continue in `open`.
    /// False: the line has no known command.
    fn follow(&mut self, words: &'a [OsString], open: &mut Vec<Self>) -> bool {
        while let Some(word) = words.get(self.at) {
            self.at += 1;
            let bytes = word.as_bytes();
            if self.only_operands || !bytes.starts_with(b"-") || bytes.len() == 1 {
                if !self.operand(word) {
                    return self.in_command;
                }
            } else if bytes == b"--" {
                self.only_operands = true;
            } else {
                let names = if self.in_command { CREATE } else { GLOBAL };
                let mut items = self.grammar.items(names, &bytes[1..]).into_iter();
                let first = items.next();
                for other in items {
                    let mut place = self.clone();
                    place.take(other, words);
                    open.push(place);
                }
                if let Some(item) = first {
                    self.take(item, words);
                }
            }
        }
        self.in_command
    }

    /// False: nothing that follows matters.
    fn operand(&mut self, word: &'a OsStr) -> bool {
        if self.in_command {
            self.reading.operands += 1;
            self.reading.container.get_or_insert(word);
            return true;
        }
        self.reading.creates = CREATING.iter().any(|name| word == *name);
        self.reading.restores = word == "restore";
        self.in_command = self.reading.creates || OTHER.iter().any(|name| word == *name);
        self.only_operands = false;
        self.reading.creates
    }

    fn take(&mut self, item: Item<'a>, words: &'a [OsString]) {
        let mut value = item.value;
        if item.takes_next {
            value = words.get(self.at).map(OsString::as_os_str);
            self.at += 1;
            self.reading.cut |= value.is_none();
        }
        self.reading.unknown += usize::from(item.unknown);
        match (item.meaning, value) {
            (Meaning::Bundle, Some(_)) => self.reading.bundle = value,
            (Meaning::Config, Some(_)) => self.reading.config = value,
            (Meaning::Log, Some(_)) => self.reading.log = value,
            (Meaning::LogFormat, Some(value)) => {
                self.reading.log_format =
                    if value == "json" { LogFormat::Json } else { LogFormat::Text };
            }
            _ => {}
        }
    }
}

impl Grammar {
    /// The possible kinds of a word with a dash; `word` is the text after the dash.
    fn items<'a>(self, names: &Names, word: &'a [u8]) -> Vec<Item<'a>> {
        let long = word.strip_prefix(b"-");
        match (self, long) {
            (Self::Go, _) => long_items(names, long.unwrap_or(word), |known, name| known == name),
            (Self::Unix, Some(name)) => {
                let exact = names.iter().any(|(known, _)| known.as_bytes() == name_of(name).0);
                long_items(names, name, |known, name| {
                    known == name || !exact && known.len() > 1 && known.starts_with(name)
                })
            }
            (Self::Unix, None) => short_items(names, word),
        }
    }
}

/// A name and the value after `=`.
fn name_of(word: &[u8]) -> (&[u8], Option<&OsStr>) {
    match word.iter().position(|&b| b == b'=') {
        Some(at) => (&word[..at], Some(OsStr::from_bytes(&word[at + 1..]))),
        None => (word, None),
    }
}

fn long_items<'a>(
    names: &Names,
    word: &'a [u8],
    matches: impl Fn(&[u8], &[u8]) -> bool,
) -> Vec<Item<'a>> {
    let (name, value) = name_of(word);
    let mut meanings: Vec<Meaning> = Vec::new();
    for (known, meaning) in names {
        if matches(known.as_bytes(), name) && !meanings.contains(meaning) {
            meanings.push(*meaning);
        }
    }
    if meanings.is_empty() {
        return unknown(value.is_some());
    }
    let item = |meaning| match (meaning, value) {
        (Meaning::Flag, _) => Item::whole(Meaning::Flag, None),
        (meaning, Some(value)) => Item::whole(meaning, Some(value)),
        (meaning, None) => Item::takes(meaning),
    };
    meanings.into_iter().map(item).collect()
}

/// `-b`, `-b/path`, `-db/path`.
fn short_items<'a>(names: &Names, letters: &'a [u8]) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    for (at, letter) in letters.iter().enumerate() {
        let rest = &letters[at + 1..];
        let known = names.iter().find(|(name, _)| name.as_bytes() == [*letter]);
        match known {
            Some((_, Meaning::Flag)) => {}
            Some((_, meaning)) => {
                let guessed = !items.is_empty();
                let of = values(*meaning, rest);
                items.extend(of.into_iter().map(|i| if guessed { i.unknown() } else { i }));
                return items;
            }
            // The rest of the word is its value, or more letters.
            None if items.is_empty() => items = unknown(!rest.is_empty()),
            None => {}
        }
    }
    if items.is_empty() {
        items.push(Item::whole(Meaning::Flag, None));
    }
    items
}

/// `-b=/path` is `=/path` to getopt and `/path` to clap.
fn values(meaning: Meaning, rest: &[u8]) -> Vec<Item<'_>> {
    let whole = |value| Item::whole(meaning, Some(OsStr::from_bytes(value)));
    match rest.strip_prefix(b"=") {
        Some(value) => vec![whole(value), whole(rest)],
        None if rest.is_empty() => vec![Item::takes(meaning)],
        None => vec![whole(rest)],
    }
}

fn unknown<'a>(has_value: bool) -> Vec<Item<'a>> {
    let mut items = vec![Item::whole(Meaning::Flag, None).unknown()];
    if !has_value {
        items.push(Item::takes(Meaning::Value).unknown());
    }
    items
}
