//! Programs with commands: which command a line has, and the help.

use std::ffi::OsString;
use std::fmt::Write;

use crate::cli::print;
use crate::error::Result;
use crate::spec::options::{Opt, ParsedArgs, Syntax};

pub struct Command {
    /// Its words, such as `cdi generate`.
    pub name: &'static str,
    pub options: &'static [Opt],
    pub takes: Takes,
    pub run: fn(&ParsedArgs) -> Result<u8>,
}

/// A command that takes only options.
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
    pub syntax: Syntax,
    /// The options before the command.
    pub options: &'static [Opt],
    pub commands: &'static [Command],
    /// The help, and those of commands that have their own.
    pub helps: &'static [(&'static str, &'static str)],
}

impl Program {
    /// Runs a line, without the program's name. `None`: it has no command.
    pub fn run(&self, line: &[OsString]) -> Result<Option<u8>> {
        let mut words = ParsedArgs { syntax: self.syntax, ..ParsedArgs::of("", self.help("")) }
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
