//! The names of the keys of NVIDIA's `config.toml`.

/// The type of a key that changes nothing here.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Flag,
    Text,
    Texts,
}

/// Keys that are accepted and change nothing, with the reason. Source: NVIDIA's container toolkit,
/// `api/config/v1/config.go`.
pub(super) const WITHOUT_MEANING: [(&str, Kind, &str); 21] = [
    (
        "nvidia-container-cli.root",
        Kind::Text,
        "the settings of oci-decorator name the driver's folder (`root`)",
    ),
    (
        "nvidia-container-cli.path",
        Kind::Text,
        "nvidia-container-cli is not started",
    ),
    (
        "nvidia-container-cli.environment",
        Kind::Texts,
        "nvidia-container-cli is not started",
    ),
    (
        "nvidia-container-cli.debug",
        Kind::Text,
        "nvidia-container-cli is not started",
    ),
    (
        "nvidia-container-cli.ldcache",
        Kind::Text,
        "libraries are found by the vendor file",
    ),
    (
        "nvidia-container-cli.load-kmods",
        Kind::Flag,
        "provision loads the modules before an engine starts",
    ),
    (
        "nvidia-container-cli.no-pivot",
        Kind::Flag,
        "no program is started in the container's root",
    ),
    (
        "nvidia-container-cli.user",
        Kind::Text,
        "no program is started as another user",
    ),
    (
        "nvidia-container-cli.ldconfig",
        Kind::Text,
        "the library cache is written without ldconfig",
    ),
    (
        "nvidia-container-runtime.modes.csv.compat-container-root",
        Kind::Text,
        "compatibility libraries come into the library cache, not by a mount",
    ),
    (
        "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags",
        Kind::Texts,
        "devices are described by the vendor file",
    ),
    (
        "nvidia-container-runtime.modes.jit-cdi.load-kernel-modules",
        Kind::Texts,
        "provision loads the modules before an engine starts",
    ),
    (
        "nvidia-ctk.path",
        Kind::Text,
        "hooks name this program by its own path",
    ),
    (
        "features.allow-cuda-compat-libs-from-container",
        Kind::Flag,
        "an image's libraries are never mounted",
    ),
    (
        "features.allow-ldconfig-from-container",
        Kind::Flag,
        "no ldconfig is started, an image's least of all",
    ),
    (
        "features.allow-unknown-oci-spec-fields",
        Kind::Flag,
        "unknown fields are always kept",
    ),
    (
        "features.disable-imex-channel-creation",
        Kind::Flag,
        "channels are never made, only passed on",
    ),
    (
        "features.gds",
        Kind::Flag,
        "a container asks for these nodes: NVIDIA_GDS=enabled",
    ),
    (
        "features.mofed",
        Kind::Flag,
        "a container asks for these nodes: NVIDIA_MOFED=enabled",
    ),
    (
        "features.nvswitch",
        Kind::Flag,
        "a container asks for these nodes: NVIDIA_NVSWITCH=enabled",
    ),
    (
        "features.gdrcopy",
        Kind::Flag,
        "a container asks for these nodes: NVIDIA_GDRCOPY=enabled",
    ),
];

/// Keys that [`set`] takes.
pub(super) const WITH_MEANING: [&str; 23] = [
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks",
    "disable-require",
    "swarm-resource",
    "accept-nvidia-visible-devices-envvar-when-unprivileged",
    "accept-nvidia-visible-devices-as-volume-mounts",
    "supported-driver-capabilities",
    "nvidia-container-cli.no-cgroups",
    "nvidia-container-runtime.debug",
    "nvidia-container-runtime.log-level",
    "nvidia-container-runtime.runtimes",
    "nvidia-container-runtime.mode",
    "nvidia-container-runtime.experimental",
    "nvidia-container-runtime.discover-mode",
    "nvidia-container-runtime.modes.csv.mount-spec-path",
    "nvidia-container-runtime.modes.cdi.default-kind",
    "nvidia-container-runtime.modes.cdi.annotation-prefixes",
    "nvidia-container-runtime.modes.cdi.spec-dirs",
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode",
    "nvidia-container-runtime-hook.path",
    "nvidia-container-runtime-hook.skip-mode-detection",
    "features.disable-cuda-compat-lib-hook",
    "features.ignore-imex-channel-requests",
    "features.no-additional-gids-for-device-nodes",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    const PAGE: &str = "../docs/reference/nvidia.md";

    /// The rows of the page's table of keys: the keys of each, and whether they have a meaning.
    fn rows(page: &str) -> Vec<(Vec<&str>, bool)> {
        let (_, rest) = page.split_once("config.toml`\n").unwrap();
        let (table, _) = rest.split_once("\n## ").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            let keys = cells[0].split('`').skip(1).step_by(2);
            (keys.collect(), cells[1] != "not done")
        })
        .collect()
    }

    /// The page lists every key, and no other.
    #[test]
    fn the_reference_has_every_key() {
        let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
        let rows = rows(&page);
        let said: Vec<&str> = rows.iter().flat_map(|(keys, _)| keys.clone()).collect();
        let idle = WITHOUT_MEANING.iter().map(|(key, ..)| *key);
        let mut known: Vec<&str> = WITH_MEANING.into_iter().chain(idle).collect();
        let mut sorted = said.clone();
        sorted.sort_unstable();
        known.sort_unstable();
        assert_eq!(sorted, known);
        // These two are always on, so they have no switch.
        let always = [
            "allow-unknown-oci-spec-fields",
            "disable-imex-channel-creation",
        ];
        for (keys, has_meaning) in rows {
            for key in keys {
                let by_nature = always.iter().any(|name| key.ends_with(name));
                let expected = WITH_MEANING.contains(&key) || by_nature;
                assert_eq!(has_meaning, expected, "{key}");
            }
        }
    }
}
