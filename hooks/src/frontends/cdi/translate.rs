//! Turns hooks of specifications into edits, so that no process is started for them.
//!
//! Specifications that NVIDIA's tools write have such hooks, under the names `nvidia-cdi-hook` and
//! `nvidia-ctk hook`. A hook that is not fully understood stays as it is.
//!
//! One of them sets `ModifyDeviceFiles: 0` in `/proc/driver/nvidia/params`, so that the driver's
//! own programs make no device nodes in a container. A spec can't have that: runc refuses a mount
//! below /proc. Our own hook puts the file there when /proc is mounted. It costs a process at each
//! start, so a spec gets it only if the host's driver would let its programs make nodes. The front
//! end `hook` does it itself.

use crate::apply::namespace::params::{changed, PATH as PARAMS};
use crate::apply::spec::hooks::own_hook;
use crate::error::Result;
use crate::frontends::cdi_hook::{parse, Verb};
use crate::host::files::PATH;
use crate::host::Host;
use crate::model::edits::paths::{clean, is_plain};
use crate::model::edits::{Compat, Edits, Hook, Link};

/// The stage of these hooks.
const STAGE: &str = "createContainer";

/// Adds what the hook would do, or else the hook.
pub fn translate(hook: &Hook, host: &Host, edits: &mut Edits) -> Result<()> {
    if let Some(verb) = known(hook) {
        if add(&verb, host, edits)? {
            return Ok(());
        }
    }
    let mut hook = hook.clone();
    if hook.env.is_empty() {
        // Otherwise a runtime may pass the engine's or the container's environment on.
        hook.env.push(format!("PATH={PATH}"));
    }
    edits.hooks.push(hook);
    Ok(())
}

/// The command of a hook of NVIDIA's. `None`: it is another program's, or is not understood.
fn known(hook: &Hook) -> Option<Verb> {
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
    let words: Vec<_> = words.iter().map(Into::into).collect();
    parse(&words).ok().map(|(verb, _)| verb)
}

/// Adds the edits of a command. False: the hook has to stay.
fn add(verb: &Verb, host: &Host, edits: &mut Edits) -> Result<bool> {
    match verb {
        Verb::CreateSymlinks(links) => Ok(add_links(links, edits)),
        Verb::UpdateLdcache(folders) => Ok(add_folders(folders, edits)),
        Verb::EnableCudaCompat(compat) => {
            let folder = clean(&compat.folder).into_owned();
            let fit = is_plain(&folder);
            if fit {
                edits.compat.push(Compat { folder, ..compat.clone() });
            }
            Ok(fit)
        }
        Verb::DisableDeviceNodeModification => {
            edits.hooks.extend(params_edit(host)?);
            Ok(true)
        }
        // The specification may name NVIDIA's own program, which does more.
        Verb::CreateDirectories(_)
        | Verb::Chmod { .. }
        | Verb::UpdateApplicationProfile
        | Verb::Unsupported(_) => Ok(false),
    }
}

/// False: a path has no plain form.
fn add_links(links: &[Link], edits: &mut Edits) -> bool {
    let plain = |link: &Link| Link { path: clean(&link.path).into_owned(), ..link.clone() };
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

/// The hook for the driver's settings, if a container of this host needs it. `None`: there is no
/// such driver, or its programs make no nodes anyway. Errors: the path of this program can't be
/// found.
pub fn params_edit(host: &Host) -> Result<Option<Hook>> {
    let text = host.text_of_kernel(PARAMS).unwrap_or_default();
    if changed(&text).is_none() {
        return Ok(None);
    }
    let words = ["nvidia-cdi-hook", "disable-device-node-modification"];
    let words = words.iter().map(|&word| word.to_owned()).collect();
    own_hook("createContainer", words).map(Some)
}
