//! What a container is to get. Plain data: every door produces and consumes this.

use rustc_hash::FxHashSet;

/// A device node, as the runtime makes it in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Path on the host.
    pub source: String,
    /// Path in the container.
    pub path: String,
    /// `c` or `b`.
    pub kind: char,
    pub major: u32,
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// A file, folder or socket of the host that is bind-mounted read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host, without symbolic links.
    pub source: String,
    /// Path in the container.
    pub target: String,
}

/// A shared library, as the loader's cache must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Path in the container.
    pub path: String,
    /// Name that the loader asks for (`DT_SONAME`; the file's name where it has none).
    pub soname: String,
    /// glibc's cache flags: architecture and libc.
    pub flags: u32,
    /// The inventory's name is a link on the host.
    pub is_link: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    pub devices: Vec<Device>,
    pub mounts: Vec<Mount>,
    /// Folders that could be mounted whole, in place of the mounts that lie in them.
    pub folders: Vec<Mount>,
    /// Folders that must exist in the container.
    pub directories: Vec<String>,
    pub libraries: Vec<Library>,
}

impl Edits {
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.mounts.is_empty() && self.directories.is_empty()
    }

    /// Adds what the other has and this has not; the first at a path stays.
    pub fn append(&mut self, other: Self) {
        merge(&mut self.devices, other.devices, |d| &d.path);
        merge(&mut self.mounts, other.mounts, |m| &m.target);
        merge(&mut self.folders, other.folders, |m| &m.target);
        merge(&mut self.directories, other.directories, |d| d);
        merge(&mut self.libraries, other.libraries, |l| &l.path);
    }

    /// Puts parents before what lies in them, so that no mount hides another.
    pub fn sort(&mut self) {
        self.mounts.sort_by(|a, b| a.target.cmp(&b.target));
        self.directories.sort();
    }

    /// Folders that no mount brings into being.
    pub fn bare_directories(&self) -> impl Iterator<Item = &str> {
        self.directories
            .iter()
            .map(String::as_str)
            .filter(|directory| !self.mounts.iter().any(|m| lies_in(&m.target, directory)))
    }
}

/// True when the path is the folder or lies in it.
pub fn lies_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn merge<T>(into: &mut Vec<T>, from: Vec<T>, key: impl Fn(&T) -> &String) {
    let mut seen: FxHashSet<&String> = into.iter().map(&key).collect();
    let new: Vec<bool> = from.iter().map(|item| seen.insert(key(item))).collect();
    let new = from.into_iter().zip(new).filter(|(_, new)| *new);
    into.extend(new.map(|(item, _)| item));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(target: &str) -> Mount {
        Mount {
            source: format!("/host{target}"),
            target: target.to_owned(),
        }
    }

    #[test]
    fn append_keeps_the_first_at_a_path() {
        let mut edits = Edits {
            mounts: vec![mount("/a")],
            ..Edits::default()
        };
        let mut other = mount("/a");
        other.source = "/elsewhere".to_owned();
        edits.append(Edits {
            mounts: vec![other, mount("/b"), mount("/b")],
            ..Edits::default()
        });
        assert_eq!(edits.mounts, [mount("/a"), mount("/b")]);
    }

    #[test]
    fn a_folder_with_a_mount_in_it_is_not_bare() {
        let edits = Edits {
            mounts: vec![mount("/usr/lib64/nvidia/libcuda.so")],
            directories: vec!["/usr/lib64/nvidia".into(), "/usr/lib64/nv".into()],
            ..Edits::default()
        };
        assert_eq!(
            edits.bare_directories().collect::<Vec<_>>(),
            ["/usr/lib64/nv"]
        );
    }
}
