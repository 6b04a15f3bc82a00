//! Device nodes of a container, and the rights to use them.

use std::fmt;

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
    /// Permission bits.
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
