//! Reading JSON in the two ways that this program needs: a small tree that
//! remembers duplicate keys (for files that people write), and objects whose
//! values stay untouched slices of the text (for files that we edit).

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

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
    /// The kind of value, for messages.
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

/// Text in which an invalid character, such as half of a surrogate pair, becomes U+FFFD, as
/// it does for runc. Some strings are the container's, and its author may write anything.
struct LossyText<'a>(Cow<'a, str>);

struct LossyTextVisitor;

impl<'de> Visitor<'de> for LossyTextVisitor {
    type Value = LossyText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E>(self, text: &'de [u8]) -> Result<LossyText<'de>, E> {
        Ok(LossyText(String::from_utf8_lossy(text)))
    }

    fn visit_bytes<E>(self, text: &[u8]) -> Result<LossyText<'de>, E> {
        let text = String::from_utf8_lossy(text).into_owned();
        Ok(LossyText(Cow::Owned(text)))
    }
}

impl<'de> Deserialize<'de> for LossyText<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(LossyTextVisitor)
    }
}

/// The text of a string, borrowed where it has no escapes. `None`: it isn't a string.
pub fn lossy_text(value: &RawValue) -> Option<Cow<'_, str>> {
    let plain = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if !plain.contains('\\') {
        return Some(Cow::Borrowed(plain));
    }
    let text: LossyText = serde_json::from_str(value.get()).ok()?;
    Some(text.0)
}

/// The members of one object, each value an untouched slice of the text.
#[derive(Debug, Clone)]
pub struct RawObject<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> RawObject<'a> {
    /// Of two members with one key, the last one counts.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, v)| *v)
    }
}

struct RawObjectVisitor;

impl<'de> Visitor<'de> for RawObjectVisitor {
    type Value = RawObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        members(map).map(RawObject)
    }
}

impl<'de> Deserialize<'de> for RawObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawObjectVisitor)
    }
}

fn members<'de, A: MapAccess<'de>, V: Deserialize<'de>>(
    mut map: A,
) -> Result<Vec<(Cow<'de, str>, V)>, A::Error> {
    let mut members = Vec::new();
    while let Some((LossyText(key), value)) = map.next_entry()? {
        members.push((key, value));
    }
    Ok(members)
}

/// A JSON string literal for this text.
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
