//! What mounts and nodes of ours are like. Written here once, for every applier.

/// A property of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    ReadOnly,
    NoSuid,
    NoDevices,
    NoPrograms,
}

/// Files and folders of the host: nothing of the driver can be changed, raise rights, or
/// serve as a device. Every mount is a bind mount, and private.
pub const FILE_MOUNT: &[Attribute] =
    &[Attribute::ReadOnly, Attribute::NoSuid, Attribute::NoDevices];

/// A device node that is mounted, where one that we made would open nothing.
pub const DEVICE_MOUNT: &[Attribute] = &[Attribute::NoSuid, Attribute::NoPrograms];

impl Attribute {
    /// As a spec and a CDI document call it.
    pub fn option(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::NoSuid => "nosuid",
            Self::NoDevices => "nodev",
            Self::NoPrograms => "noexec",
        }
    }

    /// The attribute that an option of a mount stands for. `None`: another kind of option.
    pub fn of_option(option: &str) -> Option<Self> {
        [
            Self::ReadOnly,
            Self::NoSuid,
            Self::NoDevices,
            Self::NoPrograms,
        ]
        .into_iter()
        .find(|attribute| attribute.option() == option)
    }

    /// The options of a mount with these attributes, as a spec and a CDI document list them.
    pub fn options(attributes: &[Self]) -> impl Iterator<Item = &'static str> + '_ {
        let own = attributes.iter().map(|attribute| attribute.option());
        ["bind"].into_iter().chain(own).chain(["rprivate"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_file() {
        let options: Vec<_> = Attribute::options(FILE_MOUNT).collect();
        assert_eq!(options, ["bind", "ro", "nosuid", "nodev", "rprivate"]);
    }

    #[test]
    fn an_option_stands_for_its_attribute() {
        for (option, attribute) in [
            ("ro", Some(Attribute::ReadOnly)),
            ("nosuid", Some(Attribute::NoSuid)),
            ("nodev", Some(Attribute::NoDevices)),
            ("noexec", Some(Attribute::NoPrograms)),
            ("rw", None),
            ("bind", None),
            ("", None),
        ] {
            assert_eq!(Attribute::of_option(option), attribute, "{option}");
        }
    }
}
