//! Hooks of specifications that this program can do itself, without starting a process.
//!
//! Specifications that NVIDIA's tools wrote have them, under the names `nvidia-cdi-hook` and
//! `nvidia-ctk hook`. What is not known to the last word is written as it is.

use super::params::params_edit;
use crate::discover::host::Host;
use crate::edits::paths::{clean, is_plain};
use crate::edits::{Compat, Edits, Hook};
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
        Verb::CreateSymlinks(links) => {
            let links = links.iter().map(|link| {
                let mut link = link.clone();
                link.path = clean(&link.path).into_owned();
                link
            });
            let links: Vec<_> = links.collect();
            let fit = links.iter().all(|link| is_plain(&link.path));
            if fit {
                for link in links {
                    edits.links.retain(|other| other.path != link.path);
                    edits.links.push(link);
                }
            }
            Ok(fit)
        }
        Verb::UpdateLdcache(folders) => {
            let folders: Vec<String> = folders.iter().map(|f| clean(f).into_owned()).collect();
            let fit = folders.iter().all(|folder| is_plain(folder));
            if fit {
                edits.library_folders.extend(folders);
                edits.library_folders.sort();
                edits.library_folders.dedup();
            }
            Ok(fit)
        }
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
