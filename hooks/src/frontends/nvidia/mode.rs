//! Chooses the way in which a container gets its devices.

use super::devices::{is_automatic, is_qualified};
use super::Reader;
use crate::config::nvidia::Mode;
use crate::host::Host;
use crate::model::request::Way;

/// The way that a mode selects for these names. A hook acts in every mode, because with
/// `docker run --gpus` no other program gives the devices.
pub fn way(mode: Mode, reader: Reader, names: &[String], is_tegra: impl Fn() -> bool) -> Way {
    let all = |is: fn(&str) -> bool| !names.is_empty() && names.iter().all(|name| is(name));
    let automatic = all(is_automatic);
    let by_name = all(is_qualified) && !automatic;
    match (mode, reader) {
        (Mode::Cdi, Reader::Runtime) if automatic => way(Mode::Auto, reader, names, is_tegra),
        (Mode::Csv, _) => Way::Csv,
        (Mode::Legacy, Reader::Runtime) => Way::Hook,
        (Mode::Cdi, Reader::Runtime) => Way::Cdi,
        (Mode::Auto, Reader::Runtime) if by_name => Way::Cdi,
        (Mode::Auto, _) if is_tegra() => Way::Csv,
        _ => Way::VendorFile,
    }
}

/// True on NVIDIA's Jetson boards, whose driver is part of their system.
pub fn is_tegra(host: &Host) -> bool {
    let family = || {
        let text = host.text_of_kernel("sys/devices/soc0/family")?;
        Some(text.to_ascii_lowercase().starts_with(b"tegra"))
    };
    host.tree(None)
        .is_ok_and(|tree| tree.find("/etc/nv_tegra_release").is_ok())
        || family().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways() {
        let (bare, cdi, mixed) = (&["0"][..], &["a/b=c", "a/b=d"][..], &["0", "a/b=c"][..]);
        let own = &["runtime.nvidia.com/gpu=0", "runtime.nvidia.com/gpu=all"][..];
        let both = &["runtime.nvidia.com/gpu=0", "a/b=c"][..];
        for (mode, reader, names, tegra, expected) in [
            (Mode::Auto, Reader::Runtime, bare, false, Way::VendorFile),
            (Mode::Auto, Reader::Runtime, &[], false, Way::VendorFile),
            (Mode::Auto, Reader::Runtime, cdi, true, Way::Cdi),
            (Mode::Auto, Reader::Runtime, mixed, false, Way::VendorFile),
            (Mode::Auto, Reader::Runtime, bare, true, Way::Csv),
            (Mode::Auto, Reader::Hook, bare, true, Way::Csv),
            (Mode::Auto, Reader::Hook, cdi, false, Way::VendorFile),
            (Mode::Auto, Reader::Runtime, own, false, Way::VendorFile),
            (Mode::Auto, Reader::Runtime, own, true, Way::Csv),
            (Mode::Auto, Reader::Runtime, both, false, Way::Cdi),
            (Mode::Cdi, Reader::Runtime, own, false, Way::VendorFile),
            (Mode::Cdi, Reader::Runtime, both, false, Way::Cdi),
            (Mode::JitCdi, Reader::Runtime, own, true, Way::VendorFile),
            (Mode::Legacy, Reader::Runtime, cdi, true, Way::Hook),
            (Mode::Legacy, Reader::Hook, bare, false, Way::VendorFile),
            (Mode::Csv, Reader::Runtime, cdi, false, Way::Csv),
            (Mode::Csv, Reader::Hook, bare, false, Way::Csv),
            (Mode::Cdi, Reader::Runtime, bare, true, Way::Cdi),
            (Mode::Cdi, Reader::Hook, bare, false, Way::VendorFile),
            (Mode::JitCdi, Reader::Runtime, cdi, true, Way::VendorFile),
            (Mode::JitCdi, Reader::Hook, bare, true, Way::VendorFile),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let found = way(mode, reader, &names, || tegra);
            assert_eq!(found, expected, "{mode:?} {reader:?} {names:?} {tegra}");
        }
    }

    #[test]
    fn boards_are_known_by_two_files() {
        for (path, text, expected) in [
            ("etc/nv_tegra_release", "# R35", true),
            ("sys/devices/soc0/family", "Tegra\n", true),
            ("sys/devices/soc0/family", "i.MX\n", false),
            ("etc/os-release", "", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
            let host = Host::open(dir.path()).unwrap();
            assert_eq!(is_tegra(&host), expected, "{path} {text}");
        }
    }
}
