//! The values of a specification, read from JSON or YAML.

use super::yaml;
use crate::spec::json::Json;

/// The syntax of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Json,
    Yaml,
}

impl Syntax {
    /// The syntax of a file with this name. `None`: engines do not read the file.
    pub fn of(name: &str) -> Option<Self> {
        if name.strip_suffix(".json").is_some_and(|n| !n.is_empty()) {
            Some(Self::Json)
        } else if name.strip_suffix(".yaml").is_some_and(|n| !n.is_empty()) {
            Some(Self::Yaml)
        } else {
            None
        }
    }
}

/// A value. Objects keep the order and the duplicates of their keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    /// YAML without quotes. Its type depends on the field.
    Plain(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Reads a text. Errors: why it does not have this syntax.
    pub fn parse(text: &str, syntax: Syntax) -> Result<Self, String> {
        match syntax {
            Syntax::Json => serde_json::from_str::<Json>(text)
                .map(Self::from)
                .map_err(|e| format!("not valid JSON: {e}")),
            Syntax::Yaml => yaml::parse(text).map_err(|e| format!("not valid YAML: {e}")),
        }
    }

    /// The kind of value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) | Self::Plain(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }

    pub fn is_null(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Plain(text) => matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
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
            Self::Plain(text) => match text.as_str() {
                "true" | "True" | "TRUE" => Some(true),
                "false" | "False" | "FALSE" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// A whole number.
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

    pub fn member(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
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

impl From<Json<'_>> for Node {
    fn from(json: Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(value),
            Json::Number(number) => Self::Number(number),
            Json::Text(text) => Self::Text(text.into_owned()),
            Json::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Json::Object(members) => Self::Map(
                members
                    .into_iter()
                    .map(|(key, value)| (key.into_owned(), Self::from(value)))
                    .collect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_what_its_place_makes_of_it() {
        let plain = |text: &str| Node::Plain(text.to_owned());
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
        assert_eq!(Node::Text("true".to_owned()).boolean(), None);
        assert_eq!(Node::Text("1".to_owned()).integer(), None);
        assert_eq!(Node::Number(1.5).integer(), None);
    }

    #[test]
    fn files_are_known_by_their_names() {
        for (name, syntax) in [
            ("a.json", Some(Syntax::Json)),
            ("a.yaml", Some(Syntax::Yaml)),
            ("a.yml", None),
            (".json", None),
            ("a.json.bak", None),
            ("a.JSON", None),
        ] {
            assert_eq!(Syntax::of(name), syntax, "{name}");
        }
    }
}
