//! Hooks of specifications that this program can do itself, without starting a process.
//!
//! Specifications that NVIDIA's tools wrote have them, under the names `nvidia-cdi-hook` and
//! `nvidia-ctk hook`. What is not known to the last word is written as it is.

use crate::apply::namespace::params::{changed, PATH as PARAMS};
use crate::apply::spec::hooks::own_hook;
use crate::discover::host::Host;
use crate::edits::paths::{clean, is_plain};
use crate::edits::{Compat, Edits, Hook, Link};
use crate::error::Result;
use crate::frontends::cdi_hook::{Call, Verb};
use crate::frontends::program::PATH;

/// A hook that has none gets this, and never a variable of the engine or of the container.
/// The stage of those hooks.
const STAGE: &str = "createContainer";

/// Adds what the hook would do, or the hook.
pub fn translate(hook: &Hook, host: &Host, edits: &mut Edits) -> Result<()> {
    if let Some(call) = known(hook) {
        if add(&call, host, edits)? {
            return Ok(());
        }
    }
    let mut hook = hook.clone();
    if hook.env.is_empty() {
        hook.env.push(format!("PATH={PATH}"));
    }
    edits.hooks.push(hook);
    Ok(())
}

/// What a hook of NVIDIA's is asked to do. `None`: it is another's, or is not understood.
fn known(hook: &Hook) -> Option<Call> {
    if hook.stage != STAGE {
        return None;
    }
    let program = hook.path.rsplit('/').next()?;
    let words = hook.args.get(1..)?;
    let words = match program {
        "nvidia-cdi-hook" => words,
        "nvidia-ctk" if words.first().is_some_and(|word| word == "hook") => &words[1..],
        _ => return None,
    };
    Call::parse(words.iter().map(Into::into).collect()).ok()
}

/// True where it is done without a process.
fn add(call: &Call, host: &Host, edits: &mut Edits) -> Result<bool> {
    match &call.verb {
        Verb::CreateSymlinks(links) => Ok(add_links(links, edits)),
        Verb::UpdateLdcache(folders) => Ok(add_folders(folders, edits)),
        Verb::EnableCudaCompat(compat) => {
            let folder = clean(&compat.folder).into_owned();
            let fit = is_plain(&folder);
            if fit {
                edits.compat.push(Compat {
                    folder,
                    ..compat.clone()
                });
            }
            Ok(fit)
        }
        Verb::DisableDeviceNodeModification => {
            edits.hooks.extend(params_edit(host)?);
            Ok(true)
        }
        // The program that the specification names may be NVIDIA's own.
        Verb::Chmod { .. } | Verb::UpdateApplicationProfile => Ok(false),
    }
}

/// False: a path has no plain form.
fn add_links(links: &[Link], edits: &mut Edits) -> bool {
    let plain = |link: &Link| Link {
        path: clean(&link.path).into_owned(),
        ..link.clone()
    };
    let links: Vec<_> = links.iter().map(plain).collect();
    let fit = links.iter().all(|link| is_plain(&link.path));
    for link in links.into_iter().filter(|_| fit) {
        edits.links.retain(|other| other.path != link.path);
        edits.links.push(link);
    }
    fit
}

/// False: a path has no plain form.
fn add_folders(folders: &[String], edits: &mut Edits) -> bool {
    let folders: Vec<String> = folders.iter().map(|f| clean(f).into_owned()).collect();
    let fit = folders.iter().all(|folder| is_plain(folder));
    if fit {
        edits.library_folders.extend(folders);
        edits.library_folders.sort();
        edits.library_folders.dedup();
    }
    fit
}

/// The hook that a container of this host needs. `None`: there is no such driver, or its
/// programs make no nodes anyway. Errors: where this program lies can't be found out.
pub fn params_edit(host: &Host) -> Result<Option<Hook>> {
    let text = host.text_of_kernel(PARAMS).unwrap_or_default();
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
