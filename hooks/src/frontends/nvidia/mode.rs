//! Chooses the way in which a container gets its devices.

use super::devices::{is_automatic, is_qualified};
use super::FrontEndKind;
use crate::config::nvidia::Mode;
use crate::host::Host;
use crate::model::request::Way;

/// The way that a mode selects for these names. A hook acts in every mode, because with
/// `docker run --gpus` no other program gives the devices.
pub fn way(mode: Mode, reader: FrontEndKind, names: &[String], is_tegra: impl Fn() -> bool) -> Way {
    let all = |is: fn(&str) -> bool| !names.is_empty() && names.iter().all(|name| is(name));
    let automatic = all(is_automatic);
    let by_name = all(is_qualified) && !automatic;
    match (mode, reader) {
        (Mode::Cdi, FrontEndKind::Runtime) if automatic => way(Mode::Auto, reader, names, is_tegra),
        (Mode::Csv, _) => Way::Csv,
        (Mode::Cdi, FrontEndKind::Runtime) => Way::Cdi,
        (Mode::Auto, FrontEndKind::Runtime) if by_name => Way::Cdi,
        (Mode::Auto, _) if is_tegra() => Way::Csv,
        _ => Way::VendorFile,
    }
}

/// True on NVIDIA's Jetson boards, whose driver is part of their system.
pub fn is_tegra(host: &Host) -> bool {
    let family = || {
        let text = host.text_of_kernel("sys/devices/soc0/family")?;
        Some(text.to_ascii_lowercase().starts_with("tegra"))
    };
    host.tree(None).is_ok_and(|tree| tree.find("/etc/nv_tegra_release").is_ok())
        || family().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
