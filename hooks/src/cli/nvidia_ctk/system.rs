//! `nvidia-ctk system`: makes device nodes, and links to them by number, which systemd needs to
//! name a device in a cgroup's rules.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, CWD};
use rustix::io::Errno;

use super::system_nodes::{minor_of, Majors, Node};
use super::{debug, warn};
use crate::error::{exit, Error, Result};
use crate::host::Host;
use crate::spec::options::{flag, value, Opt, Words};

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
/// The mode with which the driver makes nodes.
const MODE: u32 = 0o666;

pub fn links(words: &Words) -> Result<u8> {
    if words.is_set("watch") {
        let error = words.wrong("--watch is not supported: udev makes the links of new devices");
        return Err(error.resolve("leave --watch out, and run the command again after a driver was loaded: nvidia-ctk system create-dev-char-symlinks"));
    }
    Work::of(words).links()
}

pub fn nodes(words: &Words) -> Result<u8> {
    Work::of(words).nodes()
}

struct Work<'a> {
    /// The folder that has `dev`.
    root: PathBuf,
    is_dry: bool,
    words: &'a Words,
}

impl<'a> Work<'a> {
    fn of(words: &'a Words) -> Self {
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
            nodes.extend(majors.others(&gpus(), &capabilities()));
            self.make_nodes(&nodes)?;
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
        for node in nodes {
            let path = self.path_of(node);
            if std::fs::symlink_metadata(&path).is_ok() {
                debug(self.words, &format!("{} is there", path.display()));
                continue;
            }
            self.say(&format!("{} is c {}", path.display(), node.number()))?;
            if !self.is_dry {
                make_node(&path, node)?;
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

fn make_node(path: &Path, node: &Node) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(|e| Error::of_file("make", folder, &e))?;
    let number = rustix::fs::makedev(node.major, node.minor);
    let mode = Mode::from_raw_mode(MODE);
    let done = rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, mode, number);
    match done {
        Err(Errno::EXIST) => Ok(()),
        // The umask takes bits away.
        Ok(()) => {
            rustix::fs::chmod(path, mode).map_err(|e| Error::of_file("make", path, &e.into()))
        }
        Err(error) => Err(Error::of_file("make", path, &error.into())),
    }
}

fn majors() -> Result<Majors> {
    let text = std::fs::read_to_string("/proc/devices")
        .map_err(|e| Error::of_file("read", Path::new("/proc/devices"), &e))?;
    Ok(Majors::of(&text))
}

/// The minor numbers in the driver's files below a folder.
fn minors(folder: &str, is_one: impl Fn(&Path) -> bool) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(host) = Host::open(Path::new("/")) else {
        return found;
    };
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if is_one(&path) {
                let text = host.text_of_kernel(&path.to_string_lossy());
                found.extend(minor_of(&text.unwrap_or_default()));
            }
        }
    }
    found.sort_unstable();
    found
}

pub fn gpus() -> Vec<u32> {
    minors("/proc/driver/nvidia/gpus", |path| path.ends_with("information"))
}

fn capabilities() -> Vec<u32> {
    minors("/proc/driver/nvidia/capabilities", |_| true)
}
