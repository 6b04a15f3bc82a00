//! Shell patterns, as device names and `include` lines use them.

/// True if the text has a character that makes it a pattern.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// True if a `[` of the pattern has no `]` and is therefore an ordinary character.
pub fn has_open_bracket(pattern: &str) -> bool {
    let mut rest = pattern.as_bytes();
    while let Some(at) = rest.iter().position(|&b| b == b'[') {
        match class(&rest[at..], 0) {
            Some((used, _)) => rest = &rest[at + used..],
            None => return true,
        }
    }
    false
}

/// True if `name` matches `pattern`: `*`, `?`, `[abc]`, `[a-z]`, `[!a]`.
/// Only a `/` matches a `/`. A `[` without its `]` is an ordinary character.
///
/// Takes time proportional to the product of both lengths, because only the latest star is ever
/// retried.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
        } else if let Some(used) = one(&pattern[p..], name[n]) {
            p += used;
            n += 1;
        } else if let Some((star, at)) = retry.filter(|&(_, at)| name[at] != b'/') {
            retry = Some((star, at + 1));
            p = star;
            n = at + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Matches one byte against the start of the pattern. Returns the length that it used.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => (byte != b'/').then_some(1),
        b'[' => match class(pattern, byte) {
            Some((used, hit)) => (hit && byte != b'/').then_some(used),
            None => (byte == b'[').then_some(1),
        },
        &c => (c == byte).then_some(1),
    }
}

/// Reads `[…]` at the start of the pattern. Returns its length, and whether it has the byte.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = if negated { 2 } else { 1 };
    let mut hit = false;
    let mut i = start;
    loop {
        let low = *pattern.get(i)?;
        if low == b']' && i > start {
            return Some((i + 1, hit != negated));
        }
        let range = pattern.get(i + 1) == Some(&b'-');
        match pattern.get(i + 2) {
            Some(&high) if range && high != b']' => {
                hit |= (low..=high).contains(&byte);
                i += 3;
            }
            _ => {
                hit |= low == byte;
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_stars_stay_fast() {
        let pattern = "*a".repeat(200);
        assert!(!matches(&pattern, &"a".repeat(199)));
    }
}
