//! Reads options as Go's package `flag` does, which NVIDIA's programs use: one dash or two, a value
//! after `=` or a blank, and flags that may have `=false`.
//!
//! Source: <https://pkg.go.dev/flag#hdr-Command_line_flag_syntax>

use std::ffi::OsString;

/// What follows an option's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Value,
    /// No value, or `=true` and the like.
    Nothing,
}

/// An option: its names, and whether it takes a value. [`Words`] uses the first name.
pub type Known = (&'static [&'static str], Takes);

/// Reads a truth value as Go's `strconv.ParseBool` does.
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A parsed command line.
#[derive(Debug, Default)]
pub struct Words {
    given: Vec<(&'static str, String)>,
    /// The words after the options.
    pub rest: Vec<OsString>,
}

impl Words {
    /// Reads options up to the first other word. Errors: an option is unknown, or a value is
    /// missing or wrong.
    pub fn parse(words: &[OsString], known: &[Known]) -> Result<Self, String> {
        let mut found = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(text) = word.to_str() else {
                return Err(format!("{:?} is not valid UTF-8", word.to_string_lossy()));
            };
            let option = text.strip_prefix("--").or_else(|| text.strip_prefix('-'));
            match option {
                Some("") if text == "--" => break,
                None | Some("") => {
                    found.rest.push(word.clone());
                    break;
                }
                Some(option) => found.option(option, &mut words, known)?,
            }
        }
        found.rest.extend(words.cloned());
        Ok(found)
    }

    fn option<'a>(
        &mut self,
        option: &str,
        words: &mut impl Iterator<Item = &'a OsString>,
        known: &[Known],
    ) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        let found = known.iter().find(|(names, _)| names.contains(&name));
        let Some((names, takes)) = found else {
            return Err(format!("unknown option --{name}"));
        };
        let value = match (takes, value) {
            (Takes::Nothing, None) => "true".to_owned(),
            (Takes::Nothing, Some(value)) => match truth(&value) {
                Some(is) => is.to_string(),
                None => return Err(format!("--{name} is true or false, not {value:?}")),
            },
            (Takes::Value, Some(value)) => value,
            (Takes::Value, None) => {
                let next = words.next().and_then(|word| word.to_str());
                next.ok_or_else(|| format!("--{name} needs a value"))?
                    .to_owned()
            }
        };
        self.given.push((names[0], value));
        Ok(())
    }

    /// Errors: there are words after the options.
    pub fn no_more(&self) -> Result<(), String> {
        match self.rest.first() {
            Some(word) => Err(format!("unexpected word {:?}", word.to_string_lossy())),
            None => Ok(()),
        }
    }

    /// Adds the words after a word that is not an option.
    pub fn add(&mut self, behind: Self, word: &OsString) {
        self.given.extend(behind.given);
        self.rest = vec![word.clone()];
        self.rest.extend(behind.rest);
    }

    /// Uses variables for options that were not given. The first variable that is set and not empty
    /// counts. Errors: a flag's variable is not a truth value.
    pub fn by_variables(
        &mut self,
        known: &[Known],
        variables: &[(&'static str, &[&str])],
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        for (name, tried) in variables {
            if self.value(name).is_some() {
                continue;
            }
            let set = |variable: &&str| {
                let value = get(variable).filter(|value| !value.is_empty());
                value.map(|value| ((*variable).to_owned(), value))
            };
            let Some((variable, mut value)) = tried.iter().find_map(set) else {
                continue;
            };
            let is_flag = |(names, takes): &Known| names[0] == *name && *takes == Takes::Nothing;
            if known.iter().any(is_flag) {
                let is = truth(&value);
                let is = is.ok_or_else(|| format!("{variable} is true or false, not {value:?}"))?;
                value = is.to_string();
            }
            self.given.push((name, value));
        }
        Ok(())
    }

    /// The last value of an option.
    pub fn value(&self, name: &str) -> Option<&str> {
        let given = self.given.iter().rev();
        let mut given = given.filter(|(given, _)| *given == name);
        given.next().map(|(_, value)| value.as_str())
    }

    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let given = self.given.iter().filter(move |(given, _)| *given == name);
        given.map(|(_, value)| value.as_str())
    }

    /// The value of a flag. `None`: it was not given.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.value(name).map(|value| value == "true")
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.flag(name) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Known] = &[
        (&["config", "c"], Takes::Value),
        (&["debug"], Takes::Nothing),
    ];

    fn parse(words: &[&str]) -> Result<Words, String> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        Words::parse(&words, KNOWN)
    }

    #[test]
    fn variables_stand_in_for_options() {
        const VARIABLES: &[(&str, &[&str])] =
            &[("config", &["FIRST", "SECOND"]), ("debug", &["D"])];
        let said = |words: &[&str], set: &[(&str, &str)]| {
            let mut words = parse(words).unwrap();
            let get = |name: &str| {
                let found = set.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            words.by_variables(KNOWN, VARIABLES, get)?;
            Ok::<_, String>((
                words.value("config").map(str::to_owned),
                words.flag("debug"),
            ))
        };
        let config = |text: &str| Some(text.to_owned());
        let both = [("FIRST", "/a"), ("SECOND", "/b"), ("D", "T")];
        assert_eq!(said(&[], &both), Ok((config("/a"), Some(true))));
        assert_eq!(
            said(&[], &[("FIRST", ""), ("SECOND", "/b")]),
            Ok((config("/b"), None))
        );
        assert_eq!(
            said(&["-c=/c", "-debug=false"], &both),
            Ok((config("/c"), Some(false)))
        );
        let wrong = said(&[], &[("D", "perhaps")]).unwrap_err();
        assert_eq!(wrong, "D is true or false, not \"perhaps\"");
    }

    #[test]
    fn one_dash_and_two() {
        for words in [
            &["-config", "/c", "prestart"][..],
            &["--config=/c", "prestart"],
            &["-c=/c", "prestart"],
            &["-config=/a", "-debug", "--config", "/c", "prestart"],
            &["-config=/c", "--", "prestart"],
        ] {
            let found = parse(words).unwrap();
            assert_eq!(found.value("config"), Some("/c"), "{words:?}");
            assert_eq!(found.rest, ["prestart"]);
        }
        assert_eq!(parse(&["a", "-debug"]).unwrap().rest, ["a", "-debug"]);
        assert_eq!(parse(&["-"]).unwrap().rest, ["-"]);
        assert_eq!(parse(&["-c=a=b"]).unwrap().value("config"), Some("a=b"));
    }

    #[test]
    fn flags_and_mistakes() {
        assert_eq!(parse(&[]).unwrap().flag("debug"), None);
        assert_eq!(parse(&["-debug=false"]).unwrap().flag("debug"), Some(false));
        assert!(parse(&["-debug=1"]).unwrap().is_set("debug"));
        for (words, expected) in [
            (&["-x"][..], "unknown option --x"),
            (&["-config"], "--config needs a value"),
            (&["-debug=x"], "--debug is true or false, not \"x\""),
        ] {
            assert_eq!(parse(words).unwrap_err(), expected);
        }
    }
}
