//! The mounts of a container as a tree of names. Looking a path up takes as many steps as the path
//! has parts, however many mounts the container's author added.

use std::collections::BTreeMap;

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

/// The numbers of mounts, by their clean paths.
#[derive(Debug)]
pub(super) struct MountTree {
    /// The first node is `/`.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Ordered and not hashed, because a container's author could choose names that collide.
    children: BTreeMap<Box<str>, usize>,
    at: Option<usize>,
    within: Option<usize>,
}

impl MountTree {
    pub fn new() -> Self {
        let nodes = vec![Node::default()];
        Self { nodes }
    }

    /// Adds a mount at a path. Numbers rise from call to call.
    pub fn add(&mut self, path: &str, number: usize) {
        let mut here = 0;
        for name in names(path) {
            self.nodes[here].within = Some(number);
            here = match self.nodes[here].children.get(name) {
                Some(next) => *next,
                None => self.grow(here, name),
            };
        }
        self.nodes[here].at = Some(number);
    }

    fn grow(&mut self, parent: usize, name: &str) -> usize {
        let next = self.nodes.len();
        self.nodes.push(Node::default());
        self.nodes[parent].children.insert(name.into(), next);
        next
    }

    /// The mounts near a clean path.
    pub fn near(&self, path: &str) -> NearbyMounts {
        let mut near = NearbyMounts::default();
        let mut here = &self.nodes[0];
        for name in names(path) {
            near.around = near.around.max(here.at);
            match here.children.get(name) {
                Some(next) => here = &self.nodes[*next],
                None => return near,
            }
        }
        near.at = here.at;
        near.within = here.within;
        near
    }
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::lies_in;
    use super::*;
    use proptest::prelude::*;

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
        fn the_tree_finds_what_examining_each_mount_finds(
            paths in prop::collection::vec("/|(/[ab]{1,2}){1,4}", 0..12),
            path in "/|(/[ab]{1,2}){1,4}",
        ) {
            let mut tree = MountTree::new();
            for (number, place) in paths.iter().enumerate() {
                tree.add(place, number);
            }
            prop_assert_eq!(tree.near(&path), slowly(&paths, &path));
        }
    }
}
