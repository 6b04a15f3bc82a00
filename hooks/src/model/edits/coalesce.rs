//! Mounts a folder once instead of each of its files.
//!
//! A runtime needs a tenth of a millisecond for a mount. If a folder of the driver has only files
//! of the inventory, and the image has nothing at its path, the container sees the same either way.

use super::present::Container;
use super::{lies_in, DescribedMount, Edits, Mount};

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
