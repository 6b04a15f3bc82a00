//! The string table, laid out as `ldconfig` lays it out since glibc 2.33:
//! every string once, and strings that end alike share their tails.

use std::cmp::Ordering;

/// Offsets of strings in the table, and its bytes.
pub struct Table<'a> {
    /// In the order of the table.
    strings: Vec<(&'a [u8], usize)>,
    pub bytes: Vec<u8>,
}

impl<'a> Table<'a> {
    pub fn new(strings: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut strings: Vec<(&[u8], usize)> = strings.map(|s| (s, 0)).collect();
        strings.sort_unstable_by(|a, b| compare_ends(a.0, b.0));
        strings.dedup();
        let mut bytes = Vec::with_capacity(strings.iter().map(|(s, _)| s.len() + 1).sum());
        let mut previous: &[u8] = b"";
        for (string, offset) in &mut strings {
            // Whatever shares a tail with an earlier string ends where that one does.
            if bytes.is_empty() || !previous.ends_with(string) {
                bytes.extend_from_slice(string);
                bytes.push(0);
            }
            *offset = bytes.len() - string.len() - 1;
            previous = string;
        }
        Self { strings, bytes }
    }

    /// Offset of a string that the table was made from.
    pub fn offset(&self, string: &[u8]) -> usize {
        let place = self
            .strings
            .binary_search_by(|(s, _)| compare_ends(s, string));
        place.map_or(0, |at| self.strings[at].1)
    }
}

/// Compares from the end, descending; of two where one ends with the other, the
/// longer is first.
fn compare_ends(a: &[u8], b: &[u8]) -> Ordering {
    let ends = a.iter().rev().zip(b.iter().rev());
    ends.map(|(x, y)| y.cmp(x))
        .find(|order| *order != Ordering::Equal)
        .unwrap_or_else(|| b.len().cmp(&a.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_shared() {
        let strings: [&[u8]; 4] = [b"libc.so.6", b"/lib/libc.so.6", b"x", b"c.so.6"];
        let table = Table::new(strings.into_iter());
        assert_eq!(table.bytes, b"x\0/lib/libc.so.6\0");
        assert_eq!(table.offset(b"x"), 0);
        assert_eq!(table.offset(b"libc.so.6"), 7);
        assert_eq!(table.offset(b"c.so.6"), 10);
    }
}
