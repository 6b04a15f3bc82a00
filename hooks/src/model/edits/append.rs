//! Merges the edits of several sources.

use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{variable_name, Edits};

impl Edits {
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
