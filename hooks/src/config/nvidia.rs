//! NVIDIA's `config.toml`, which NVIDIA's runtime, hook and `nvidia-ctk` share.

mod keys;
mod reader;

use std::path::PathBuf;

pub use keys::{is_known, without_meaning};
pub use reader::{load, mistakes, place, Loaded, Place, DEFAULT_PATH, VARIABLE, XDG_VARIABLE};

/// The keys of the file that have a meaning here. The other keys are accepted.
// Each is a key of the file.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `disable-require`
    pub disable_require: bool,
    /// `swarm-resource`: names of variables, first to last.
    pub swarm_resources: Vec<String>,
    /// `accept-nvidia-visible-devices-envvar-when-unprivileged`
    pub environment_when_unprivileged: bool,
    /// `accept-nvidia-visible-devices-as-volume-mounts`
    pub volume_mounts: bool,
    /// `supported-driver-capabilities`, with `all` resolved.
    pub capabilities: Vec<String>,
    /// `nvidia-container-cli.no-cgroups`
    pub no_cgroups: bool,
    /// `nvidia-container-runtime.debug`
    pub log_file: Option<PathBuf>,
    /// `nvidia-container-runtime.log-level`. `None`: ours counts.
    pub log_level: Option<crate::log::level::Level>,
    /// `nvidia-container-runtime.runtimes`. `None`: ours count.
    pub runtimes: Option<Vec<String>>,
    /// `nvidia-container-runtime.mode`
    pub mode: Mode,
    /// `….modes.csv.mount-spec-path`
    pub csv_folder: PathBuf,
    /// `….modes.cdi.default-kind`
    pub cdi_kind: String,
    /// `….modes.cdi.annotation-prefixes`
    pub cdi_prefixes: Vec<String>,
    /// `….modes.cdi.spec-dirs`
    pub cdi_folders: Vec<PathBuf>,
    /// `….modes.jit-cdi.nvcdi-disable-hooks`: names, or `all`.
    pub disabled_hooks: Vec<String>,
    /// `….modes.legacy.cuda-compat-mode`
    pub compat: Compat,
    /// `nvidia-container-runtime-hook.path`
    pub hook: String,
    /// `nvidia-container-runtime-hook.skip-mode-detection`
    pub hook_acts_always: bool,
    /// `features.ignore-imex-channel-requests`
    pub ignore_imex: bool,
    /// `features.no-additional-gids-for-device-nodes`
    pub no_groups: bool,
}

/// How a container gets what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// `cdi` if every device is requested by its CDI name, `csv` on Tegra, else `jit-cdi`.
    #[default]
    Auto,
    /// By a hook that is added to the spec.
    Legacy,
    /// By the files of `csv_folder`.
    Csv,
    /// By existing CDI specifications.
    Cdi,
    /// By the vendor file, as edits of the spec.
    JitCdi,
}

/// How CUDA's forward compatibility libraries of an image come before the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Through the library cache, if the image's libraries are newer than the driver.
    #[default]
    LibraryCache,
    Disabled,
}

impl Default for Config {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self {
            disable_require: false,
            swarm_resources: Vec::new(),
            environment_when_unprivileged: true,
            volume_mounts: false,
            capabilities: words(&CAPABILITIES),
            no_cgroups: false,
            log_file: None,
            log_level: None,
            runtimes: None,
            mode: Mode::default(),
            csv_folder: "/etc/nvidia-container-runtime/host-files-for-container.d".into(),
            cdi_kind: "nvidia.com/gpu".to_owned(),
            cdi_prefixes: words(&["cdi.k8s.io/"]),
            cdi_folders: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            disabled_hooks: Vec::new(),
            compat: Compat::default(),
            hook: "nvidia-container-runtime-hook".to_owned(),
            hook_acts_always: false,
            ignore_imex: false,
            no_groups: false,
        }
    }
}

/// Every driver capability.
pub const CAPABILITIES: [&str; 7] =
    ["compat32", "compute", "display", "graphics", "ngx", "utility", "video"];
