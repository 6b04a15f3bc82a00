//! The help of one command, cut from the program's.

use std::fmt::Write;

/// The entries of a help text that are about a command, or about each command of a group. An entry
/// is a line that begins with two blanks, and the deeper lines below it. The options are those that
/// the command's own entries name.
pub fn of(text: &str, command: &str) -> String {
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
