//! The string table, laid out as `ldconfig` lays it out since glibc 2.33:
//! every string once, and strings that end alike share their tails.

use std::cmp::Ordering;

/// The table's bytes, and where in it each string begins.
pub struct Table {
    /// One for each string that the table was made from, in that order.
    pub offsets: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Table {
    pub fn new<'a>(strings: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut strings: Vec<(u128, usize, &[u8])> = strings
            .enumerate()
            .map(|(place, string)| (end_of(string), place, string))
            .collect();
        // Few strings end with the same sixteen letters.
        strings.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| compare_ends(a.2, b.2)));
        let mut bytes = Vec::with_capacity(strings.iter().map(|(.., s)| s.len() + 1).sum());
        let mut offsets = vec![0; strings.len()];
        let mut previous: &[u8] = b"";
        for (_, place, string) in strings {
            // Whatever shares a tail with an earlier string ends where that one does.
            if bytes.is_empty() || !previous.ends_with(string) {
                bytes.extend_from_slice(string);
                bytes.push(0);
            }
            offsets[place] = bytes.len() - string.len() - 1;
            previous = string;
        }
        Self { offsets, bytes }
    }
}

/// The last letters as a number: of two, the greater one's string is first. Where a string
/// has fewer there are zeros, as no string has.
fn end_of(string: &[u8]) -> u128 {
    let mut letters = [0; 16];
    let from = string.len().saturating_sub(letters.len());
    let end = &string[from..];
    letters[16 - end.len()..].copy_from_slice(end);
    u128::from_le_bytes(letters)
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
    use proptest::prelude::*;

    #[test]
    fn tails_are_shared() {
        let strings: [&[u8]; 4] = [b"libc.so.6", b"/lib/libc.so.6", b"x", b"c.so.6"];
        let table = Table::new(strings.into_iter());
        assert_eq!(table.bytes, b"x\0/lib/libc.so.6\0");
        assert_eq!(table.offsets, [7, 2, 0, 10]);
    }

    proptest! {
        #[test]
        fn ends_as_numbers_are_in_the_order_of_ends(
            a in "[ab.]{0,20}",
            b in "[ab.]{0,20}",
            tail in "[ab.]{0,18}",
        ) {
            let (a, b) = (format!("{a}{tail}"), format!("{b}{tail}"));
            let (a, b) = (a.as_bytes(), b.as_bytes());
            let order = end_of(b).cmp(&end_of(a));
            prop_assert_eq!(order.then_with(|| compare_ends(a, b)), compare_ends(a, b));
        }
    }
}
