//! `/proc/driver/nvidia/params` in a container: with `ModifyDeviceFiles: 0`, so that the
//! driver's own programs make no device nodes there.
//!
//! A spec can't say it: runc refuses a mount below /proc. So a hook of ours puts the file there
//! when /proc is mounted. It costs a process at each start, and therefore a spec has it only
//! where the host's driver would let its programs make nodes. A hook does it itself.

use crate::apply::namespace::params::{changed, PATH};
use crate::apply::spec::hooks::own_hook;
use crate::discover::host::Host;
use crate::edits::Hook;
use crate::error::Result;

/// The hook that a container of this host needs. `None`: there is no such driver, or its
/// programs make no nodes anyway. Errors: where this program lies can't be found out.
pub fn params_edit(host: &Host) -> Result<Option<Hook>> {
    let text = host.text_of_kernel(PATH).unwrap_or_default();
    if changed(&String::from_utf8_lossy(&text)).is_none() {
        return Ok(None);
    }
    let words = ["nvidia-cdi-hook", "disable-device-node-modification"];
    let words = words.iter().map(|&word| word.to_owned()).collect();
    own_hook("createContainer", words).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_driver_needs_nothing() {
        let tree = tempfile::tempdir().unwrap();
        let host = Host::open(tree.path()).unwrap();
        assert_eq!(params_edit(&host), Ok(None));
        let folder = tree.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("params"), "ModifyDeviceFiles: 1\n").unwrap();
        let hook = params_edit(&host).unwrap().unwrap();
        // Nothing writes into it: to read from it would never end.
        let fifo = folder.join("params");
        std::fs::remove_file(&fifo).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        assert_eq!(params_edit(&host), Ok(None));
        assert_eq!(hook.stage, "createContainer");
        assert_eq!(hook.args[1], "disable-device-node-modification");
        assert!(!hook.env.is_empty());
    }
}
