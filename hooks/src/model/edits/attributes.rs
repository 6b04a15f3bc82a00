//! The attributes of the mounts that we make, in one place for every applier.

/// An attribute of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    ReadOnly,
    NoSuid,
    NoDevices,
    NoPrograms,
}

/// Files and folders of the host: the container can't change the driver, gain rights by it, or
/// use it as a device. Every mount is a bind mount, and private.
pub const FILE_MOUNT: &[Attribute] =
    &[Attribute::ReadOnly, Attribute::NoSuid, Attribute::NoDevices];

/// A mounted device node, for containers in which a node that we make would not work.
pub const DEVICE_MOUNT: &[Attribute] = &[Attribute::NoSuid, Attribute::NoPrograms];

impl Attribute {
    /// Its name in a spec and in a CDI document.
    pub fn option(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::NoSuid => "nosuid",
            Self::NoDevices => "nodev",
            Self::NoPrograms => "noexec",
        }
    }

    /// The mount options for these attributes, as a spec and a CDI document list them.
    pub fn options(attributes: &[Self]) -> impl Iterator<Item = &'static str> + '_ {
        let own = attributes.iter().map(|attribute| attribute.option());
        ["bind"].into_iter().chain(own).chain(["rprivate"])
    }
}
