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
    fn at(&self, path: &str) -> At;
    /// The target of the link at a path; the folder's path has no link in it. `None`: not a link.
    fn link(&self, path: &str) -> Option<String>;
    /// True if the folder does not exist in the image, or is empty.
    fn is_free(&self, folder: &str) -> bool;
}

/// An image that can't be examined: every path counts as it is written.
pub struct Unseen;

impl Image for Unseen {
    fn at(&self, _: &str) -> At {
        At::Something
    }

    fn link(&self, _: &str) -> Option<String> {
        None
    }

    fn is_free(&self, _: &str) -> bool {
        false
    }
}

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

        fn is_free(&self, _: &str) -> bool {
            false
        }
    }

    #[test]
    fn as_many_links_are_followed_as_the_kernel_follows() {
        let end_of = |links: u32| follow(&format!("/{links}"), &Chain, |_| false);
        assert_eq!(end_of(MAX_LINKS), "/0");
        assert_eq!(end_of(MAX_LINKS + 1), "/1");
    }
}
