//! Gives the cgroup of an existing container the right to use devices.
//!
//! Version 1 of cgroups has a file for this. Version 2 has BPF programs, see `device_filter`, of the
//! process's cgroup or of one above. At a `daemon-reload`, systemd reverts what a hook changes
//! there. The front ends that edit the spec are not affected (`docs/reference/oci-decorator.md`).

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::apply::namespace::device_filter;
use crate::apply::namespace::process::Process;
use crate::error::{Error, Result};
use crate::host::rootfs::{mountinfo, MountPoint};
use crate::host::syscalls::forbidden_in;
use crate::model::edits::Device;

/// Lets the process and its container, which has this id, use the devices.
/// Errors: the cgroup can't be found or changed, or one above it forbids a device.
pub fn allow(devices: &[Device], process: &Process, id: &str) -> Result<()> {
    if !devices.iter().any(Device::needs_rule) {
        return Ok(());
    }
    match find(&mountinfo()?, &process.cgroups) {
        Some(Cgroup::One(folder)) => allow_by_file(devices, &folder),
        Some(Cgroup::Two(folder)) => allow_by_program(devices, &folder, id),
        None => {
            Err(Error::failed("can't find the cgroup of the container, to let it use its devices"))
        }
    }
}

/// A cgroup that decides about devices, and its folder.
#[derive(Debug, PartialEq, Eq)]
enum Cgroup {
    One(PathBuf),
    Two(PathBuf),
}

/// Finds the process's cgroup among the mounts (proc(5), `/proc/PID/mountinfo`; cgroups(7),
/// `/proc/PID/cgroup`). On a hybrid host, version 1 decides about devices.
fn find(mounts: &str, cgroups: &str) -> Option<Cgroup> {
    let member = |wanted: fn(&str, &str) -> bool| {
        cgroups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers) = (fields.next()?, fields.next()?);
            wanted(id, controllers).then(|| fields.next()).flatten()
        })
    };
    let has_devices = |list: &str| list.split(',').any(|name| name == "devices");
    let one = member(|_, controllers| controllers.split(',').any(|name| name == "devices"));
    let two = member(|id, controllers| id == "0" && controllers.is_empty());
    let mut mounts = MountPoint::all(mounts);
    let first = mounts.clone().find(|m| m.kind == "cgroup" && has_devices(m.options));
    if let (Some(path), Some(mount)) = (one, first) {
        return mount.place_of(path).map(Cgroup::One);
    }
    mounts.find(|m| m.kind == "cgroup2")?.place_of(two?).map(Cgroup::Two)
}

fn allow_by_file(devices: &[Device], folder: &Path) -> Result<()> {
    let file = folder.join("devices.allow");
    let fail = |e: std::io::Error| {
        let file = file.display();
        Error::failed(format!("can't let the container use its devices: {file}: {e}"))
    };
    for device in devices.iter().filter(|device| device.needs_rule()) {
        let (kind, major, minor) = (device.kind, device.major, device.minor);
        let rule = format!("{kind} {major}:{minor} {}", device.access);
        // One rule for each write (cgroup-v1/devices.rst).
        let opened = File::options().write(true).open(&file);
        opened.and_then(|mut f| f.write_all(rule.as_bytes())).map_err(fail)?;
    }
    Ok(())
}

pub(super) fn allow_by_program(devices: &[Device], folder: &Path, id: &str) -> Result<()> {
    let shown = folder.display();
    let fail = |e: Errno| {
        Error::failed(format!("can't let the container use its devices: {shown}: {e}"))
            .resolve("use oci-decorator-runtime, which puts the rules into the spec")
    };
    let cgroups = containers_own(folder, id).into_iter().map(|folder| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(folder, flags, Mode::empty())
    });
    let cgroups: Vec<OwnedFd> = cgroups.collect::<rustix::io::Result<_>>().map_err(fail)?;
    for cgroup in &cgroups {
        device_filter::allow(cgroup, devices).map_err(fail)?;
    }
    if !device_filter::obeys_others(&cgroups).map_err(fail)? {
        return Ok(());
    }
    // Programs can't be asked what they allow, but the kernel can.
    match forbidden_in(&cgroups[0], devices) {
        // A cgroup whose processes are as many as pids.max can't be asked, and forbids no start.
        Ok(None) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(fail(error)),
        Ok(Some(Device { source, .. })) => Err(Error::failed(format!(
            "can't let the container use {source}: a cgroup above {shown} forbids it"
        ))
        .resolve("allow it there, for example by DeviceAllow= of its systemd unit; or use oci-decorator-runtime, if the cgroup is the container's own")),
    }
}

/// The container's own cgroups: the process's, and those above it up to its scope, whose name ends
/// with its id. crun 1.23 puts the rules on the scope, and the process into a cgroup below. What
/// lies higher belongs to other containers too.
fn containers_own<'f>(folder: &'f Path, id: &str) -> Vec<&'f Path> {
    let name = format!("{id}.scope");
    let is_scope = |folder: &Path| {
        let own = folder.file_name().and_then(|name| name.to_str());
        !id.is_empty() && own.is_some_and(|own| own.ends_with(&name))
    };
    let above = folder.ancestors().position(is_scope).unwrap_or(0);
    folder.ancestors().take(above + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 29 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
        31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        32 30 0:27 / /sys/fs/cgroup/devices rw shared:9 - cgroup cgroup rw,devices\n\
        33 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n";
    const TWO: &str = "30 29 0:25 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn cgroups_of_every_kind_of_host() {
        let hybrid = "9:cpu,cpuacct:/docker/c\n5:devices:/docker/c\n0::/system.slice\n";
        let devices = Cgroup::One("/sys/fs/cgroup/devices/docker/c".into());
        assert_eq!(find(HYBRID, hybrid), Some(devices));
        let two = Cgroup::Two("/sys/fs/cgroup/machine.slice/c.scope".into());
        assert_eq!(find(TWO, "0::/machine.slice/c.scope\n"), Some(two));
        assert_eq!(find(TWO, "0::/\n"), Some(Cgroup::Two("/sys/fs/cgroup/".into())));
        // A controller of version 1 that is mounted nowhere, and a named one.
        let named = "3:name=devices:/x\n1:devices:/x\n7::/x\n0:odd:/x\n0::/c\n";
        let two = Cgroup::Two("/sys/fs/cgroup/c".into());
        assert_eq!(find(TWO, named), Some(two));
        assert_eq!(find(HYBRID, "0::/c\n"), Some(Cgroup::Two("/sys/fs/cgroup/unified/c".into())));
        assert_eq!(find(TWO, "1:cpu:/x\n"), None);
        assert_eq!(find("", "0::/x\n"), None);
        assert_eq!(find(TWO, "0::/../x\n"), None);
    }

    #[test]
    fn version_one_is_set_in_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let device = |kind, major, minor| Device {
            source: "/dev/x".to_owned(),
            path: "/dev/x".to_owned(),
            kind,
            major,
            minor,
            mode: 0o666,
            uid: Some(0),
            gid: Some(0),
            access: crate::model::edits::Access::ALL,
        };
        // A missing file is not made, as the folder would not be a cgroup.
        let one = [device('c', 195, 255)];
        let error = allow_by_file(&one, folder.path()).unwrap_err();
        assert!(error.to_string().contains("devices.allow"), "{error}");
        let file = folder.path().join("devices.allow");
        for (devices, expected) in [
            (&one[..], "c 195:255 rwm"),
            // The kernel takes one rule for each write, so each is written at the beginning.
            (&[device('c', 1, 3), device('b', 259, 1)], "b 259:1 rwm"),
        ] {
            std::fs::write(&file, "").unwrap();
            allow_by_file(devices, folder.path()).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
        }
        assert!(allow_by_program(&one, folder.path(), "c").is_err());
        assert!(allow_by_program(&one, &file, "c").is_err());
    }

    #[test]
    fn a_mount_of_a_part_of_the_tree() {
        let mounts = TWO.replace("0:25 / ", "0:25 /outer ");
        let inner = Cgroup::Two("/sys/fs/cgroup/c".into());
        assert_eq!(find(&mounts, "0::/outer/c\n"), Some(inner));
        assert_eq!(find(&mounts, "0::/elsewhere/c\n"), None);
    }
}
