//! What a container has before our edits, and how a path of ours stands to it.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::mount_tree::{MountTree, Near};
use super::paths::{clean, follow, is_plain, At, Image};
use super::DescribedMount;

/// A mount that the container's own configuration has.
#[derive(Debug, Clone, Default)]
pub struct Mounted<'a> {
    /// As it is written there: links, `..` and slashes at its end are possible.
    pub destination: Cow<'a, str>,
    pub source: Cow<'a, str>,
    /// A file system that is made new for the container: nothing of the user's is in it.
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
    /// Adds where runc mounts what has a destination that begins with the path of the
    /// container's root on the host: it takes such a one to lie below the root as it is.
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

/// How a path of ours stands to what is mounted already; with the place of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Free,
    /// What we would put there is there already.
    Ours,
    At(usize),
    Within(usize),
    Around(usize),
}

/// What is mounted in the container already, by where that really is.
pub(super) struct Container<'a> {
    places: Vec<Place<'a>>,
    by_path: MountTree,
    image: &'a dyn Image,
    /// Folders of our paths.
    folders: FxHashMap<String, Folder>,
}

struct Folder {
    /// Where it really is.
    place: String,
    at: At,
    /// Nothing is mounted at it, in it or around it.
    is_remote: bool,
}

struct Place<'a> {
    path: String,
    mounted: &'a Mounted<'a>,
}

impl<'a> Container<'a> {
    pub(super) fn new(present: &'a Present, image: &'a dyn Image) -> Self {
        let mut container = Self {
            places: Vec::with_capacity(present.mounts.len()),
            by_path: MountTree::new(),
            image,
            folders: FxHashMap::default(),
        };
        for mounted in &present.mounts {
            // Each is mounted where those before it have left the path. A `..` behind a link
            // is crun's to follow as the kernel does, and runc's to take out as text before.
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
        self.places.push(Place { path, mounted });
    }

    /// Where the mount that stands at a place is.
    pub(super) fn path(&self, place: usize) -> &str {
        &self.places[place].path
    }

    fn look_up(&self, path: &str) -> (String, At) {
        // In what is mounted there, the image has no links.
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

    /// A file system that is made new for the container and has this place in it, where no
    /// later mount covers that.
    pub(super) fn new_around(&self, place: &str) -> Option<&str> {
        let over = &self.places[self.by_path.near(place).over()?];
        over.mounted.is_new.then_some(over.path.as_str())
    }

    /// Where a path of ours really is, links of the image followed (`None`: as it says), and
    /// how that stands to what is mounted already.
    pub(super) fn stand(&mut self, path: &str, source: &str) -> (Option<String>, Standing) {
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
                return (moved, Standing::Free);
            }
            at = found.at;
        }
        if at != At::Nothing {
            moved = Some(self.look_up(moved.as_deref().unwrap_or(path)).0);
        }
        let standing = self.standing(moved.as_deref().unwrap_or(path), source);
        (moved, standing)
    }

    /// The same for a folder that is to be mounted whole, and whether it would hide nothing.
    pub(super) fn hides_nothing(&mut self, path: &str, source: &str) -> bool {
        let found = self.folder(path);
        let standing = self.standing(&found.place, source);
        let free = found.at == At::Nothing || self.image.is_free(&found.place);
        self.folders.insert(path.to_owned(), found);
        free && matches!(standing, Standing::Free | Standing::Ours)
    }

    /// Where a path of ours is.
    pub(super) fn resolve(&mut self, path: &str) -> String {
        let path = clean(path);
        let (moved, _) = self.stand(&path, "");
        moved.unwrap_or_else(|| path.into_owned())
    }

    fn folder(&self, path: &str) -> Folder {
        let (place, at) = self.look_up(path);
        Folder {
            is_remote: !self.by_path.near(&place).is_any(),
            place,
            at,
        }
    }

    pub(super) fn standing(&self, path: &str, source: &str) -> Standing {
        // A later mount around covers all that lies in it, deeper mounts too.
        let Near { at, within, around } = self.by_path.near(path);
        match (at, within, around) {
            (Some(place), ..) if self.shows(place, path, source) => Standing::Ours,
            (Some(place), ..) => Standing::At(place),
            (_, Some(place), _) => Standing::Within(place),
            (_, _, Some(place)) if self.places[place].mounted.is_new => Standing::Free,
            (_, _, Some(place)) if self.shows(place, path, source) => Standing::Ours,
            (_, _, Some(place)) => Standing::Around(place),
            _ => Standing::Free,
        }
    }

    /// True where an earlier pass described this very mount, of a file system that is made
    /// new for the container.
    pub(super) fn is_made_as(&self, place: usize, mount: &DescribedMount) -> bool {
        let mounted = self.places[place].mounted;
        mounted.is_new && mounted.source == mount.source
    }

    /// True where the container finds the source at the path, by a mount of it or of a
    /// folder that it lies in.
    fn shows(&self, place: usize, path: &str, source: &str) -> bool {
        let Place {
            path: over,
            mounted,
        } = &self.places[place];
        let below = path.strip_prefix(over.as_str());
        !mounted.is_new && below.is_some() && below == source.strip_prefix(&*mounted.source)
    }
}

/// The folder and the name of a clean path. `None`: it lies in `/`.
fn split(path: &str) -> Option<(&str, &str)> {
    path.rsplit_once('/')
        .filter(|(folder, _)| !folder.is_empty())
}
