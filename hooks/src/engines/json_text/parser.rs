//! Parses a JSON text with comments and trailing commas.

use super::{Kind, Member, Node, Result};

/// The depth limit of serde's parser, so that no text exhausts the stack.
const MAX_DEPTH: usize = 127;

pub(super) struct Parser<'a> {
    pub(super) text: &'a str,
}

impl Parser<'_> {
    pub(super) fn value(&self, at: usize, depth: usize) -> Result<Node> {
        if depth > MAX_DEPTH {
            return Err(self.mistake(at, "a shallower value"));
        }
        match self.text[at..].chars().next() {
            Some('{') => self.object(at, depth),
            Some('[') => self.list(at, depth),
            Some('"') => {
                let (end, text) = self.string(at)?;
                Ok(Node {
                    at: at..end,
                    kind: Kind::Text(text),
                })
            }
            _ => self.scalar(at),
        }
    }

    fn scalar(&self, at: usize) -> Result<Node> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
        let rest = &self.text[at..];
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        let kind = match word {
            "true" => Kind::Flag(true),
            "false" => Kind::Flag(false),
            // serde decides whether it is a number.
            _ if serde_json::from_str::<&serde_json::value::RawValue>(word).is_ok() => Kind::Other,
            _ => return Err(self.mistake(at, "a value")),
        };
        Ok(Node {
            at: at..at + word.len(),
            kind,
        })
    }

    fn object(&self, start: usize, depth: usize) -> Result<Node> {
        let mut members = Vec::new();
        let mut at = self.skip(start + 1)?;
        while !self.text[at..].starts_with('}') {
            if !self.text[at..].starts_with('"') {
                return Err(self.mistake(at, "a name in quotes, or '}'"));
            }
            let (end, name) = self.string(at)?;
            let colon = self.skip(end)?;
            if !self.text[colon..].starts_with(':') {
                return Err(self.mistake(colon, "':'"));
            }
            let value = self.value(self.skip(colon + 1)?, depth + 1)?;
            let end = value.at.end;
            members.push(Member {
                name,
                start: at,
                value,
            });
            at = self.after_item(end, '}')?;
        }
        Ok(Node {
            at: start..at + 1,
            kind: Kind::Object(members),
        })
    }

    fn list(&self, start: usize, depth: usize) -> Result<Node> {
        let mut at = self.skip(start + 1)?;
        while !self.text[at..].starts_with(']') {
            let end = self.value(at, depth + 1)?.at.end;
            at = self.after_item(end, ']')?;
        }
        Ok(Node {
            at: start..at + 1,
            kind: Kind::Other,
        })
    }

    fn after_item(&self, at: usize, closing: char) -> Result<usize> {
        let at = self.skip(at)?;
        if self.text[at..].starts_with(',') {
            return self.skip(at + 1);
        }
        if self.text[at..].starts_with(closing) {
            return Ok(at);
        }
        Err(self.mistake(at, &format!("',' or '{closing}'")))
    }

    /// The end of a string, and its text.
    fn string(&self, at: usize) -> Result<(usize, String)> {
        let mut escaped = false;
        for (offset, byte) in self.text.bytes().enumerate().skip(at + 1) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    let end = offset + 1;
                    let text = serde_json::from_str(&self.text[at..end]);
                    let text = text.map_err(|_| self.mistake(at, "a string"))?;
                    return Ok((end, text));
                }
                _ => {}
            }
        }
        Err(self.mistake(at, "a string with an end"))
    }

    /// Skips blanks and comments. Errors: a comment has no end.
    pub(super) fn skip(&self, mut at: usize) -> Result<usize> {
        loop {
            at = skip_blanks(self.text, at, self.text.len());
            let rest = &self.text[at..];
            if rest.starts_with("//") || rest.starts_with('#') {
                at += rest.find('\n').unwrap_or(rest.len());
            } else if let Some(inside) = rest.strip_prefix("/*") {
                let end = inside.find("*/");
                at += 4 + end.ok_or_else(|| self.mistake(at, "a comment with an end"))?;
            } else {
                return Ok(at);
            }
        }
    }

    pub(super) fn mistake(&self, at: usize, expected: &str) -> String {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = at - before.rfind('\n').map_or(0, |end| end + 1) + 1;
        format!("line {line}, column {column}: {expected} expected")
    }
}

/// The position of the next byte that is not a blank.
pub(super) fn skip_blanks(text: &str, from: usize, to: usize) -> usize {
    let between = &text[from..to];
    let rest = between.trim_start_matches([' ', '\t', '\r', '\n']);
    from + between.len() - rest.len()
}
