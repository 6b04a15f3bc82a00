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
        self.unset_variables(other.unset);
        self.set_variables(other.environment);
        self.keeps_nodes |= other.keeps_nodes;
        if other.intel_rdt.is_some() {
            self.intel_rdt = other.intel_rdt;
        }
    }

    fn unset_variables(&mut self, names: Vec<String>) {
        for name in names {
            self.environment.retain(|entry| variable_name(entry) != name);
            if !self.unset.contains(&name) {
                self.unset.push(name);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::edits::{Hook, Mount};

    fn mount(target: &str) -> Mount {
        Mount { source: format!("/host{target}"), target: target.to_owned() }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn append_keeps_the_first_at_a_path() {
        let mut edits = Edits { mounts: vec![mount("/a")], ..Edits::default() };
        let mut other = mount("/a");
        other.source = "/elsewhere".to_owned();
        edits.append(Edits { mounts: vec![other, mount("/b"), mount("/b")], ..Edits::default() });
        assert_eq!(edits.mounts, [mount("/a"), mount("/b")]);
    }

    #[test]
    fn the_later_value_of_a_variable_counts() {
        let mut edits = Edits {
            environment: texts(&["A=1", "B=1", "C=1"]),
            unset: texts(&["D", "E"]),
            ..Edits::default()
        };
        edits.append(Edits {
            environment: texts(&["B=2", "D=2", "F=2", "F=3"]),
            unset: texts(&["C", "E"]),
            ..Edits::default()
        });
        assert_eq!(edits.environment, ["A=1", "B=2", "D=2", "F=3"]);
        assert_eq!(edits.unset, ["E", "C"]);
    }

    #[test]
    fn groups_and_hooks_are_there_once() {
        let hook = |path: &str| Hook {
            stage: "prestart".to_owned(),
            path: path.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            timeout: None,
        };
        let one = |groups: &[u32], hooks: &[&str]| Edits {
            groups: groups.to_vec(),
            hooks: hooks.iter().map(|path| hook(path)).collect(),
            ..Edits::default()
        };
        let mut edits = one(&[44], &["/a"]);
        edits.append(one(&[44, 105, 105], &["/b", "/a"]));
        assert_eq!(edits, one(&[44, 105], &["/a", "/b"]));
    }
}
