//! Command lines: the options of a command as a table, and the one reader of them.
//!
//! Options are written as Go's package `flag` has them, because NVIDIA's programs do: one dash or
//! two, a value after `=` or a blank, and flags that may have `=false`.
//!
//! Source: <https://pkg.go.dev/flag#hdr-Command_line_flag_syntax>
//!
//! A program in C has them as GNU's `argp` does: letters may stand together, the last one may have its
//! value attached, and a long name may be cut where it stays unique.
//!
//! Source: <https://www.gnu.org/software/libc/manual/html_node/Argument-Syntax.html>

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{Error, Result};

#[derive(Debug, Clone, Copy)]
pub struct Opt {
    /// Its name in [`ParsedArgs`].
    key: &'static str,
    names: &'static [&'static str],
    takes: Takes,
    /// The first of these variables that is set and not empty stands in for the option.
    variables: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Value,
    /// A value after `=` only.
    MayHave,
    Truth,
}

/// An option without a value, or with `=true` and the like.
pub const fn flag(names: &'static [&'static str]) -> Opt {
    Opt { key: names[0], names, takes: Takes::Truth, variables: &[] }
}

/// An option with a value.
pub const fn value(names: &'static [&'static str]) -> Opt {
    Opt { key: names[0], names, takes: Takes::Value, variables: &[] }
}

/// An option that may have a value, after `=`.
pub const fn optional(names: &'static [&'static str]) -> Opt {
    Opt { key: names[0], names, takes: Takes::MayHave, variables: &[] }
}

impl Opt {
    pub fn name(&self) -> &'static str {
        self.names[0]
    }

    #[must_use]
    pub const fn or(self, variables: &'static [&'static str]) -> Self {
        Self { variables, ..self }
    }

    /// With another name in [`ParsedArgs`] than its first one.
    #[must_use]
    pub const fn keyed(self, key: &'static str) -> Self {
        Self { key, ..self }
    }
}

/// Every command has it.
const HELP: Opt = flag(&["help", "h"]);

/// Reads a truth value as Go's `strconv.ParseBool` does.
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// An option or variable of the line.
#[derive(Debug, PartialEq, Eq)]
pub struct Given {
    option: &'static str,
    /// What the user wrote: `--name`, or the name of a variable.
    pub by: String,
    pub value: String,
}

#[derive(Debug, Default)]
pub struct ParsedArgs {
    pub given: Vec<Given>,
    /// The words that are no options.
    pub operands: Vec<OsString>,
    /// The command, for errors; empty before it is known.
    pub command: String,
    /// The words that print the help, for errors.
    pub help: [&'static str; 2],
    pub syntax: Syntax,
}

/// How a program's options are written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    #[default]
    Go,
    Argp,
}

impl ParsedArgs {
    /// The words of a program or command, before the line is read.
    pub fn of(command: &str, help: [&'static str; 2]) -> Self {
        Self { command: command.to_owned(), help, ..Self::default() }
    }

    /// The error of a mistake in the line.
    pub fn wrong(&self, problem: &str) -> Error {
        let gap = if self.command.is_empty() { "" } else { ": " };
        let error = Error::usage(format!("{}{gap}{problem}", self.command));
        let help = self.help.join(" ").trim_end().to_owned();
        error.resolve(format!("see its commands and options: {help} --help"))
    }

    /// Reads options up to the first other word. Errors: an option is unknown, or a value is missing
    /// or wrong.
    pub fn leading(self, words: &[OsString], known: &[Opt]) -> Result<Self> {
        self.read(words, known, true)
    }

    /// Reads options and other words in any order, then the variables. Errors: as above.
    pub fn all(self, words: &[OsString], known: &[Opt]) -> Result<Self> {
        self.read(words, known, false)
    }

    fn read(mut self, words: &[OsString], known: &[Opt], is_leading: bool) -> Result<Self> {
        let mut left = words.iter();
        while let Some(word) = left.next() {
            let text = word.to_str();
            let text = text
                .ok_or_else(|| self.wrong(&format!("{:?} is not UTF-8", word.to_string_lossy())))?;
            match text.strip_prefix("--").or_else(|| text.strip_prefix('-')) {
                Some("") if text == "--" => break,
                None | Some("") => self.operands.push(word.clone()),
                Some(letters) if self.syntax == Syntax::Argp && !text.starts_with("--") => {
                    self.letters(letters, &mut left, known)?;
                }
                Some(option) => self.option(option, &mut left, known)?,
            }
            if is_leading && !self.operands.is_empty() {
                break;
            }
        }
        self.operands.extend(left.cloned());
        self.variables(known)?;
        Ok(self)
    }

    fn option<'a>(
        &mut self,
        option: &str,
        left: &mut impl Iterator<Item = &'a OsString>,
        known: &[Opt],
    ) -> Result<()> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let found = self.find(name, known);
        let by = ["--", name].concat();
        let found = found.ok_or_else(|| self.wrong(&format!("unknown option {by}")))?;
        let value = match value {
            Some(value) => value,
            None if found.takes != Takes::Value => "true",
            None => left
                .next()
                .and_then(|word| word.to_str())
                .ok_or_else(|| self.wrong(&format!("{by} needs a value")))?,
        };
        self.take(found, by, value)
    }

    /// The option of this name or, by argp's rules, of the beginning of a long one.
    fn find<'k>(&self, name: &str, known: &'k [Opt]) -> Option<&'k Opt> {
        let all = || known.iter().chain([&HELP]);
        let cut = || {
            let mut longer =
                all().filter(|option| option.names.iter().any(|long| long.starts_with(name)));
            longer.next().filter(|_| longer.next().is_none())
        };
        let exact = all().find(|option| option.names.contains(&name));
        exact.or_else(|| cut().filter(|_| self.syntax == Syntax::Argp && name.len() > 1))
    }

    /// Reads options of one letter that stand together. What follows one that may have a value is its
    /// value.
    fn letters<'a>(
        &mut self,
        letters: &str,
        left: &mut impl Iterator<Item = &'a OsString>,
        known: &[Opt],
    ) -> Result<()> {
        for (at, letter) in letters.char_indices() {
            let (name, rest) = letters[at..].split_at(letter.len_utf8());
            let has_value = self.find(name, known).is_some_and(|it| it.takes != Takes::Truth);
            if has_value && !rest.is_empty() {
                return self.option(&format!("{name}={rest}"), left, known);
            }
            self.option(name, left, known)?;
        }
        Ok(())
    }

    fn take(&mut self, option: &Opt, by: String, value: &str) -> Result<()> {
        let value = if option.takes == Takes::Truth {
            let is = truth(value);
            let wrong = || self.wrong(&format!("{by} is true or false, not {value:?}"));
            is.ok_or_else(wrong)?.to_string()
        } else {
            value.to_owned()
        };
        let option = option.key;
        self.given.push(Given { option, by, value });
        Ok(())
    }

    fn variables(&mut self, known: &[Opt]) -> Result<()> {
        for option in known {
            let is_it = |name: &str| option.names.contains(&name);
            let is_given = |given: &Given| given.by.strip_prefix("--").is_some_and(is_it);
            if option.variables.is_empty() || self.given.iter().any(is_given) {
                continue;
            }
            for name in option.variables {
                match std::env::var(name) {
                    Ok(value) if !value.is_empty() => {
                        self.take(option, (*name).to_owned(), &value)?;
                        break;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Errors: there are words that are no options.
    pub fn no_operands(&self) -> Result<()> {
        match self.operands.first() {
            Some(word) => Err(self.wrong(&format!("unexpected word {:?}", word.to_string_lossy()))),
            None => Ok(()),
        }
    }

    /// Every mention of an option.
    pub fn each<'a>(
        &'a self,
        option: &'a str,
    ) -> impl DoubleEndedIterator<Item = &'a Given> + use<'a> {
        self.given.iter().filter(move |given| given.option == option)
    }

    /// The last value of an option.
    pub fn value(&self, option: &str) -> Option<&str> {
        let mut given = self.given.iter().rev();
        let last = given.find(|given| given.option == option)?;
        Some(&last.value)
    }

    /// The values of an option that may be repeated and has a list each time, with commas.
    pub fn list(&self, option: &str) -> Vec<String> {
        self.each(option).flat_map(parts).map(str::to_owned).collect()
    }

    /// The last value of an option, read by a function that returns `None` for an unknown one.
    /// Errors: it is unknown; the known ones are listed.
    pub fn one_of<T>(
        &self,
        option: &str,
        read: impl Fn(&str) -> Option<T>,
        known: &str,
    ) -> Result<Option<T>> {
        let given = self.each(option).next_back();
        given.map(|given| self.known(given, &given.value, read, known)).transpose()
    }

    /// The same of each value of an option that may be repeated and has a list each time.
    pub fn list_of<T>(
        &self,
        option: &str,
        read: impl Fn(&str) -> Option<T>,
        known: &str,
    ) -> Result<Vec<T>> {
        let each = self.each(option).flat_map(|given| parts(given).map(move |part| (given, part)));
        each.map(|(given, part)| self.known(given, part, &read, known)).collect()
    }

    fn known<T>(
        &self,
        given: &Given,
        value: &str,
        read: impl Fn(&str) -> Option<T>,
        known: &str,
    ) -> Result<T> {
        let wrong = || self.wrong(&format!("{} {value:?}: known are {known}", given.by));
        read(value).ok_or_else(wrong)
    }

    /// The path of an option. Errors: it is empty, which would mean the working folder.
    pub fn path(&self, option: &str) -> Result<Option<PathBuf>> {
        match self.each(option).next_back() {
            Some(given) if given.value.is_empty() => {
                Err(self.wrong(&format!("{} is empty: give it a path", given.by)))
            }
            given => Ok(given.map(|given| PathBuf::from(&given.value))),
        }
    }

    /// The value of a flag. `None`: it was not given.
    pub fn flag(&self, option: &str) -> Option<bool> {
        self.value(option).map(|value| value == "true")
    }

    pub fn is_set(&self, option: &str) -> bool {
        self.flag(option) == Some(true)
    }
}

fn parts(given: &Given) -> impl Iterator<Item = &str> {
    let parts = given.value.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Opt] = &[
        flag(&["libraries", "l"]),
        flag(&["binaries", "b"]),
        value(&["device", "d"]),
        optional(&["user", "u"]),
        flag(&["no-pivot"]),
        flag(&["no-cgroups"]),
    ];

    fn read(line: &str) -> Result<String> {
        let words = ParsedArgs { syntax: Syntax::Argp, ..ParsedArgs::default() };
        let line: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let words = words.all(&line, KNOWN)?;
        let given = words.given.iter().map(|it| format!("{}={}", it.option, it.value));
        let operands = words.operands.iter().map(|word| word.to_string_lossy().into_owned());
        Ok(given.chain(operands).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_are_read_as_argp_reads_them() {
        for (line, expected) in [
            ("-lb", "libraries=true binaries=true"),
            ("-ld 0 x", "libraries=true device=0 x"),
            ("-dall", "device=all"),
            ("-bdl", "binaries=true device=l"),
            ("-uroot -u", "user=root user=true"),
            ("--lib --dev=1", "libraries=true device=1"),
            ("--no-p -- -l", "no-pivot=true -l"),
        ] {
            assert_eq!(read(line).as_deref(), Ok(expected), "{line}");
        }
        for line in ["-lx", "--no", "--l=maybe", "-ld"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
