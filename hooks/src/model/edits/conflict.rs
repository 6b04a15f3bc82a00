//! The rule for conflicts with what a container already has: what the user mounted stays.
//!
//! One of our mounts or nodes is left out if the container's own configuration has something at its
//! path, in it (our mount would hide that), or around it (the mount point would be made in the
//! user's volume). The container still gets the right to use a requested device. File systems that
//! are made new for the container (a tmpfs, /proc) contain no files of the user, so our files may
//! lie there.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::Deref;

use rustc_hash::FxHashSet;

use crate::log::{Level, Note};
use crate::model::edits::paths::{clean, split, Image};
use crate::model::edits::present::{Container, Overlap, Present};
use crate::model::edits::{lies_in, sort_mounts, DescribedMount, Device, Edits, Link, Mount};

/// The path of the library cache.
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
    /// The paths of file systems that are made new for the container.
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
    /// Every device that the container may use.
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

#[cfg(test)]
mod tests {
    use super::super::paths::Image;
    use super::super::present::{Mounted, Present};
    use super::*;

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
}
