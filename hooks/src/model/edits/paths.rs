//! Paths in a container, as text.

use std::borrow::Cow;

/// After this many links a path leads nowhere: the kernel's own limit (`path_resolution(7)`).
const MAX_LINKS: u32 = 40;

/// True if the path is the folder or lies in it.
pub fn lies_in(path: &str, folder: &str) -> bool {
    folder == "/"
        || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True for an absolute path without empty parts, `.` and `..`. False for `/`.
pub fn is_plain(path: &str) -> bool {
    // Compared by bytes, because a large inventory has thousands of paths.
    let Some(rest) = path.as_bytes().strip_prefix(b"/") else {
        return false;
    };
    let mut start = 0;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'/' if matches!(rest[start..at], [] | [b'.'] | [b'.', b'.']) => return false,
            b'/' => start = at + 1,
            0 => return false,
            _ => {}
        }
    }
    !matches!(rest[start..], [] | [b'.'] | [b'.', b'.'])
}

/// The path as a runtime reads the destination of a mount: from the root, without empty parts, `.`
/// and `..`.
pub fn clean(path: &str) -> Cow<'_, str> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    Cow::Owned(format!("/{}", parts.join("/")))
}

/// What an image has at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Nothing,
    /// Something, without a link in the path.
    Something,
    /// The path has a link in it.
    Link,
}

/// What the rules need to know about an image.
pub trait Image {
    fn at(&self, _path: &str) -> At {
        At::Something
    }
    /// The target of the link at a path; the folder's path has no link in it. `None`: not a link.
    fn link(&self, _path: &str) -> Option<String> {
        None
    }
    /// True if the folder does not exist in the image, or is empty.
    fn is_free(&self, _folder: &str) -> bool {
        false
    }
}

/// An image that can't be examined: every path counts as it is written.
pub struct Unseen;

impl Image for Unseen {}

/// Where a path with a link in it leads within the image. A mount is another file tree, and links
/// in it are not the image's.
pub fn follow(path: &str, image: &dyn Image, is_mount: impl Fn(&str) -> bool) -> String {
    let mut rest: Vec<String> = reversed(path).collect();
    let mut done = String::new();
    let mut links = 0;
    while let Some(part) = rest.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                done.truncate(done.rfind('/').unwrap_or(0));
                continue;
            }
            part => {
                done.push('/');
                done.push_str(part);
            }
        }
        if is_mount(&done) {
            break;
        }
        let target = if links < MAX_LINKS { image.link(&done) } else { None };
        if let Some(target) = target {
            links += 1;
            let end = if target.starts_with('/') { 0 } else { done.rfind('/').unwrap_or(0) };
            done.truncate(end);
            rest.extend(reversed(&target));
        }
    }
    rest.reverse();
    clean(&format!("{done}/{}", rest.join("/"))).into_owned()
}

fn reversed(path: &str) -> impl Iterator<Item = String> + '_ {
    path.rsplit('/').map(str::to_owned)
}

/// The folder and the last part of a path. `None` for `/` and the empty path.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_end_matches('/');
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    let folder = &path[..path.len() - name.len()];
    Some((if folder.is_empty() { "." } else { folder }, name))
}

/// True if the text has a character that makes it a pattern.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// True if a `[` of the pattern has no `]` and is therefore an ordinary character.
pub fn has_open_bracket(pattern: &str) -> bool {
    let mut rest = pattern.as_bytes();
    while let Some(at) = rest.iter().position(|&b| b == b'[') {
        match glob_class(&rest[at..], 0) {
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
pub fn glob_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
        } else if let Some(used) = glob_one(&pattern[p..], name[n]) {
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
fn glob_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => (byte != b'/').then_some(1),
        b'[' => match glob_class(pattern, byte) {
            Some((used, hit)) => (hit && byte != b'/').then_some(used),
            None => (byte == b'[').then_some(1),
        },
        &c => (c == byte).then_some(1),
    }
}

/// Reads `[…]` at the start of the pattern. Returns its length, and whether it has the byte.
fn glob_class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
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

    /// An image in which `/1` is a link to `/0`, `/2` one to `/1`, and so on.
    struct Chain;

    impl Image for Chain {
        fn at(&self, _: &str) -> At {
            At::Link
        }

        fn link(&self, path: &str) -> Option<String> {
            let number: u32 = path[1..].parse().unwrap();
            number.checked_sub(1).map(|next| format!("/{next}"))
        }
    }

    #[test]
    fn as_many_links_are_followed_as_the_kernel_follows() {
        let end_of = |links: u32| follow(&format!("/{links}"), &Chain, |_| false);
        assert_eq!(end_of(MAX_LINKS), "/0");
        assert_eq!(end_of(MAX_LINKS + 1), "/1");
    }

    #[test]
    fn many_stars_stay_fast() {
        let pattern = "*a".repeat(200);
        assert!(!glob_matches(&pattern, &"a".repeat(199)));
    }
}
