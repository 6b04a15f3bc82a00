//! The mode `legacy`, in which a hook gives the devices: the hook that is added to the spec.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Nvidia, HOOKS};
use crate::config::settings;
use crate::error::{Error, Result};
use crate::frontends::find_program::{candidates, is_executable, PATH};
use crate::model::edits::Hook;

const STAGE: &str = "prestart";
/// The option with which our own hook gets our settings.
pub const SETTINGS_OPTION: &str = "oci-decorator-config";

/// The hook to add. `None`: the spec has one already, for example with `docker run --gpus`. `get`
/// reads the runtime's own environment. Errors: the hook's program does not exist.
pub fn hook(
    nvidia: &Nvidia,
    present: &[String],
    get: impl Fn(&str) -> Option<String>,
) -> Result<Option<Hook>> {
    let config = nvidia.config;
    let base =
        |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    let own = base(&config.hook).unwrap_or_default();
    let is_known = |name: &String| *name == own || HOOKS.contains(&name.as_str());
    if present.iter().filter_map(|path| base(path)).any(|name| is_known(&name)) {
        return Ok(None);
    }
    let search = get("PATH").unwrap_or_default();
    let path = find(&config.hook, &search).ok_or_else(|| {
        Error::not_found(format!("the mode \"legacy\" needs the hook {}, which is not there", config.hook))
            .resolve("`oci-decorator install-links /usr/bin` makes it; or set another `mode` in NVIDIA's config.toml")
    })?;
    Ok(Some(Hook {
        stage: STAGE.to_owned(),
        args: args(nvidia, own, &path, get)?,
        path,
        env: vec![format!("PATH={PATH}")],
        timeout: None,
    }))
}

/// The command line of the hook, whose program is called by this name.
fn args(
    nvidia: &Nvidia,
    name: String,
    path: &str,
    get: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>> {
    let mut args = vec![name, STAGE.to_owned()];
    // A hook trusts no variable to name its configuration.
    if let Some(file) = nvidia.file {
        args.insert(1, format!("-config={}", file.display()));
    }
    // The same is true of our settings, which have the policy. NVIDIA's own hook does not know this
    // option.
    let named = get(settings::VARIABLE).filter(|file| !file.is_empty());
    if let Some(file) = named.filter(|_| is_ours(path)) {
        let file = std::path::absolute(&file).map_err(|error| {
            Error::failed(format!("can't find the path of the settings {file}: {error}"))
        })?;
        args.insert(1, format!("-{SETTINGS_OPTION}={}", file.display()));
    }
    Ok(args)
}

/// True for this program, or a link to it.
fn is_ours(path: &str) -> bool {
    let identity = |path: &str| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let own = identity("/proc/self/exe");
    own.is_some() && identity(path) == own
}

fn find(hook: &str, search: &str) -> Option<String> {
    // A relative path would depend on the working folder.
    if hook.contains('/') && !hook.starts_with('/') {
        return None;
    }
    let search = format!("{search}:{PATH}");
    let mut found = candidates(hook, OsStr::new(&search)).into_iter();
    let found = found.find(|path| is_executable(path))?;
    found.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::nvidia::Config;
    use crate::frontends::FrontEndKind;
    use std::os::unix::fs::PermissionsExt;

    fn program(path: &Path) -> String {
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    #[test]
    fn our_own_hook_gets_our_settings_and_another_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("ours");
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &ours).unwrap();
        let theirs = program(&dir.path().join("theirs"));
        let args = |path: &str, file: &'static str| {
            let config = Config { hook: path.to_owned(), ..Config::default() };
            let nvidia = Nvidia {
                config: &config,
                problem: None,
                warnings: &[],
                kind: FrontEndKind::Runtime,
                reads_annotations: true,
                file: None,
            };
            let get = |name: &str| (name == "OCI_DECORATOR_CONFIG").then(|| file.to_owned());
            hook(&nvidia, &[], get).unwrap().unwrap().args
        };
        let ours = ours.to_str().unwrap();
        let own = ["ours", "-oci-decorator-config=/s.toml", "prestart"];
        assert_eq!(args(ours, "/s.toml"), own);
        assert!(args(ours, "s.toml")[1].starts_with("-oci-decorator-config=/"));
        assert_eq!(args(ours, ""), ["ours", "prestart"]);
        assert_eq!(args(&theirs, "/s.toml"), ["theirs", "prestart"]);
    }
}
