//! `nvidia-ctk system`: makes device nodes, and links to them by number, which systemd needs to
//! name a device in a cgroup's rules.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid, CWD};
use rustix::io::Errno;

use super::system_nodes::{minor_of, Access, Majors, Node};
use super::{debug, warn};
use crate::apply::namespace::params::PATH as PARAMS;
use crate::error::{exit, Error, Result};
use crate::host::Host;
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

    /// The existing nodes of NVIDIA.
    fn found(&self) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for folder in ["", "nvidia-caps/", "nvidia-caps-imex-channels/"] {
            let path = self.root.join("dev").join(folder);
            let entries = match std::fs::read_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|e| Error::of_file("read", &path, &e))?,
            };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let is_ours = !folder.is_empty() || name.starts_with("nvidia");
                let about = std::fs::symlink_metadata(entry.path());
                let Some(about) = about.ok().filter(|a| is_ours && a.file_type().is_char_device())
                else {
                    continue;
                };
                nodes.push(Node {
                    path: format!("{folder}{name}"),
                    major: rustix::fs::major(about.rdev()),
                    minor: rustix::fs::minor(about.rdev()),
                });
            }
        }
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
        crate::cli::print(&format!("{line}\n")).map(|_| ())
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
    let mut found: Vec<u32> = texts.filter_map(|text| minor_of(&text)).collect();
    found.sort_unstable();
    found
}
