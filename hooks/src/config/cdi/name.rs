//! CDI names: `vendor.com/class=device`.

/// The parts of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qualified<'a> {
    /// `vendor.com/class`.
    pub kind: &'a str,
    pub device: &'a str,
}

/// Reads a name. `None`: it is not a CDI name.
pub fn qualified(text: &str) -> Option<Qualified<'_>> {
    let (kind, device) = text.split_once('=')?;
    (is_kind(kind) && is_device(device)).then_some(Qualified { kind, device })
}

/// True for `vendor.com/class`.
pub fn is_kind(text: &str) -> bool {
    let is_part =
        |part: &str| part.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(part, "_-.");
    text.split_once('/').is_some_and(|(vendor, class)| is_part(vendor) && is_part(class))
}

/// True for the name of a device within its kind.
pub fn is_device(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_word(text, "_-.:")
}

fn is_word(text: &str, others: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.ends_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_that_are_not_names() {
        for (text, expected) in [
            ("nvidia.com/gpu=0", Some(("nvidia.com/gpu", "0"))),
            ("nvidia.com/gpu=all", Some(("nvidia.com/gpu", "all"))),
            ("nvidia.com/gpu=0:1", Some(("nvidia.com/gpu", "0:1"))),
            ("nvidia.com/gpu=GPU-0a.b_c", Some(("nvidia.com/gpu", "GPU-0a.b_c"))),
            // With names of one letter, another reader's program crashes.
            ("a/b=c", Some(("a/b", "c"))),
            ("v/c.d=1", Some(("v/c.d", "1"))),
            ("V-1_x.y/C-1_z=dev", Some(("V-1_x.y/C-1_z", "dev"))),
            ("", None),
            ("all", None),
            ("0", None),
            ("nvidia.com/gpu", None),
            ("nvidia.com/gpu=", None),
            ("nvidia.com=0", None),
            ("/gpu=0", None),
            ("nvidia.com/=0", None),
            ("1nvidia.com/gpu=0", None),
            ("_v/gpu=0", None),
            ("v-/gpu=0", None),
            ("v/1gpu=0", None),
            ("v/gpu-=0", None),
            ("v/gpu=-0", None),
            ("v/gpu=0-", None),
            ("v/gpu=a=b", None),
            ("v/gpu/x=0", None),
            ("v/gpu=a b", None),
            ("v/gpu=\u{e9}", None),
            ("\u{e9}/gpu=0", None),
            (" v/gpu=0", None),
        ] {
            let found = qualified(text).map(|name| (name.kind, name.device));
            assert_eq!(found, expected, "{text}");
        }
    }
}
