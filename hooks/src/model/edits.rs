//! Everything that changes in a container, in one model after CDI's `ContainerEdits`, with the
//! libraries that the loader must find. Plain data and rules about it: front ends ask for edits,
//! and appliers take them once they are settled.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>

mod conflict;

use std::borrow::Cow;
use std::fmt;
use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Result};

pub use conflict::{Mounted, Present, Settled};

/// A file, folder or socket of the host, mounted with the attributes of [`FILE_MOUNT`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host, without symbolic links.
    pub source: String,
    /// Path in the container.
    pub target: String,
}

/// A mount that a CDI specification or an engine's own configuration describes. It is used as it
/// is, while we choose the attributes of a [`Mount`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMount {
    pub source: String,
    pub target: String,
    /// `bind` where empty.
    pub kind: String,
    pub options: Vec<String>,
}

/// A program that the runtime starts at a stage of the container's life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hook {
    /// Its name in `hooks` of a spec: `prestart`, `createRuntime`, `createContainer`, …
    pub stage: String,
    pub path: String,
    pub args: Vec<String>,
    /// Written even when it is empty, because a runtime may otherwise pass the container's
    /// environment on.
    pub env: Vec<String>,
    /// Seconds.
    pub timeout: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Path in the container.
    pub path: String,
    /// The text of the link.
    pub target: String,
}

/// A network interface that moves from the host into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetDevice {
    /// Its name on the host.
    pub host: String,
    /// Its name in the container.
    pub name: String,
}

/// A folder of the image with newer user-space libraries of the driver (CUDA's forward
/// compatibility), and the host's versions to compare them with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compat {
    /// Path in the container.
    pub folder: String,
    /// Version of the host's driver, like `535.261.03`. `None`: unknown.
    pub driver: Option<String>,
    /// The newest CUDA version that the host's driver supports. `None`: unknown.
    pub cuda: Option<String>,
}

/// A shared library, with what the loader's cache records about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Path in the container.
    pub path: String,
    /// Name that the loader asks for (`DT_SONAME`, or the file's name if it has none).
    pub soname: String,
    /// glibc's cache flags: architecture and libc.
    pub flags: u32,
    /// On the host, the path in the inventory is a link.
    pub is_link: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    ReadOnly,
    NoSuid,
    NoDevices,
    NoPrograms,
}

/// Files and folders of the host: the container can't change the driver, gain rights by it, or
/// use it as a device. Every mount is a bind mount, and private.
pub const FILE_MOUNT: &[Attribute] =
    &[Attribute::ReadOnly, Attribute::NoSuid, Attribute::NoDevices];

/// A mounted device node, for containers in which a node that we make would not work.
pub const DEVICE_MOUNT: &[Attribute] = &[Attribute::NoSuid, Attribute::NoPrograms];

impl Attribute {
    /// Its name in a spec and in a CDI document.
    pub fn option(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::NoSuid => "nosuid",
            Self::NoDevices => "nodev",
            Self::NoPrograms => "noexec",
        }
    }

    /// The mount options for these attributes, as a spec and a CDI document list them.
    pub fn options(attributes: &[Self]) -> impl Iterator<Item = &'static str> + '_ {
        let own = attributes.iter().map(|attribute| attribute.option());
        ["bind"].into_iter().chain(own).chain(["rprivate"])
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    pub devices: Vec<Device>,
    pub mounts: Vec<Mount>,
    /// Folders that could be mounted whole, instead of the mounts that lie in them.
    pub folders: Vec<Mount>,
    /// Folders that must exist in the container.
    pub directories: Vec<String>,
    pub libraries: Vec<Library>,
    /// Mounts that a CDI specification or an engine's configuration describes.
    pub described: Vec<DescribedMount>,
    /// `NAME=value`, which replaces the container's own value.
    pub environment: Vec<String>,
    pub unset: Vec<String>,
    /// Groups that the container's process joins.
    pub groups: Vec<u32>,
    pub hooks: Vec<Hook>,
    /// Hooks at the stage `prestart` to remove, by the base names of their programs.
    pub replaced_hooks: Vec<String>,
    pub links: Vec<Link>,
    /// Folders of the container that the loader has to search, besides those of `libraries`.
    pub library_folders: Vec<String>,
    /// Folders of the image whose libraries come before the driver's if they are newer.
    pub compat: Vec<Compat>,
    /// `linux.intelRdt` of a spec, as JSON.
    pub intel_rdt: Option<String>,
    pub net_devices: Vec<NetDevice>,
    /// Programs of NVIDIA's driver must not make nodes. The hook that joins the container covers
    /// the driver's settings there.
    pub keeps_nodes: bool,
}

impl Edits {
    /// Sorts parents before what lies in them, so that no mount hides another.
    pub fn sort(&mut self) {
        sort_mounts(&mut self.mounts);
        self.directories.sort();
    }

    /// Folders that no mount creates.
    pub fn bare_directories(&self) -> impl Iterator<Item = &str> {
        let mut targets = Vec::new();
        if !self.directories.is_empty() {
            targets.extend(self.mounts.iter().map(|mount| mount.target.as_str()));
            targets.sort_unstable();
        }
        let directories = self.directories.iter().map(String::as_str);
        directories.filter(move |directory| !has_within(&targets, directory))
    }

    /// Checks what appliers rely on: every path in the container is absolute and plain, and every
    /// variable is `NAME=value`. Errors: the first path or variable that is not.
    pub fn validate(&self) -> Result<()> {
        let devices = self.devices.iter().map(|d| &d.path);
        let mounts = self.mounts.iter().chain(&self.folders).map(|m| &m.target);
        let libraries = self.libraries.iter().map(|l| &l.path);
        let described = self.described.iter().map(|m| &m.target);
        let links = self.links.iter().map(|l| &l.path);
        let compat = self.compat.iter().map(|c| &c.folder);
        let mut all = devices
            .chain(mounts)
            .chain(&self.directories)
            .chain(libraries)
            .chain(described)
            .chain(links)
            .chain(compat)
            .chain(&self.library_folders);
        if let Some(path) = all.find(|path| !is_plain(path)) {
            return Err(Error::failed(format!(
                "{path:?} can't be given to a container: it is not an absolute path without empty parts, '.' and '..'"
            )));
        }
        match self.environment.iter().find(|entry| !is_variable(entry)) {
            Some(entry) => Err(Error::failed(format!(
                "{entry:?} can't be given to a container: it is not a variable, NAME=value"
            ))),
            None => Ok(()),
        }
    }

    /// Adds what only the other has. The first entry at a path stays. Of two values of a variable,
    /// the later one counts, as in CDI.
    pub fn append(&mut self, other: Self) {
        merge(&mut self.devices, other.devices, |d| &d.path);
        merge(&mut self.mounts, other.mounts, |m| &m.target);
        merge(&mut self.folders, other.folders, |m| &m.target);
        merge(&mut self.directories, other.directories, |d| d);
        merge(&mut self.libraries, other.libraries, |l| &l.path);
        merge(&mut self.described, other.described, |m| &m.target);
        merge(&mut self.links, other.links, |l| &l.path);
        merge(&mut self.library_folders, other.library_folders, |f| f);
        merge(&mut self.compat, other.compat, |c| &c.folder);
        merge(&mut self.net_devices, other.net_devices, |d| &d.host);
        add_missing(&mut self.groups, other.groups);
        add_missing(&mut self.hooks, other.hooks);
        add_missing(&mut self.replaced_hooks, other.replaced_hooks);
        add_missing(&mut self.unset, other.unset);
        self.set_variables(other.environment);
        self.keeps_nodes |= other.keeps_nodes;
        if other.intel_rdt.is_some() {
            self.intel_rdt = other.intel_rdt;
        }
    }

    fn set_variables(&mut self, entries: Vec<String>) {
        if entries.is_empty() {
            return;
        }
        let known = self.environment.iter().enumerate();
        let known = known.map(|(place, entry)| (variable_name(entry).to_owned(), place));
        // The first entry of a name is the one that is replaced.
        let mut places: FxHashMap<String, usize> = known.rev().collect();
        for entry in entries {
            let name = variable_name(&entry);
            self.unset.retain(|unset| unset != name);
            if let Some(place) = places.get(name) {
                self.environment[*place] = entry;
            } else {
                places.insert(name.to_owned(), self.environment.len());
                self.environment.push(entry);
            }
        }
    }
}

/// True if one of these sorted paths is the folder or lies in it.
fn has_within(sorted: &[&str], folder: &str) -> bool {
    if sorted.binary_search(&folder).is_ok() {
        return true;
    }
    let within = format!("{}/", folder.trim_end_matches('/'));
    let first = sorted.partition_point(|path| **path < *within);
    sorted.get(first).is_some_and(|path| path.starts_with(&within))
}

/// True for `NAME=value`.
pub fn is_variable(entry: &str) -> bool {
    !entry.starts_with('=') && entry.contains('=') && !entry.contains('\0')
}

pub fn variable_name(entry: &str) -> &str {
    entry.split_once('=').map_or(entry, |(name, _)| name)
}

fn sort_mounts(mounts: &mut [Mount]) {
    // A sort needs memory even if the mounts are in order already.
    if !mounts.is_sorted_by(|a, b| a.target <= b.target) {
        mounts.sort_by(|a, b| a.target.cmp(&b.target));
    }
}

fn merge<T>(into: &mut Vec<T>, from: Vec<T>, key: impl Fn(&T) -> &String) {
    if from.is_empty() {
        return;
    }
    let mut seen: FxHashSet<&String> = into.iter().map(&key).collect();
    let new: Vec<bool> = from.iter().map(|item| seen.insert(key(item))).collect();
    let new = from.into_iter().zip(new).filter(|(_, new)| *new);
    into.extend(new.map(|(item, _)| item));
}

fn add_missing<T: Clone + Eq + Hash>(into: &mut Vec<T>, from: Vec<T>) {
    if from.is_empty() {
        return;
    }
    let mut known: FxHashSet<T> = into.iter().cloned().collect();
    into.extend(from.into_iter().filter(|item| known.insert(item.clone())));
}

/// A device node, as the runtime makes it in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Path on the host.
    pub source: String,
    /// Path in the container.
    pub path: String,
    /// `c`, `b`, or `p` for a pipe, which has no device numbers and needs no right.
    pub kind: char,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    /// `None`: the user of the container's process.
    pub uid: Option<u32>,
    /// `None`: the group of the container's process.
    pub gid: Option<u32>,
    pub access: Access,
}

impl Device {
    /// True if the container's cgroup needs a rule for the device.
    pub fn needs_rule(&self) -> bool {
        self.kind != 'p' && self.access != Access::NONE
    }
}

/// What a container may do with a device, in the terms of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    /// Whether it may make the device's node.
    pub make: bool,
}

impl Access {
    pub const ALL: Self = Self { read: true, write: true, make: true };
    /// The node exists, and the container's cgroup gives no right to use it.
    pub const NONE: Self = Self { read: false, write: false, make: false };

    /// Reads `rwm` or some of these letters. `None`: another letter, or no letter.
    pub fn parse(letters: &str) -> Option<Self> {
        let known = !letters.is_empty() && letters.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
        known.then(|| Self {
            read: letters.contains('r'),
            write: letters.contains('w'),
            make: letters.contains('m'),
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(self.read, "r"), (self.write, "w"), (self.make, "m")];
        let mut given = letters.iter().filter(|(given, _)| *given);
        given.try_for_each(|(_, letter)| f.write_str(letter))
    }
}

/// After this many links a path leads nowhere: the kernel's own limit (`path_resolution(7)`).
const MAX_LINKS: u32 = 40;

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

    #[test]
    fn only_plain_absolute_paths_are_valid() {
        let with = |path: &str| Edits { directories: vec![path.to_owned()], ..Edits::default() };
        assert_eq!(with("/usr/lib/a b").validate(), Ok(()));
        for path in ["", "a", "/a/../b", "/a//b", "/a/", "/./a", "/", "/a\0b"] {
            let error = with(path).validate().unwrap_err().to_string();
            assert!(error.contains(&format!("{path:?}")), "{error}");
        }
    }

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
