//! The order of a cache's entries, which the loader's binary search relies on.

use std::cmp::Ordering;

use super::cache::Entry;

/// Compares names as glibc's `_dl_cache_libcmp` does: runs of digits by their
/// value, digits after every other character. Values of any length are
/// compared exactly, where glibc's `int` would overflow: a total order.
pub fn compare_names(mut left: &[u8], mut right: &[u8]) -> Ordering {
    loop {
        let (Some(&l), Some(&r)) = (left.first(), right.first()) else {
            return left.len().cmp(&right.len());
        };
        let order = match (l.is_ascii_digit(), r.is_ascii_digit()) {
            (true, true) => {
                let (value, rest) = digits(left);
                let (other, other_rest) = digits(right);
                (left, right) = (rest, other_rest);
                value.len().cmp(&other.len()).then_with(|| value.cmp(other))
            }
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                (left, right) = (&left[1..], &right[1..]);
                l.cmp(&r)
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// The run of digits at the head, without leading zeros, and what follows it.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    let zeros = text[..end].iter().take_while(|&&b| b == b'0').count();
    (&text[zeros..end], &text[end..])
}

/// Compares entries as `ldconfig` sorts them: name descending, flags
/// descending, entries of glibc-hwcaps folders first.
pub fn compare_entries(a: &Entry, b: &Entry) -> Ordering {
    compare_names(b.soname, a.soname)
        .then_with(|| b.flags.cmp(&a.flags))
        .then_with(|| b.is_extension().cmp(&a.is_extension()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_descending_order() {
        let sorted = [
            "libz.so.10",
            "libz.so.9",
            "libz.so.1",
            "libz.so",
            "libnvidia-ml.so.1",
            "libc.so.6",
            "ld-linux.so.2",
        ];
        for pair in sorted.windows(2) {
            let order = compare_names(pair[0].as_bytes(), pair[1].as_bytes());
            assert_eq!(order, Ordering::Greater, "{pair:?}");
        }
    }

    #[test]
    fn values_and_not_digits_are_compared() {
        assert_eq!(compare_names(b"a007", b"a7"), Ordering::Equal);
        assert_eq!(
            compare_names(b"a99999999999999999999", b"a8"),
            Ordering::Greater
        );
        assert_eq!(compare_names(b"a1", b"ax"), Ordering::Greater);
        assert_eq!(compare_names(b"a", b"a1"), Ordering::Less);
    }
}
