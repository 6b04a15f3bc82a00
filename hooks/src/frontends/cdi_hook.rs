//! The front end for CDI specifications that engines apply: runs their hooks at the stage
//! createContainer, with the command line of `nvidia-cdi-hook`.
//!
//! At that stage this process is in the container's mount namespace, before its root is entered. The
//! process number of the state has no meaning here. The state's bundle counts, and the root that the
//! bundle's config names. Where it can't be read, as this process has the container's ids and the
//! bundle lies in a user's home, runc's working folder and the mounts below it say the same.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use rustc_hash::FxHashSet;
use rustix::fs::OFlags;

use crate::apply::namespace::mask_modify_device_files;
use crate::apply::spec::{read_config, Spec, NEW_FILE_SYSTEMS};
use crate::apply::{cannot_list, compatible, make_directories, make_links};
use crate::error::{Error, Result};
use crate::host::ldcache::{self, compat_folder, put_compat, MAX_CACHE};
use crate::host::libraries::{
    in_folder, in_root, is_library, soname_link, under_own_name, unversioned,
};
use crate::host::rootfs::{self, MountPoint, Root, Rootfs};
use crate::log::{Level, Note};
use crate::model::edits::{clean, split, Compat, Library, Link, Mounted, Present};
use crate::spec::config::{ContainerConfig, State};
use crate::spec::options::{flag, value, Opt, ParsedArgs};

/// The note of a command that does nothing, and needs no state.
pub fn idle_note(verb: &Verb) -> Option<Note> {
    let (level, message) = match verb {
        Verb::UpdateApplicationProfile => (
            Level::Debug,
            "update-application-profile: nothing is done, as no application profile is changed here"
                .to_owned(),
        ),
        Verb::Unsupported(None) => (Level::Warning, "no command given: nothing is done".to_owned()),
        Verb::Unsupported(Some(verb)) => (
            Level::Warning,
            format!("unknown command {verb:?}: nothing is done; known are {}", VERBS.join(", ")),
        ),
        _ => return None,
    };
    Some(Note::new(level, message))
}

/// Runs the command. Notes: what the image prevents.
/// Errors: the state, the bundle or the root can't be used.
pub fn run(verb: &Verb, state: &str) -> Result<Vec<Note>> {
    let bundle = State::parse(state)?.bundle;
    let path = bundle.join("config.json");
    let (bytes, config, mountinfo);
    let (mut rootfs, present) = match read_config(&path) {
        Ok(Some((text, _))) => {
            bytes = text;
            config = ContainerConfig::parse(&bytes);
            let spec = config.spec()?;
            (open_root(spec, &bundle)?, spec.present()?)
        }
        Ok(None) => {
            let path = path.display();
            return Err(Error::failed(format!("the state's bundle has no {path}")));
        }
        Err(unreadable) => {
            mountinfo = rootfs::mountinfo()?;
            let folder = std::env::current_dir().unwrap_or_default();
            let present = mounted_in(folder.to_str().unwrap_or_default(), &mountinfo);
            let present = present.ok_or(unreadable)?;
            (Rootfs::open(Path::new("."))?, present)
        }
    };
    rustix::process::umask(rustix::fs::Mode::empty());
    let new = present.mounts.iter().filter(|mount| mount.is_new);
    let new: Vec<String> = new.map(|m| clean(&m.destination).into_owned()).collect();
    rootfs.open_new(&new);
    match verb {
        Verb::CreateSymlinks(links) => Ok(make_links(&rootfs, links)),
        Verb::CreateDirectories(paths) => Ok(make_directories(&rootfs, paths)),
        Verb::UpdateLdcache(folders) => Ok(update_ldcache(&rootfs, &present, folders)),
        Verb::EnableCudaCompat(compat) => enable_compat(&rootfs, compat),
        Verb::DisableDeviceNodeModification => {
            mask_modify_device_files(&rootfs).map(|()| Vec::new())
        }
        Verb::UpdateApplicationProfile | Verb::Unsupported(_) => Ok(Vec::new()),
        Verb::Chmod { mode, paths } => Ok(change_modes(&rootfs, *mode, paths)),
    }
}

/// Opens the container's root. Errors: the config names no root, or the host's.
fn open_root(spec: &Spec, bundle: &Path) -> Result<Rootfs> {
    let path = spec.root_path()?.unwrap_or_default();
    if path.is_empty() || clean(&path) == "/" && path.starts_with('/') {
        return Err(Error::failed(format!(
            "the container's config.json has the root.path {path:?}: nothing is done to it"
        ))
        .resolve("give the container a root of its own"));
    }
    Rootfs::open(&bundle.join(&*path))
}

/// The mounts of a container, by its root. A file system is new if nothing outside shows it: a volume
/// is somewhere else too. `None`: the folder is no container's root, which is a mount with a `/proc`.
fn mounted_in<'m>(root: &str, mountinfo: &'m str) -> Option<Present<'m>> {
    let root = root.replace(' ', "\\040");
    let below = |mount: &MountPoint<'m>| {
        let rest = mount.point.strip_prefix(&*root)?;
        rest.starts_with('/').then_some(rest)
    };
    let is_outside = |mount: &MountPoint<'m>| below(mount).is_none();
    let outside = MountPoint::all(mountinfo).filter(is_outside).map(|mount| mount.file_system);
    let outside: FxHashSet<&str> = outside.collect();
    let mounted = |mount: MountPoint<'m>| {
        let is_new = NEW_FILE_SYSTEMS.contains(&mount.kind)
            && mount.root == "/"
            && !outside.contains(mount.file_system);
        let destination = Cow::Owned(below(&mount)?.replace("\\040", " "));
        Some(Mounted { destination, source: Cow::Borrowed(""), is_new })
    };
    let mounts: Vec<Mounted> = MountPoint::all(mountinfo).filter_map(mounted).collect();
    let has_proc = mounts.iter().any(|mount| mount.destination == "/proc");
    let is_mount = MountPoint::all(mountinfo).any(|mount| mount.point == root);
    (has_proc && is_mount).then(|| Present { mounts, ..Present::default() })
}

/// Adds the image's newer libraries to the cache. A drop-in with a fixed name holds their folder,
/// so that later updates keep it in front.
fn enable_compat(rootfs: &Rootfs, compat: &Compat) -> Result<Vec<Note>> {
    let compat = Compat { folder: clean(&compat.folder).into_owned(), ..compat.clone() };
    let mut notes = Vec::new();
    let found = compatible(&rootfs.files, &compat).unwrap_or_else(|error| {
        notes.push(cannot_list(&compat.folder, error));
        Vec::new()
    });
    let folder = (!found.is_empty()).then_some(compat.folder.as_str());
    put_compat(&rootfs.files, folder).map_err(|e| {
        Error::failed(format!("can't note in the image that {} comes first: {e}", compat.folder))
    })?;
    if !found.is_empty() {
        notes.extend(crate::host::ldcache::update(&rootfs.files, &found));
    }
    Ok(notes)
}

/// Changes modes in the image or in new file systems, and never in a volume.
fn change_modes(rootfs: &Rootfs, mode: u32, paths: &[String]) -> Vec<Note> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    let change = |path: &String| {
        let path = clean(path);
        let (root, within) = rootfs.writer(&path);
        let changed = root.open_in(within, OFlags::PATH).and_then(|fd| {
            let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(own, permissions)
                .map_err(|e| rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO))
        });
        let error = changed.err()?;
        let message = format!("can't change the mode of {path} in the container: {error}");
        Some(Note::new(Level::Warning, message))
    };
    paths.iter().filter_map(change).collect()
}

const CACHE: &str = "etc/ld.so.cache";
const LOADER_FOLDERS: [&str; 4] = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"];

/// Merges the libraries of the folders into the image's caches. If the image's own cache knows a
/// folder, only mounted libraries in it are new.
pub fn update_ldcache(rootfs: &Rootfs, present: &Present, folders: &[String]) -> Vec<Note> {
    let known = known_folders(rootfs);
    let mut found: Vec<Library> = Vec::new();
    let mut notes = Vec::new();
    let mut add = |root: &Root, folder: &str| match in_folder(root, folder) {
        Ok(libraries) => found.extend(libraries),
        Err(error) => notes.push(cannot_list(folder, error)),
    };
    if let Some(compat) = compat_folder(&rootfs.files) {
        add(&rootfs.files, &compat);
    }
    let mut mounted = Vec::new();
    for folder in folders {
        let folder = clean(folder);
        let targets = present.mounts.iter().map(|mount| clean(&mount.destination));
        let in_it = targets.filter(|path| {
            let parent = split(path).map(|(parent, _)| parent.trim_end_matches('/'));
            parent == Some(&folder) && is_library(path)
        });
        mounted.extend(in_it.filter_map(|path| in_root(&rootfs.mounted, &path)));
        if !known.contains(&*folder) {
            add(&rootfs.mounted, &folder);
        }
    }
    // The soname links that `ldconfig` makes: programs and musl's loader look for a library under its
    // soname. Links to a library are looked for only after its soname link is there.
    let links: Vec<Link> = mounted.iter().filter_map(soname_link).collect();
    let is_missing = |link: &&Link| !mounted.iter().any(|library| library.path == link.path);
    notes.extend(make_links(rootfs, links.iter().filter(is_missing)));
    let mut named: Vec<Library> = mounted.iter().filter_map(under_own_name).collect();
    named.extend(mounted.iter().filter_map(|library| unversioned_link(rootfs, library)));
    let mut seen: FxHashSet<(String, bool)> =
        found.iter().map(|l| (l.path.clone(), l.is_link)).collect();
    found.extend(
        mounted.into_iter().chain(named).filter(|l| seen.insert((l.path.clone(), l.is_link))),
    );
    notes.extend(ldcache::update(&rootfs.files, &found));
    notes
}

/// The link `libcuda.so` to a library of the soname `libcuda.so.1`, if the folder has it.
fn unversioned_link(rootfs: &Rootfs, library: &Library) -> Option<Library> {
    let (folder, _) = split(&library.path)?;
    let path = format!("{folder}{}", unversioned(&library.soname)?);
    let link = in_root(&rootfs.mounted, &path)?;
    (link.is_link && link.soname == library.soname).then_some(link)
}

fn known_folders(rootfs: &Rootfs) -> FxHashSet<String> {
    let mut known: FxHashSet<String> = LOADER_FOLDERS.iter().map(|&f| f.to_owned()).collect();
    let Ok((bytes, _)) = rootfs.files.read(CACHE, MAX_CACHE) else {
        return known;
    };
    let cache = ldcache::parse(&bytes).unwrap_or_default();
    for entry in &cache.entries {
        let folder = std::str::from_utf8(entry.path).ok().and_then(split);
        if let Some((folder, _)) = folder {
            let folder = folder.trim_end_matches('/');
            if !known.contains(folder) {
                known.insert(folder.to_owned());
            }
        }
    }
    known
}

/// The commands, for error messages.
pub const VERBS: [&str; 7] = [
    "create-symlinks",
    DIRECTORIES,
    "update-ldcache",
    "enable-cuda-compat",
    "disable-device-node-modification",
    "chmod",
    PROFILE,
];
/// New in version 1.20 of NVIDIA's toolkit. It writes settings for one of the driver's own
/// programs.
const PROFILE: &str = "update-application-profile";
/// Not a command of NVIDIA's. Our own specifications have it for directories that no mount makes.
const DIRECTORIES: &str = "create-directories";
/// The folder of newer libraries in NVIDIA's images.
const COMPAT_FOLDER: &str = "/usr/local/cuda/compat";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    CreateSymlinks(Vec<Link>),
    CreateDirectories(Vec<String>),
    UpdateLdcache(Vec<String>),
    EnableCudaCompat(Compat),
    DisableDeviceNodeModification,
    Chmod {
        mode: u32,
        paths: Vec<String>,
    },
    UpdateApplicationProfile,
    /// No command, or one that this version does not know.
    Unsupported(Option<String>),
}

/// Makes a command of its options. Errors: a value is wrong.
type Make = fn(&ParsedArgs) -> Result<Verb>;

const COMMON: [Opt; 3] = [value(&["container-spec"]), flag(&["debug"]), flag(&["quiet"])];

/// The command, and a file with the state. Errors: an unknown option of a known command, or an
/// invalid value.
pub fn parse(words: &[OsString]) -> Result<(Verb, Option<String>)> {
    let hint = || format!("known commands are {}", VERBS.join(", "));
    read(words).map_err(|error| error.resolve(hint()))
}

fn read(line: &[OsString]) -> Result<(Verb, Option<String>)> {
    // Options before the command change nothing here.
    let is_verb = |word: &&OsString| !word.as_encoded_bytes().starts_with(b"-");
    let verb = line.iter().find(is_verb).map(|word| word.to_string_lossy());
    let verb = verb.unwrap_or_default();
    let (own, make): (&[Opt], Make) = match &*verb {
        "create-symlinks" => (&[value(&["link"])], |it| links(it).map(Verb::CreateSymlinks)),
        DIRECTORIES => (&[value(&["path"])], |it| Ok(Verb::CreateDirectories(it.list("path")))),
        // The cache is merged here: no program of the host or the image is run for it.
        "update-ldcache" => (&[value(&["folder"]), value(&["ldconfig-path"])], |it| {
            folders(it).map(Verb::UpdateLdcache)
        }),
        "enable-cuda-compat" => (COMPAT, |it| compat(it).map(Verb::EnableCudaCompat)),
        "chmod" => (&[value(&["mode"]), value(&["path"])], |it| {
            Ok(Verb::Chmod { mode: mode(it)?, paths: it.list("path") })
        }),
        "disable-device-node-modification" => (&[], |_| Ok(Verb::DisableDeviceNodeModification)),
        // These do nothing, with any options.
        PROFILE => return Ok((Verb::UpdateApplicationProfile, None)),
        "" => return Ok((Verb::Unsupported(None), None)),
        other => return Ok((Verb::Unsupported(Some(other.to_owned())), None)),
    };
    let at = line.iter().position(|word| **word == *verb).unwrap_or_default();
    let words = ParsedArgs::of(&verb, ["nvidia-cdi-hook", ""]);
    let options = [&COMMON[..], own].concat();
    let words = words.all(&line[at + 1..], &options)?;
    words.no_operands()?;
    let state = words.value("container-spec").filter(|file| !matches!(*file, "" | "-"));
    Ok((make(&words)?, state.map(str::to_owned)))
}

const COMPAT: &[Opt] = &[
    value(&["host-driver-version"]),
    value(&["host-cuda-version"]),
    value(&["cuda-compat-container-root"]),
];

fn compat(words: &ParsedArgs) -> Result<Compat> {
    Ok(Compat {
        folder: words.value("cuda-compat-container-root").unwrap_or(COMPAT_FOLDER).to_owned(),
        driver: version(words, "host-driver-version")?,
        cuda: version(words, "host-cuda-version")?,
    })
}

/// Reads numbers with dots between them. An empty version is unknown.
fn version(words: &ParsedArgs, option: &str) -> Result<Option<String>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match words.value(option) {
        None | Some("") => Ok(None),
        Some(text) if text.split('.').all(is_number) => Ok(Some(text.to_owned())),
        Some(text) => Err(words.wrong(&format!("--{option} {text:?} is not a version"))),
    }
}

fn mode(words: &ParsedArgs) -> Result<u32> {
    let text = words.value("mode").ok_or_else(|| words.wrong("--mode is missing"))?;
    let number = u32::from_str_radix(text.trim_start_matches("0o"), 8).ok();
    let number = number.filter(|mode| *mode <= 0o777);
    number.ok_or_else(|| words.wrong(&format!("--mode {text:?} is not a mode")))
}

/// Reads folders of the container. A relative folder would have no meaning.
fn folders(words: &ParsedArgs) -> Result<Vec<String>> {
    let is_empty = |value: &str| value.split(',').all(str::is_empty);
    if words.each("folder").any(|given| is_empty(&given.value)) {
        return Err(words.wrong("--folder is empty"));
    }
    let found = words.list("folder");
    match found.iter().find(|folder| !folder.starts_with('/')) {
        Some(folder) => Err(words.wrong(&format!("--folder {folder:?} is not an absolute path"))),
        None => Ok(found),
    }
}

fn links(words: &ParsedArgs) -> Result<Vec<Link>> {
    let link = |text: &String| {
        let parts: Vec<&str> = text.split("::").collect();
        match parts.as_slice() {
            [target, path] if !target.is_empty() && !path.is_empty() => {
                Ok(Link { path: (*path).to_owned(), target: (*target).to_owned() })
            }
            _ => Err(words.wrong(&format!("--link {text:?}: expected TARGET::LINK"))),
        }
    };
    words.each("link").map(|given| link(&given.value)).collect()
}
