//! `nvidia-ctk system`: makes device nodes, and links to them by number, which systemd needs to
//! name a device in a cgroup's rules.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid, CWD};
use rustix::io::Errno;

use crate::apply::namespace::PARAMS;
use crate::cli::nvidia_ctk::{debug, warn};
use crate::error::{exit, Error, Result};
use crate::host::facts::field;
use crate::host::Host;
use crate::model::edits::Device;
use crate::model::vendor::device_name;
use crate::spec::options::{flag, value, Opt, ParsedArgs};

// Source of the variables: `cmd/nvidia-ctk/system` of NVIDIA's toolkit.
pub const LINK_OPTIONS: &[Opt] = &[
    value(&["dev-char-path"]).or(&["DEV_CHAR_PATH"]),
    value(&["driver-root", "root"]).or(&["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]),
    value(&["dev-root"]),
    flag(&["create-all"]).or(&["CREATE_ALL"]),
    // Needs --create-all, which makes the nodes in any case.
    flag(&["create-device-nodes"]).or(&["CREATE_DEVICE_NODES"]),
    flag(&["load-kernel-modules"]).or(&["LOAD_KERNEL_MODULES"]),
    flag(&["watch"]),
    flag(&["dry-run"]).or(&["DRY_RUN"]),
];
pub const NODE_OPTIONS: &[Opt] = &[
    value(&["driver-root", "root"]).or(&["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]),
    value(&["dev-root"]).or(&["NVIDIA_DEV_ROOT", "DEV_ROOT"]),
    flag(&["control-devices", "control"]),
    flag(&["load-kernel-modules"]),
    flag(&["dry-run"]).or(&["DRY_RUN"]),
];
pub fn links(words: &ParsedArgs) -> Result<u8> {
    if words.is_set("watch") {
        let error = words.wrong("--watch is not supported: udev makes the links of new devices");
        return Err(error.resolve("leave --watch out, and run the command again after a driver was loaded: nvidia-ctk system create-dev-char-symlinks"));
    }
    Work::of(words).links()
}

pub fn nodes(words: &ParsedArgs) -> Result<u8> {
    Work::of(words).nodes()
}

/// The nodes of NVIDIA's drivers.
const OURS: [&str; 3] = ["nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*"];

struct Work<'a> {
    /// The folder that has `dev`.
    root: PathBuf,
    is_dry: bool,
    words: &'a ParsedArgs,
}

impl<'a> Work<'a> {
    fn of(words: &'a ParsedArgs) -> Self {
        if words.is_set("load-kernel-modules") {
            debug(words, "modules are loaded by provision, not here");
        }
        let root = words.value("dev-root").or(words.value("driver-root"));
        Self { root: root.unwrap_or("/").into(), is_dry: words.is_set("dry-run"), words }
    }

    fn nodes(&self) -> Result<u8> {
        if !self.words.is_set("control-devices") {
            warn(self.words, "nothing to do without --control-devices");
            return Ok(exit::DONE);
        }
        let (nodes, missing) = majors()?.control();
        self.complain(&missing);
        self.make_nodes(&nodes)?;
        // Without a driver, no node can be made.
        if nodes.is_empty() {
            return Err(Error::not_found(
                "no NVIDIA driver is loaded: /proc/devices doesn't list one",
            )
            .resolve("load it: provision load nvidia; or, where another tool installed it: modprobe nvidia"));
        }
        Ok(exit::DONE)
    }

    fn links(&self) -> Result<u8> {
        let folder = PathBuf::from(self.words.value("dev-char-path").unwrap_or("/dev/char"));
        let nodes = if self.words.is_set("create-all") {
            let majors = majors()?;
            let (mut nodes, missing) = majors.control();
            self.complain(&missing);
            nodes.extend(majors.gpus(&gpus()));
            self.make_nodes(&nodes)?;
            // A capability is a right: its node is made by the driver's own tool, for those who ask.
            let mut others = self.found()?;
            others.retain(|node| !nodes.contains(node));
            nodes.extend(others);
            nodes
        } else {
            self.found()?
        };
        for node in nodes {
            self.link(&folder.join(node.number()), &self.path_of(&node))?;
        }
        Ok(exit::DONE)
    }

    fn complain(&self, missing: &[&str]) {
        for driver in missing {
            warn(
                self.words,
                &format!("{driver} has no number in /proc/devices: its module is not loaded"),
            );
        }
    }

    fn path_of(&self, node: &Node) -> PathBuf {
        self.root.join("dev").join(&node.path)
    }

    fn found(&self) -> Result<Vec<Node>> {
        if !self.root.is_dir() {
            return Ok(Vec::new());
        }
        let host = Host::open(&self.root)?;
        let devices = OURS.iter().flat_map(|pattern| host.nodes(pattern));
        let node = |device: Device| {
            let path = device_name(&device.path).to_owned();
            Node { path, major: device.major, minor: device.minor }
        };
        let mut nodes: Vec<Node> = devices.filter(|it| it.kind == 'c').map(node).collect();
        nodes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(nodes)
    }

    fn make_nodes(&self, nodes: &[Node]) -> Result<()> {
        let host = Host::open(Path::new("/"))?;
        let access = Access::of(&host.text_of_kernel(PARAMS).unwrap_or_default());
        for node in nodes {
            let path = self.path_of(node);
            if std::fs::symlink_metadata(&path).is_ok() {
                debug(self.words, &format!("{} is there", path.display()));
                continue;
            }
            self.say(&format!("{} is c {}", path.display(), node.number()))?;
            if !self.is_dry {
                make_node(&path, node, access)?;
            }
        }
        Ok(())
    }

    /// Makes a link. A link that leads elsewhere is replaced; any other file stays, with an error.
    fn link(&self, link: &Path, target: &Path) -> Result<()> {
        match std::fs::read_link(link) {
            Ok(found) if leads_to(link, &found, target) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                let shown = link.display();
                return Err(Error::failed(format!("{shown} is not a link"))
                    .resolve(format!("move it away: mv {shown} {shown}.old")));
            }
            _ => {}
        }
        self.say(&format!("{} -> {}", link.display(), target.display()))?;
        if self.is_dry {
            return Ok(());
        }
        let folder = link.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder).map_err(|e| Error::of_file("make", folder, &e))?;
        match std::fs::remove_file(link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::of_file("replace", link, &error))
            }
            _ => {}
        }
        std::os::unix::fs::symlink(target, link).map_err(|e| Error::of_file("make", link, &e))
    }

    fn say(&self, line: &str) -> Result<()> {
        if self.words.is_set("quiet") && !self.is_dry {
            return Ok(());
        }
        crate::spec::options::print(format!("{line}\n")).map(|_| ())
    }
}

/// True if the link leads to the target. udev writes relative links, such as `../nvidia0`.
fn leads_to(link: &Path, found: &Path, target: &Path) -> bool {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    let at = link.parent().unwrap_or(Path::new("/")).join(found);
    found == target || (whole(&at).is_some() && whole(&at) == whole(target))
}

/// Makes a node that nobody may open before it has its owner.
fn make_node(path: &Path, node: &Node, access: Access) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(|e| Error::of_file("make", folder, &e))?;
    let number = rustix::fs::makedev(node.major, node.minor);
    let closed = Mode::empty();
    match rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, closed, number) {
        Err(Errno::EXIST) => return Ok(()),
        done => done.map_err(|e| Error::of_file("make", path, &e.into()))?,
    }
    let owner = (Some(Uid::from_raw(access.uid)), Some(Gid::from_raw(access.gid)));
    let done = rustix::fs::chownat(CWD, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
        .and_then(|()| rustix::fs::chmod(path, Mode::from_raw_mode(access.mode)));
    done.map_err(|e| Error::of_file("make", path, &e.into()))
}

fn majors() -> Result<Majors> {
    let text = std::fs::read_to_string("/proc/devices")
        .map_err(|e| Error::of_file("read", Path::new("/proc/devices"), &e))?;
    Ok(Majors::of(&text))
}

/// The minor numbers of the GPUs that the driver shows.
pub fn gpus() -> Vec<u32> {
    let Ok(host) = Host::open(Path::new("/")) else {
        return Vec::new();
    };
    let folders = std::fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let texts = folders.filter_map(|folder| {
        host.text_of_kernel(&folder.path().join("information").to_string_lossy())
    });
    let mut found: Vec<u32> =
        texts.filter_map(|text| field(&text, "Device Minor")?.parse().ok()).collect();
    found.sort_unstable();
    found
}

// NVIDIA's device nodes, with the major numbers that the kernel gave its drivers.
//
// Source: the driver's `README.txt`, chapter "Manually creating device files", and
// <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#device-nodes>

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Below `/dev`.
    pub path: String,
    pub major: u32,
    pub minor: u32,
}

impl Node {
    /// The name of its link below `/dev/char`.
    pub fn number(&self) -> String {
        format!("{}:{}", self.major, self.minor)
    }
}

/// The major numbers of NVIDIA's drivers in `/proc/devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Majors {
    /// `nvidia-frontend`, or `nvidia` since driver 530.
    pub gpu: Option<u32>,
    pub uvm: Option<u32>,
}

impl Majors {
    /// Reads the text of `/proc/devices`: the first part, up to the block devices.
    pub fn of(proc_devices: &str) -> Self {
        let lines = proc_devices.lines().take_while(|line| *line != "Block devices:");
        let mut majors = Self::default();
        for line in lines {
            let mut words = line.split_whitespace();
            let (Some(number), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let number = number.parse().ok();
            match name {
                "nvidia-frontend" | "nvidia" => majors.gpu = majors.gpu.or(number),
                "nvidia-uvm" => majors.uvm = number,
                _ => {}
            }
        }
        majors
    }

    /// The control nodes that every GPU needs, and the drivers that `/proc/devices` lacks.
    pub fn control(self) -> (Vec<Node>, Vec<&'static str>) {
        let mut nodes = Vec::new();
        let mut missing = Vec::new();
        let mut add = |driver, major: Option<u32>, wanted: &[(&str, u32)]| match major {
            Some(major) => nodes.extend(wanted.iter().map(|(path, minor)| Node {
                path: (*path).to_owned(),
                major,
                minor: *minor,
            })),
            None => missing.push(driver),
        };
        add("nvidia", self.gpu, &[("nvidiactl", 255), ("nvidia-modeset", 254)]);
        add("nvidia-uvm", self.uvm, &[("nvidia-uvm", 0), ("nvidia-uvm-tools", 1)]);
        (nodes, missing)
    }

    pub fn gpus(self, minors: &[u32]) -> Vec<Node> {
        let gpus = self.gpu.into_iter().flat_map(|major| {
            let path = |minor| format!("nvidia{minor}");
            minors.iter().map(move |&minor| Node { path: path(minor), major, minor })
        });
        gpus.collect()
    }
}

/// Owner, group and mode with which the driver has its nodes made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Access {
    /// Reads the driver's settings (`/proc/driver/nvidia/params`). What they do not say is as the
    /// driver has it by default.
    pub fn of(params: &str) -> Self {
        let number = |name: &str| field(params, name)?.parse().ok();
        Self {
            uid: number("DeviceFileUID").unwrap_or(0),
            gid: number("DeviceFileGID").unwrap_or(0),
            mode: number("DeviceFileMode").unwrap_or(0o666) & 0o777,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia-frontend\n195 nvidia\n237 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  8 nvidia-uvm\n";

    #[test]
    fn numbers_are_the_kernels() {
        let majors = Majors::of(DEVICES);
        let expected = Majors { gpu: Some(195), uvm: Some(510) };
        assert_eq!(majors, expected);
        let (nodes, missing) = majors.control();
        let shown: Vec<_> = nodes.iter().map(|n| format!("{} {}", n.path, n.number())).collect();
        assert_eq!(
            shown,
            [
                "nvidiactl 195:255",
                "nvidia-modeset 195:254",
                "nvidia-uvm 510:0",
                "nvidia-uvm-tools 510:1"
            ]
        );
        assert_eq!(missing, Vec::<&str>::new());
        let gpus = majors.gpus(&[0, 3]);
        let shown: Vec<_> = gpus.iter().map(|n| format!("{} {}", n.path, n.number())).collect();
        assert_eq!(shown, ["nvidia0 195:0", "nvidia3 195:3"]);
        let (nodes, missing) = Majors::of("Character devices:\n195 nvidia\n").control();
        assert_eq!((nodes.len(), missing), (2, vec!["nvidia-uvm"]));
        assert_eq!(Majors::default().control().1, ["nvidia", "nvidia-uvm"]);
        assert_eq!(Majors::default().gpus(&[0]), []);
    }

    #[test]
    fn the_driver_says_whose_its_nodes_are() {
        let access = |uid, gid, mode| Access { uid, gid, mode };
        for (params, expected) in [
            ("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n", access(0, 44, 0o660)),
            ("ModifyDeviceFiles: 1\nDeviceFileMode: x\n", access(0, 0, 0o666)),
            ("", access(0, 0, 0o666)),
        ] {
            assert_eq!(Access::of(params), expected, "{params}");
        }
    }
}
