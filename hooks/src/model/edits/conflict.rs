//! The rule for conflicts with what a container already has: what the user mounted stays.
//!
//! One of our mounts or nodes is left out if the container's own configuration has something at its
//! path, in it (our mount would hide that), or around it (the mount point would be made in the
//! user's volume). The container still gets the right to use a requested device. File systems that
//! are made new for the container (a tmpfs, /proc) contain no files of the user, so our files may
//! lie there.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, Bound};
use std::mem::take;
use std::ops::Deref;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::log::{Level, Note};
use crate::model::edits::{
    clean, follow, is_plain, lies_in, sort_mounts, split, At, DescribedMount, Device, Edits, Image,
    Link, Mount,
};

const CACHE: &str = "/etc/ld.so.cache";

/// Edits that hide nothing of the container's own. Appliers take only these. No path in the
/// container has a link of the image in it.
#[derive(Debug, Default)]
pub struct Settled {
    /// Their devices are the nodes to make, which are also allowed. No mount creates their
    /// directories, and their links lie among the image's own files.
    edits: Edits,
    /// Devices whose nodes are in one of the container's own mounts.
    allowed: Vec<Device>,
    pub new_file_systems: Vec<String>,
    /// Links in file systems that the runtime makes new. They can only be made after that.
    pub late_links: Vec<Link>,
}

impl Deref for Settled {
    type Target = Edits;

    fn deref(&self) -> &Edits {
        &self.edits
    }
}

impl Edits {
    /// Leaves out the devices that the container's own configuration lists, which keep the rights
    /// that it gives them.
    pub fn leave_listed(&mut self, present: &Present) {
        if self.devices.is_empty() {
            return;
        }
        let listed: BTreeSet<_> = present.devices.iter().map(|path| clean(path)).collect();
        let is_listed = |device: &Device| listed.contains(device.path.as_str());
        self.devices.retain(|device| !is_listed(device));
    }

    /// Applies the rule, and replaces files with their whole folder where that hides nothing.
    /// Notes: what is left out.
    pub fn settle(mut self, present: &Present, image: &dyn Image) -> (Settled, Vec<Note>) {
        self.directories = self.bare_directories().map(str::to_owned).collect();
        let mut container = Container::new(present, image);
        fold(&mut self, &mut container);
        let mut kept = Kept::default();
        self.settle_mounts(&mut container, &mut kept);
        self.settle_described(&mut container, &mut kept);
        let allowed = self.settle_devices(present, &mut container);
        self.settle_directories(&mut container, &mut kept);
        let late_links = self.settle_links(&mut container, &mut kept);
        self.libraries.retain(|l| !kept.hidden.contains(&l.path));
        let mut notes = kept.notes(&container);
        notes.extend(self.keep_cache(&mut container));
        let new_file_systems = container.new_file_systems();
        (Settled { edits: self, allowed, new_file_systems, late_links }, notes)
    }

    fn settle_mounts(&mut self, container: &mut Container, kept: &mut Kept) {
        self.mounts.retain_mut(|mount| {
            let path = kept.place(container, take(&mut mount.target), &mount.source, None);
            path.map(|path| mount.target = path).is_some()
        });
        // Links may lead two mounts to one path, or put a folder behind a mount that lies in it.
        sort_mounts(&mut self.mounts);
        self.mounts.dedup_by(|b, a| a.target == b.target);
    }

    fn settle_described(&mut self, container: &mut Container, kept: &mut Kept) {
        if self.described.is_empty() {
            return;
        }
        let mut there: FxHashSet<String> = self.mounts.iter().map(|m| m.target.clone()).collect();
        for mut mount in take(&mut self.described) {
            let target = take(&mut mount.target);
            if let Some(path) = kept.place(container, target, &mount.source, Some(&mount)) {
                if there.insert(path.clone()) {
                    self.described.push(DescribedMount { target: path, ..mount });
                }
            }
        }
        // Parents come before what lies in them. Otherwise the author's order stays.
        let depth = |mount: &DescribedMount| mount.target.matches('/').count();
        self.described.sort_by_cached_key(depth);
    }

    /// A link replaces an older link of its name; the older one is not followed. Returns those in file
    /// systems that the runtime makes new.
    fn settle_links(&mut self, container: &mut Container, kept: &mut Kept) -> Vec<Link> {
        let mut late = Vec::new();
        for mut link in take(&mut self.links) {
            if let Some((folder, name)) = split(&link.path) {
                let folder = container.resolve(folder);
                link.path = format!("{}/{name}", folder.trim_end_matches('/'));
            }
            match container.standing(&link.path, "") {
                Overlap::Free if container.new_around(&link.path).is_some() => {
                    late.push(link);
                }
                Overlap::Free | Overlap::Ours => self.links.push(link),
                Overlap::At(other) | Overlap::Within(other) | Overlap::Around(other) => {
                    kept.add(other, link.path);
                }
            }
        }
        late
    }

    /// Returns the devices whose nodes are in one of the container's own mounts.
    fn settle_devices(&mut self, present: &Present, container: &mut Container) -> Vec<Device> {
        let mut allowed = Vec::new();
        if self.devices.is_empty() {
            return allowed;
        }
        let listed = present.devices.iter();
        let listed: BTreeSet<String> = listed.map(|p| container.resolve(p)).collect();
        self.devices.retain_mut(|device| {
            let (moved, standing) = container.stand(&device.path, &device.source);
            device.path = moved.unwrap_or(take(&mut device.path));
            if listed.contains(&device.path) {
                return false;
            }
            if standing != Overlap::Free {
                allowed.push(device.clone());
            }
            standing == Overlap::Free
        });
        allowed
    }

    fn settle_directories(&mut self, container: &mut Container, kept: &mut Kept) {
        for directory in take(&mut self.directories) {
            let (moved, standing) = container.stand(&directory, "");
            match standing {
                Overlap::Around(place) => kept.add(place, directory),
                Overlap::At(_) => {}
                _ => self.directories.push(moved.unwrap_or(directory)),
            }
        }
    }

    /// Leaves the libraries out if the user mounted the library cache or its folder: our cache
    /// could only be made beneath that mount.
    fn keep_cache(&mut self, container: &mut Container) -> Option<Note> {
        if self.libraries.is_empty() && self.compat.is_empty() {
            return None;
        }
        let (moved, standing) = container.stand(CACHE, "");
        let (Overlap::At(place) | Overlap::Around(place)) = standing else {
            // The cache is made in the image, where this container does not see it.
            let path = container.new_around(moved.as_deref().unwrap_or(CACHE))?;
            let message = format!(
                "the container's own file system {path} is new and hides the library cache: the driver's libraries are found in the loader's default folders only"
            );
            return Some(Note::new(Level::Warning, message));
        };
        self.libraries.clear();
        self.compat.clear();
        let path = container.path(place);
        let message = format!(
            "the container's own mount {path} stays as it is, and has the library cache: the driver's libraries are found in the loader's default folders only"
        );
        Some(Note::new(Level::Warning, message))
    }
}

impl Settled {
    pub fn allowed(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().chain(&self.allowed)
    }
}

/// What stays as it is.
#[derive(Default)]
struct Kept {
    /// The container's own mounts, and the edits that are left out for each.
    mounts: BTreeMap<usize, Vec<String>>,
    /// The targets at which the container sees no file at all.
    hidden: FxHashSet<String>,
}

impl Kept {
    fn add(&mut self, place: usize, ours: String) {
        self.mounts.entry(place).or_default().push(ours);
    }

    /// Where a mount of ours is made. `None`: the container has something there, which stays.
    fn place(
        &mut self,
        container: &mut Container,
        target: String,
        source: &str,
        described: Option<&DescribedMount>,
    ) -> Option<String> {
        let (moved, standing) = container.stand(&target, source);
        match standing {
            Overlap::Free => return Some(moved.unwrap_or(target)),
            Overlap::Ours => {}
            Overlap::At(place) if described.is_some_and(|it| container.is_made_as(place, it)) => {}
            Overlap::At(other) => self.add(other, target),
            Overlap::Around(other) | Overlap::Within(other) => {
                self.add(other, target.clone());
                self.hidden.insert(target);
            }
        }
        None
    }

    /// One note for each mount that stays, however many files are left out.
    fn notes(self, container: &Container) -> Vec<Note> {
        let note = |(place, ours): (usize, Vec<String>)| {
            let more = match ours.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let message = format!(
                "the container's own mount {} stays as it is: {}{more} left out",
                container.path(place),
                ours[0]
            );
            Note::new(Level::Warning, message)
        };
        self.mounts.into_iter().map(note).collect()
    }
}

// Mounts a folder once instead of each of its files.
//
// A runtime needs a tenth of a millisecond for a mount. If a folder of the driver has only files
// of the inventory, and the image has nothing at its path, the container sees the same either way.

/// Replaces files with their whole folder, where that hides nothing of the image and none of the
/// container's own mounts.
pub(super) fn fold(edits: &mut Edits, container: &mut Container) {
    if edits.folders.is_empty() {
        return;
    }
    for folder in std::mem::take(&mut edits.folders) {
        let within = |m: &Mount| lies_in(&m.target, &folder.target);
        let own = |m: &Mount| lies_in(&m.source, &folder.source);
        let described = |m: &DescribedMount| lies_in(&m.target, &folder.target);
        let whole = edits.mounts.iter().filter(|m| within(m)).all(own)
            && !edits.described.iter().any(described);
        if whole && container.hides_nothing(&folder.target, &folder.source) {
            edits.mounts.retain(|m| !within(m));
            edits.mounts.push(folder);
        }
    }
    edits.sort();
}

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
    folders: FxHashMap<String, Folder>,
}

struct Folder {
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
        if let Some((folder, name)) = folder_and_name(path) {
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
fn folder_and_name(path: &str) -> Option<(&str, &str)> {
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

    use super::*;
    use crate::model::edits::{lies_in, Image};

    /// An image that has only these folders.
    struct Holds(&'static [&'static str]);

    impl Image for Holds {
        fn is_free(&self, folder: &str) -> bool {
            !self.0.iter().any(|path| *path != folder && lies_in(path, folder))
        }
    }

    fn mount(target: &str) -> Mount {
        Mount { source: format!("/h{target}"), target: target.to_owned() }
    }

    fn edits() -> Edits {
        Edits {
            mounts: vec![mount("/d/a"), mount("/d/b"), mount("/e/c")],
            folders: vec![mount("/d")],
            ..Edits::default()
        }
    }

    fn folded(edits: Edits, image: &'static [&str], present: &[(&str, &str)]) -> Vec<String> {
        let mounts = present.iter().map(|&(destination, source)| Mounted {
            destination: destination.into(),
            source: source.into(),
            is_new: false,
        });
        let present = Present { mounts: mounts.collect(), ..Present::default() };
        let (settled, _) = edits.settle(&present, &Holds(image));
        settled.mounts.iter().map(|m| m.target.clone()).collect()
    }

    #[test]
    fn a_folder_serves_where_it_hides_nothing() {
        let (whole, single) = (["/d", "/e/c"], ["/d/a", "/d/b", "/e/c"]);
        assert_eq!(folded(edits(), &[], &[]), whole);
        assert_eq!(folded(edits(), &["/d"], &[("/x", "/y")]), whole);
        assert_eq!(folded(edits(), &["/d/x"], &[]), single);
        assert_eq!(folded(edits(), &[], &[("/d/x", "/mine")]), single);
        let mut mixed = edits();
        mixed.mounts[1].source = "/other/b".to_owned();
        assert_eq!(folded(mixed, &[], &[]), single);
    }

    #[test]
    fn a_folder_of_an_earlier_start_is_found_again() {
        for image in [&["/d"][..], &["/d", "/d/a"]] {
            let found = folded(edits(), image, &[("/d", "/h/d"), ("/e/c", "/h/e/c")]);
            assert_eq!(found, Vec::<String>::new(), "{image:?}");
        }
    }

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
