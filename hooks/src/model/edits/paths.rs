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
pub mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// An image of links; everything else is a folder.
    pub struct Links(pub BTreeMap<&'static str, &'static str>);

    impl Image for Links {
        fn at(&self, path: &str) -> At {
            let mut prefixes = path.match_indices('/').map(|(at, _)| &path[..at]);
            if prefixes.any(|prefix| self.0.contains_key(prefix)) || self.0.contains_key(path) {
                At::Link
            } else {
                At::Something
            }
        }

        fn link(&self, path: &str) -> Option<String> {
            self.0.get(path).map(|&target| target.to_owned())
        }

        fn is_free(&self, _: &str) -> bool {
            true
        }
    }

    #[test]
    fn clean_table() {
        for (path, expected) in [
            ("/a/b", "/a/b"),
            ("a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("//a/./b//", "/a/b"),
            ("/a/../b", "/b"),
            ("/../..", "/"),
            ("", "/"),
        ] {
            assert_eq!(clean(path), expected, "{path}");
        }
    }

    #[test]
    fn as_many_links_are_followed_as_the_kernel_follows() {
        let names: Vec<String> = (0..=MAX_LINKS + 1).map(|n| format!("/l{n}")).collect();
        let pairs = names.windows(2).map(|pair| (pair[0].as_str(), pair[1].as_str()));
        let image = Chain(pairs.collect());
        let end = format!("/l{}", MAX_LINKS + 1);
        let last = names[1].as_str();
        assert_eq!(follow(last, &image, |_| false), end, "{MAX_LINKS} links");
        let before = format!("/l{MAX_LINKS}");
        assert_eq!(follow("/l0", &image, |_| false), before, "one more");
    }

    struct Chain<'a>(BTreeMap<&'a str, &'a str>);

    impl Image for Chain<'_> {
        fn at(&self, _: &str) -> At {
            At::Link
        }

        fn link(&self, path: &str) -> Option<String> {
            self.0.get(path).map(|&target| target.to_owned())
        }

        fn is_free(&self, _: &str) -> bool {
            false
        }
    }

    #[test]
    fn lies_in_table() {
        assert!(lies_in("/a", "/a") && lies_in("/a/b", "/a") && lies_in("/a", "/"));
        assert!(!lies_in("/ab", "/a") && !lies_in("/a", "/a/b"));
    }

    #[test]
    fn links_lead_within_the_image_and_stop_at_mounts() {
        let image = Links(BTreeMap::from([
            ("/lib", "usr/lib"),
            ("/usr/lib/x", "/opt/./x/"),
            ("/up", "../../../etc"),
            ("/loop", "loop"),
            ("/volume/deep", "/etc"),
        ]));
        let lead = |path: &str| follow(path, &image, |path| path == "/volume");
        for (path, expected) in [
            ("/lib/a.so", "/usr/lib/a.so"),
            ("/lib/../a", "/usr/a"),
            ("/lib/x/y", "/opt/x/y"),
            ("/up/hosts", "/etc/hosts"),
            ("/volume/deep/a", "/volume/deep/a"),
            ("/plain/a", "/plain/a"),
        ] {
            assert_eq!(lead(path), expected, "{path}");
        }
        assert_eq!(lead("/loop/a"), "/loop/a");
    }

    #[test]
    fn split_table() {
        assert_eq!(split("/a/b"), Some(("/a/", "b")));
        assert_eq!(split("a"), Some((".", "a")));
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/"), None);
    }
}
