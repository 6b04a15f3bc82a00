//! What a container has before our edits, and how one of our paths relates to it.

use std::borrow::Cow;
use std::collections::{BTreeMap, Bound};

use rustc_hash::FxHashMap;

use crate::model::edits::paths::{clean, follow, is_plain, At, Image};
use crate::model::edits::DescribedMount;

/// A mount of the container's own configuration.
#[derive(Debug, Clone, Default)]
pub struct Mounted<'a> {
    /// As the configuration has it, possibly with links, `..` and slashes at the end.
    pub destination: Cow<'a, str>,
    pub source: Cow<'a, str>,
    /// The file system is made new for the container and contains no files of the user.
    pub is_new: bool,
}

/// What the container's own configuration has, before our edits.
#[derive(Debug, Clone, Default)]
pub struct Present<'a> {
    pub mounts: Vec<Mounted<'a>>,
    /// Paths of its device nodes.
    pub devices: Vec<Cow<'a, str>>,
}

impl Present<'_> {
    /// Adds the places where runc mounts a destination that begins with the host's path of the
    /// container's root: runc takes the rest as the path below the root.
    pub fn add_below(&mut self, root: &str) {
        let below = |mounted: &Mounted| {
            let rest = mounted.destination.strip_prefix(root)?;
            rest.starts_with('/').then(|| Mounted {
                destination: Cow::Owned(rest.to_owned()),
                source: Cow::Owned(mounted.source.clone().into_owned()),
                is_new: mounted.is_new,
            })
        };
        let found: Vec<Mounted> = self.mounts.iter().filter_map(below).collect();
        self.mounts.extend(found);
    }
}

/// How one of our paths relates to the existing mounts; the number is the position of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    Free,
    /// The file that we would mount is there already.
    Ours,
    At(usize),
    Within(usize),
    Around(usize),
}

/// The existing mounts of the container, by their real paths.
pub(super) struct Container<'a> {
    places: Vec<PlacedMount<'a>>,
    by_path: MountsByPath,
    image: &'a dyn Image,
    /// The folders of our paths.
    folders: FxHashMap<String, Folder>,
}

struct Folder {
    /// Its real path.
    place: String,
    at: At,
    /// No mount is at it, in it or around it.
    is_remote: bool,
}

struct PlacedMount<'a> {
    path: String,
    mounted: &'a Mounted<'a>,
}

impl<'a> Container<'a> {
    pub(super) fn new(present: &'a Present, image: &'a dyn Image) -> Self {
        let mut container = Self {
            places: Vec::with_capacity(present.mounts.len()),
            by_path: MountsByPath::default(),
            image,
            folders: FxHashMap::default(),
        };
        for mounted in &present.mounts {
            // A mount goes where the earlier mounts leave its path. For `..` behind a link, crun
            // follows the link as the kernel does, and runc removes the `..` from the text first.
            let (path, _) = container.look_up(&mounted.destination);
            if let Cow::Owned(as_text) = clean(&mounted.destination) {
                let (as_text, _) = container.look_up(&as_text);
                if as_text != path {
                    container.add(as_text, mounted);
                }
            }
            container.add(path, mounted);
        }
        container
    }

    fn add(&mut self, path: String, mounted: &'a Mounted<'a>) {
        self.by_path.add(&path, self.places.len());
        self.places.push(PlacedMount { path, mounted });
    }

    /// The path of a mount, by its position.
    pub(super) fn path(&self, place: usize) -> &str {
        &self.places[place].path
    }

    fn look_up(&self, path: &str) -> (String, At) {
        // The image has no links in a mount.
        if is_plain(path) && self.by_path.near(path).over().is_some() {
            return (path.to_owned(), At::Nothing);
        }
        match self.image.at(path) {
            At::Link => {
                let path = follow(path, self.image, |path| self.is_mount(path));
                let at = self.image.at(&path);
                (path, at)
            }
            at => (clean(path).into_owned(), at),
        }
    }

    fn is_mount(&self, path: &str) -> bool {
        self.by_path.near(path).at.is_some()
    }

    pub(super) fn new_file_systems(&self) -> Vec<String> {
        let new = self.places.iter().filter(|place| place.mounted.is_new);
        new.map(|place| place.path.clone()).collect()
    }

    /// The new file system around a path, unless a later mount covers it.
    pub(super) fn new_around(&self, place: &str) -> Option<&str> {
        let over = &self.places[self.by_path.near(place).over()?];
        over.mounted.is_new.then_some(over.path.as_str())
    }

    /// The real path of one of our paths, with the image's links followed (`None`: unchanged), and
    /// how it relates to the existing mounts.
    pub(super) fn stand(&mut self, path: &str, source: &str) -> (Option<String>, Overlap) {
        let (mut moved, mut at) = (None, At::Something);
        if let Some((folder, name)) = split(path) {
            if !self.folders.contains_key(folder) {
                let found = self.folder(folder);
                self.folders.insert(folder.to_owned(), found);
            }
            let found = &self.folders[folder];
            if found.place != folder {
                moved = Some(format!("{}/{name}", found.place));
            }
            if found.is_remote && found.at == At::Nothing {
                return (moved, Overlap::Free);
            }
            at = found.at;
        }
        if at != At::Nothing {
            moved = Some(self.look_up(moved.as_deref().unwrap_or(path)).0);
        }
        let standing = self.standing(moved.as_deref().unwrap_or(path), source);
        (moved, standing)
    }

    /// True if a whole folder can be mounted at the path without hiding anything.
    pub(super) fn hides_nothing(&mut self, path: &str, source: &str) -> bool {
        let found = self.folder(path);
        let standing = self.standing(&found.place, source);
        let free = found.at == At::Nothing || self.image.is_free(&found.place);
        self.folders.insert(path.to_owned(), found);
        free && matches!(standing, Overlap::Free | Overlap::Ours)
    }

    /// The real path of one of our paths.
    pub(super) fn resolve(&mut self, path: &str) -> String {
        let path = clean(path);
        let (moved, _) = self.stand(&path, "");
        moved.unwrap_or_else(|| path.into_owned())
    }

    fn folder(&self, path: &str) -> Folder {
        let (place, at) = self.look_up(path);
        Folder { is_remote: !self.by_path.near(&place).is_any(), place, at }
    }

    pub(super) fn standing(&self, path: &str, source: &str) -> Overlap {
        // A later mount around the path covers everything in it, deeper mounts too.
        let NearbyMounts { at, within, around } = self.by_path.near(path);
        match (at, within, around) {
            (Some(place), ..) if self.shows(place, path, source) => Overlap::Ours,
            (Some(place), ..) => Overlap::At(place),
            (_, Some(place), _) => Overlap::Within(place),
            (_, _, Some(place)) if self.places[place].mounted.is_new => Overlap::Free,
            (_, _, Some(place)) if self.shows(place, path, source) => Overlap::Ours,
            (_, _, Some(place)) => Overlap::Around(place),
            _ => Overlap::Free,
        }
    }

    /// True if this mount of a new file system is in the configuration already, from an earlier
    /// pass.
    pub(super) fn is_made_as(&self, place: usize, mount: &DescribedMount) -> bool {
        let mounted = self.places[place].mounted;
        mounted.is_new && mounted.source == mount.source
    }

    /// True if the container finds the source at the path, because the source or a folder around it
    /// is mounted.
    fn shows(&self, place: usize, path: &str, source: &str) -> bool {
        let PlacedMount { path: over, mounted } = &self.places[place];
        let below = path.strip_prefix(over.as_str());
        !mounted.is_new && below.is_some() && below == source.strip_prefix(&*mounted.source)
    }
}

/// The folder and the name of a clean path. `None`: the path lies in `/`.
fn split(path: &str) -> Option<(&str, &str)> {
    path.rsplit_once('/').filter(|(folder, _)| !folder.is_empty())
}

/// The mounts at, in and around a path. Of each kind it is the last one, because a later mount
/// covers an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NearbyMounts {
    pub at: Option<usize>,
    pub within: Option<usize>,
    pub around: Option<usize>,
}

impl NearbyMounts {
    /// The last mount at the path or around it.
    pub fn over(self) -> Option<usize> {
        self.at.max(self.around)
    }

    pub fn is_any(self) -> bool {
        self != Self::default()
    }
}

/// The numbers of mounts, by their clean paths. Ordered and not hashed, because a container's author
/// could choose names that collide.
#[derive(Debug, Default)]
pub(super) struct MountsByPath(BTreeMap<String, usize>);

impl MountsByPath {
    /// Adds a mount at a path. Numbers rise from call to call.
    pub fn add(&mut self, path: &str, number: usize) {
        self.0.insert(path.to_owned(), number);
    }

    /// The mounts near a clean path.
    pub fn near(&self, path: &str) -> NearbyMounts {
        let above =
            path.rmatch_indices('/').map(|(end, _)| if end == 0 { "/" } else { &path[..end] });
        let above = above.filter(|folder| *folder != path);
        let start = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.0.range::<str, _>((Bound::Excluded(&*start), Bound::Unbounded));
        let below = below.take_while(|(other, _)| other.starts_with(&start));
        NearbyMounts {
            at: self.0.get(path).copied(),
            within: below.map(|(_, number)| *number).max(),
            around: above.filter_map(|folder| self.0.get(folder).copied()).max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::lies_in;
    use super::*;

    /// The same result by examining every mount.
    fn slowly(paths: &[String], path: &str) -> NearbyMounts {
        let mut near = NearbyMounts::default();
        for (number, place) in paths.iter().enumerate() {
            if place == path {
                near.at = Some(number);
            } else if lies_in(place, path) {
                near.within = Some(number);
            } else if lies_in(path, place) {
                near.around = Some(number);
            }
        }
        near
    }

    proptest! {
        #[test]
        fn the_map_finds_what_examining_each_mount_finds(
            paths in prop::collection::vec("/|(/[ab]{1,2}){1,4}", 0..12),
            path in "/|(/[ab]{1,2}){1,4}",
        ) {
            let mut map = MountsByPath::default();
            for (number, place) in paths.iter().enumerate() {
                map.add(place, number);
            }
            prop_assert_eq!(map.near(&path), slowly(&paths, &path));
        }
    }
}
