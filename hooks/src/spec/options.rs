//! Command lines: the commands and options of a program as tables, the one reader of them, and the help.
//!
//! Options are written as Go's package `flag` has them, because NVIDIA's programs do: one dash or
//! two, a value after `=` or a blank, and flags that may have `=false`.
//!
//! Source: <https://pkg.go.dev/flag#hdr-Command_line_flag_syntax>
//!
//! A program in C has them as GNU's `argp` does: letters may stand together, the last one may have its
//! value attached, and a long name may be cut where it stays unique.
//!
//! Source: <https://www.gnu.org/software/libc/manual/html_node/Argument-Style.html>

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use crate::error::{exit, Error, Result};

#[derive(Debug, Clone, Copy)]
pub struct Opt {
    /// Its name in [`ParsedArgs`].
    key: &'static str,
    names: &'static [&'static str],
    takes: Argument,
    /// The first of these variables that is set and not empty stands in for the option.
    variables: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    Value,
    /// A value after `=` only.
    MayHave,
    Truth,
}

/// An option without a value, or with `=true` and the like.
pub const fn flag(names: &'static [&'static str]) -> Opt {
    Opt { key: names[0], names, takes: Argument::Truth, variables: &[] }
}

pub const fn value(names: &'static [&'static str]) -> Opt {
    Opt { key: names[0], names, takes: Argument::Value, variables: &[] }
}

/// An option that may have a value, after `=`.
pub const fn optional(names: &'static [&'static str]) -> Opt {
    Opt { key: names[0], names, takes: Argument::MayHave, variables: &[] }
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
    pub style: Style,
}

/// How a program's options are written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    #[default]
    Go,
    Argp,
}

impl ParsedArgs {
    /// The words of a program or command, before the line is read.
    pub fn of(command: &str, help: [&'static str; 2]) -> Self {
        Self { command: command.to_owned(), help, ..Self::default() }
    }

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
                Some(letters) if self.style == Style::Argp && !text.starts_with("--") => {
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
            None if found.takes != Argument::Value => "true",
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
        exact.or_else(|| cut().filter(|_| self.style == Style::Argp && name.len() > 1))
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
            let has_value = self.find(name, known).is_some_and(|it| it.takes != Argument::Truth);
            if has_value && !rest.is_empty() {
                return self.option(&format!("{name}={rest}"), left, known);
            }
            self.option(name, left, known)?;
        }
        Ok(())
    }

    fn take(&mut self, option: &Opt, by: String, value: &str) -> Result<()> {
        let value = if option.takes == Argument::Truth {
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

    pub fn each<'a>(
        &'a self,
        option: &'a str,
    ) -> impl DoubleEndedIterator<Item = &'a Given> + use<'a> {
        self.given.iter().filter(move |given| given.option == option)
    }

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

pub struct Command {
    /// Its words, such as `cdi generate`.
    pub name: &'static str,
    pub options: &'static [Opt],
    pub takes: Takes,
    pub run: fn(&ParsedArgs) -> Result<u8>,
}

pub const fn command(
    name: &'static str,
    options: &'static [Opt],
    run: fn(&ParsedArgs) -> Result<u8>,
) -> Command {
    Command { name, options, takes: Takes::Nothing, run }
}

impl Command {
    #[must_use]
    pub const fn takes(self, takes: Takes) -> Self {
        Self { takes, ..self }
    }
}

/// The words after the command that are no options.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    One,
    /// The rest of the line as it is, options included.
    Line,
}

pub struct Program {
    pub name: &'static str,
    pub version: &'static str,
    pub style: Style,
    pub options: &'static [Opt],
    pub commands: &'static [Command],
    /// The help, and those of commands that have their own.
    pub helps: &'static [(&'static str, &'static str)],
}

impl Program {
    /// Runs a line, without the program's name. `None`: it has no command.
    pub fn run(&self, line: &[OsString]) -> Result<Option<u8>> {
        let mut words = ParsedArgs { style: self.style, ..ParsedArgs::of("", self.help("")) }
            .leading(line, self.options)?;
        let line = std::mem::take(&mut words.operands);
        if words.is_set("version") {
            return print(self.version).map(Some);
        }
        if words.is_set("help") {
            return print(self.helps[0].1).map(Some);
        }
        let (name, count) = self.name_in(&line);
        words.help = self.help(&name);
        words.command.clone_from(&name);
        let rest = &line[count..];
        let Some(command) = self.commands.iter().find(|command| command.name == name) else {
            return match rest.first().map(|word| word.to_string_lossy()) {
                Some(word) if is_help(&word) => self.print_help(&name).map(Some),
                Some(word) => Err(words.wrong(&format!(
                    "unknown command {word:?}; known are {}",
                    self.below(&name).join(", ")
                ))),
                None if name.is_empty() => Ok(None),
                None => Err(words.wrong(&format!(
                    "the command is missing; known are {}",
                    self.below(&name).join(", ")
                ))),
            };
        };
        if command.takes == Takes::Line {
            words.operands = rest.to_vec();
            return (command.run)(&words).map(Some);
        }
        let words = words.all(rest, command.options)?;
        if words.is_set("help") {
            return self.print_help(&name).map(Some);
        }
        let limit = usize::from(command.takes == Takes::One);
        if let Some(word) = words.operands.get(limit) {
            return Err(words.wrong(&format!("unexpected word {:?}", word.to_string_lossy())));
        }
        (command.run)(&words).map(Some)
    }

    /// The longest beginning of the line that is a command or a group of commands.
    fn name_in(&self, line: &[OsString]) -> (String, usize) {
        let mut name = String::new();
        for (count, word) in line.iter().enumerate() {
            if !self.below(&name).iter().any(|known| word == known) {
                return (name, count);
            }
            if count > 0 {
                name.push(' ');
            }
            name.push_str(&word.to_string_lossy());
        }
        (name, line.len())
    }

    /// The next words of the commands below a group.
    fn below(&self, group: &str) -> Vec<&'static str> {
        let mut found = Vec::new();
        for command in self.commands {
            let rest = match group {
                "" => Some(command.name),
                group => command.name.strip_prefix(group).and_then(|rest| rest.strip_prefix(' ')),
            };
            match rest.and_then(|rest| rest.split(' ').next()) {
                Some(word) if !found.contains(&word) => found.push(word),
                _ => {}
            }
        }
        found
    }

    /// The help text that has a command, and the first words of the commands in it.
    fn help_of(&self, name: &str) -> (&'static str, &'static str) {
        let mut helps = self.helps.iter().rev();
        let found = helps.find(|(of, _)| name.split(' ').next() == Some(of));
        *found.unwrap_or(&self.helps[0])
    }

    fn print_help(&self, name: &str) -> Result<u8> {
        match self.help_of(name) {
            (_, text) if name.is_empty() => print(text),
            (of, text) if of == name => print(text),
            (of, text) => {
                print(help_of_command(text, name.strip_prefix(of).unwrap_or(name).trim()))
            }
        }
    }

    /// The words that print the help of a command.
    fn help(&self, name: &str) -> [&'static str; 2] {
        [self.name, self.help_of(name).0]
    }
}

/// Prints an error, and returns its exit code.
pub fn complain(program: &str, error: &Error) -> u8 {
    let text = error.lines().join("\n");
    let _ = writeln!(std::io::stderr(), "{program}: {text}");
    error.code
}

pub fn print(text: impl AsRef<[u8]>) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    // Flushed here, because nothing is flushed when the program ends.
    out.write_all(text.as_ref())
        .and_then(|()| out.flush())
        .map_err(|e| Error::failed(format!("can't write to standard output: {e}")))?;
    Ok(exit::DONE)
}

fn is_help(word: &str) -> bool {
    ["help", "h", "-h", "--help", "-help"].contains(&word)
}

/// The entries of a help text that are about a command, or about each command of a group. An entry
/// is a line that begins with two blanks, and the deeper lines below it. The options are those that
/// the command's own entries name.
fn help_of_command(text: &str, command: &str) -> String {
    let name = command.split(' ').next_back().unwrap_or_default();
    let mut out = String::new();
    for (title, body) in text.split("\n\n").filter_map(|part| part.split_once('\n')) {
        let kept: Vec<&str> = match title {
            "Usage:" | "Commands:" => {
                entries(body).into_iter().filter(|entry| is_about(entry, command)).collect()
            }
            "Options:" => entries(body).into_iter().filter(|entry| is_named(entry, &out)).collect(),
            own if own == format!("Options of {name}:") => entries(body),
            _ => continue,
        };
        if !kept.is_empty() {
            let gap = if out.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}{title}\n{}", kept.join("\n"));
        }
    }
    let codes = text.lines().filter(|line| line.starts_with("Exit codes: "));
    codes.for_each(|line| _ = writeln!(out, "\n{line}"));
    out
}

fn entries(body: &str) -> Vec<&str> {
    let is_start = |at: usize| {
        let line = &body[at..];
        line.starts_with("  ") && !line.starts_with("   ")
    };
    let newlines = body.match_indices('\n').map(|(at, _)| at + 1);
    let mut starts: Vec<usize> = newlines.filter(|at| is_start(*at)).collect();
    starts.push(body.len() + 1);
    let mut from = 0;
    let entry = |end: usize| &body[std::mem::replace(&mut from, end)..end - 1];
    starts.into_iter().map(entry).map(str::trim_end).collect()
}

/// True if the words of the command follow each other in the entry's first line, before what is
/// said about it.
fn is_about(entry: &str, command: &str) -> bool {
    let line = entry.trim_start().lines().next().unwrap_or_default();
    let head = line.split("  ").next().unwrap_or_default();
    let words: Vec<&str> = head.split([' ', ',']).filter(|w| !w.is_empty()).collect();
    let wanted: Vec<&str> = command.split(' ').collect();
    words.windows(wanted.len()).any(|found| found == wanted)
}

/// True for an option that the text names, and for the settings, which every command reads.
fn is_named(entry: &str, text: &str) -> bool {
    let option = entry.split_whitespace().next().unwrap_or_default();
    let mut words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    option == "--config" || words.any(|word| word == option)
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
        let words = ParsedArgs { style: Style::Argp, ..ParsedArgs::default() };
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
