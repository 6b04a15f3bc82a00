//! The libraries in folders of a container, with what the loader's cache records about each.
//!
//! CDI and NVIDIA's interfaces name folders, and the cache has entries for files. Before a
//! container exists, the files are found through the sources of the mounts that will lie in those
//! folders. Once it exists, they are found in the container's own root.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{
    FileHeader32, FileHeader64, Machine, DT_SONAME, DT_STRTAB, EF_ARM_ABI_FLOAT_HARD, EM_AARCH64,
    EM_ARM, EM_LOONGARCH, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64, PT_DYNAMIC, PT_LOAD,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use object::Endianness;
use rustc_hash::FxHashSet;
use rustix::fs::OFlags;

use crate::error::Result;
use crate::host::rootfs::{names_in, open_regular, Root};
use crate::host::Host;
use crate::model::edits::{lies_in, split, Edits, Library, Link};

/// More files than any driver has in one folder.
const MAX_FILES: usize = 4096;
/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// True for the names that `ldconfig` looks at.
pub fn is_library(path: &str) -> bool {
    split(path).is_some_and(|(_, name)| {
        (name.starts_with("lib") || name.starts_with("ld-")) && name.contains(".so")
    })
}

/// Turns `library_folders` into libraries: those that mounts of the edits put there. Each gets the
/// soname link that `ldconfig` would make. The host is opened only if there are such folders.
pub fn find(edits: &mut Edits, host: impl FnOnce() -> Result<Host>) -> Result<()> {
    if edits.library_folders.is_empty() {
        return Ok(());
    }
    let host = host()?;
    let folders = std::mem::take(&mut edits.library_folders);
    let files = files_in(edits, &host, &folders);
    let known: FxHashSet<String> = edits.libraries.iter().map(|l| l.path.clone()).collect();
    let mut found: Vec<Library> = files
        .iter()
        .filter(|(_, path)| !known.contains(path))
        .filter_map(|(source, path)| library_at(&host.root, host.within(source), path))
        .collect();
    let taken = |path: &String| {
        files.iter().any(|(_, p)| p == path) || edits.links.iter().any(|l| l.path == *path)
    };
    let missing: Vec<Link> =
        found.iter().filter_map(soname_link).filter(|l| !taken(&l.path)).collect();
    let mut named = linked(&edits.links, &missing, &folders, &found);
    named.extend(found.iter().filter_map(under_own_name));
    found.extend(named);
    for link in missing {
        if !edits.links.iter().any(|l| l.path == link.path) {
            edits.links.push(link);
        }
    }
    edits.libraries.extend(found);
    Ok(())
}

/// The files that mounts of the edits put into the folders, with their sources and paths.
fn files_in(edits: &Edits, host: &Host, folders: &[String]) -> Vec<(String, String)> {
    let own = edits.mounts.iter().map(|m| (&m.source, &m.target));
    let binds = edits.described.iter().filter(|m| matches!(m.kind.as_str(), "" | "bind"));
    let all = own.chain(binds.map(|m| (&m.source, &m.target)));
    let mut files: Vec<(String, String)> = Vec::new();
    for (source, target) in all {
        for folder in folders {
            in_mount(host, folder, source, target, &mut files);
        }
    }
    files
}

/// Adds the files that a mount puts into a folder: the mount itself, or the files of the host's
/// folder.
fn in_mount(
    host: &Host,
    folder: &str,
    source: &str,
    target: &str,
    files: &mut Vec<(String, String)>,
) {
    let parent = split(target).map(|(parent, _)| parent.trim_end_matches('/'));
    let mut add = |source: String, path: String| {
        if is_library(&path) && !files.iter().any(|(_, there)| *there == path) {
            files.push((source, path));
        }
    };
    if parent == Some(folder) {
        add(source.to_owned(), target.to_owned());
    } else if lies_in(folder, target) {
        let on_host = format!("{source}{}", &folder[target.len()..]);
        let names = host.names_in(host.within(&on_host));
        let names = names.unwrap_or_default().into_iter().take(MAX_FILES);
        for name in names {
            add(format!("{on_host}/{name}"), format!("{folder}/{name}"));
        }
    }
}

/// Reads a file in a container's root. `None`: it is not a library.
pub fn in_root(root: &Root, path: &str) -> Option<Library> {
    library_at(root, path, path)
}

/// Reads a file of a root that has the given path in the container. Links are followed within the
/// root, and only regular files are opened, because opening a device can have an effect.
fn library_at(root: &Root, file: &str, path: &str) -> Option<Library> {
    let (fd, _) = open_regular(root.open_in(file, OFlags::PATH).ok()?).ok()?;
    let itself = OFlags::PATH | OFlags::NOFOLLOW;
    let stat = rustix::fs::fstat(root.open_in(file, itself).ok()?).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    library(&File::from(fd), path, kind == rustix::fs::FileType::Symlink)
}

/// The libraries in a folder of a container's root, sorted by name. What is no folder has none.
/// Errors: the folder can't be listed, for example because it has too many files.
pub fn in_folder(root: &Root, folder: &str) -> rustix::io::Result<Vec<Library>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(opened) = root.open_in(folder, flags) else {
        return Ok(Vec::new());
    };
    let mut names = names_in(opened)?;
    names.retain(|name| is_library(name));
    let paths = names.iter().take(MAX_FILES);
    let paths = paths.map(|name| format!("{folder}/{name}"));
    Ok(paths.filter_map(|path| in_root(root, &path)).collect())
}

fn library(file: &File, path: &str, is_link: bool) -> Option<Library> {
    let elf = read_elf(file)?;
    let (_, name) = split(path)?;
    Some(Library {
        path: path.to_owned(),
        soname: elf.soname.unwrap_or_else(|| name.to_owned()),
        flags: elf.flags,
        is_link,
    })
}

/// The soname link, through which the loader and programs that use the path find the file.
pub fn soname_link(library: &Library) -> Option<Link> {
    let (folder, name) = split(&library.path)?;
    (library.soname != name && !library.is_link)
        .then(|| Link { path: format!("{folder}{}", library.soname), target: name.to_owned() })
}

/// A library that was mounted under its name without a version, as the link that it is in the
/// driver: a mount of a link is a file. `None`: its soname is its only name.
pub fn under_own_name(library: &Library) -> Option<Library> {
    (!library.is_link && has_unversioned_name(library))
        .then(|| Library { is_link: true, ..library.clone() })
}

/// True for `libcuda.so` beside the soname `libcuda.so.1`. Programs may look for either.
pub fn has_unversioned_name(library: &Library) -> bool {
    split(&library.path).is_some_and(|(_, name)| {
        unversioned(&library.soname) == Some(name) && name != library.soname
    })
}

/// `libcuda.so` for the soname `libcuda.so.1`.
pub fn unversioned(soname: &str) -> Option<&str> {
    soname.find(".so").map(|at| &soname[..at + ".so".len()])
}

/// The links that lead to these libraries, directly or through others of `links` and `more`. The
/// loader finds each under its own name.
fn linked(
    links: &[Link],
    more: &[Link],
    folders: &[String],
    libraries: &[Library],
) -> Vec<Library> {
    let next =
        |path: &str| links.iter().chain(more).find(|link| link.path == path).and_then(target);
    let one = |link: &Link| {
        let (folder, _) = split(&link.path)?;
        let is_listed = folders.iter().any(|f| f == folder.trim_end_matches('/'));
        if !is_listed || !is_library(&link.path) {
            return None;
        }
        let mut chain = std::iter::successors(target(link), |path| next(path)).take(MAX_LINKS);
        let to = chain.find_map(|path| libraries.iter().find(|l| l.path == path))?;
        Some(Library { path: link.path.clone(), is_link: true, ..to.clone() })
    };
    links.iter().filter_map(one).collect()
}

/// The path to which a link leads in the container. `None`: it has no folder.
fn target(link: &Link) -> Option<String> {
    if link.target.starts_with('/') {
        return Some(link.target.clone());
    }
    let (folder, _) = split(&link.path)?;
    Some(format!("{folder}{}", link.target))
}

// The headers, by the crate `object`, which gets a file through a reader that fetches the headers at once
// and further parts on demand: a library of 100 MB costs three reads. The flags are those of glibc's
// `sysdeps/generic/ldconfig.h`.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    pub soname: Option<String>,
    /// glibc's cache flags.
    pub flags: u32,
}

const FLAG_LIBC6: u32 = 0x3;
/// The flags of libraries for this program's own architecture.
pub const NATIVE_FLAGS: u32 = FLAG_LIBC6
    | if cfg!(target_arch = "x86_64") {
        0x0300
    } else if cfg!(target_arch = "aarch64") {
        0x0a00
    } else if cfg!(target_arch = "powerpc64") {
        0x0500
    } else if cfg!(target_arch = "s390x") {
        0x0400
    } else if cfg!(target_arch = "riscv64") {
        0x1000
    } else if cfg!(target_arch = "loongarch64") {
        0x1200
    } else {
        0
    };
/// Enough bytes for the program headers of any usual library.
const HEAD: usize = 1024;
const MAX_HEADERS: usize = 512;
const MAX_SECTIONS: usize = 512;
const MAX_DYNAMIC: u64 = 1 << 16;
const MAX_NAME: u64 = 256;

/// Reads an open file. `None`: it is not an ELF file, or its headers are inconsistent.
pub fn read_elf(file: &File) -> Option<Elf> {
    let cache = ReadCache::new(Headed::new(file)?);
    let ident: &[u8] = cache.read_bytes_at(0, 5).ok()?;
    match ident.last() {
        Some(1) => parse::<FileHeader32<Endianness>>(&cache),
        Some(2) => parse::<FileHeader64<Endianness>>(&cache),
        _ => None,
    }
}

/// Reads a section of an open file, of at most `limit` bytes. `None`: the file has no such section.
pub fn elf_section(file: &File, name: &str, limit: u64) -> Option<Vec<u8>> {
    let cache = ReadCache::new(Headed::new(file)?);
    let ident: &[u8] = cache.read_bytes_at(0, 5).ok()?;
    match ident.last() {
        Some(1) => named_section::<FileHeader32<Endianness>>(&cache, name, limit),
        Some(2) => named_section::<FileHeader64<Endianness>>(&cache, name, limit),
        _ => None,
    }
}

fn named_section<'a, Header>(data: &'a ReadCache<Headed>, name: &str, limit: u64) -> Option<Vec<u8>>
where
    Header: FileHeader<Endian = Endianness>,
{
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    // A zero may stand for a number in another field, which could be arbitrarily large.
    if !(1..=MAX_SECTIONS).contains(&usize::from(header.e_shnum(endian))) {
        return None;
    }
    let sections = header.sections(endian, data).ok()?;
    let (_, found) = sections.section_by_name(endian, name.as_bytes())?;
    let (offset, size) = found.file_range(endian)?;
    if size > limit {
        return None;
    }
    let bytes: &'a [u8] = data.read_bytes_at(offset, size).ok()?;
    Some(bytes.to_vec())
}

fn parse<'a, Header>(data: &'a ReadCache<Headed>) -> Option<Elf>
where
    Header: FileHeader<Endian = Endianness>,
{
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if usize::from(header.e_phnum(endian)) > MAX_HEADERS {
        return None;
    }
    let segments: &'a [Header::ProgramHeader] = header.program_headers(endian, data).ok()?;
    Some(Elf {
        flags: flags(header.e_machine(endian), header.is_class_64(), header.e_flags(endian).0),
        soname: soname::<Header>(segments, endian, data),
    })
}

fn soname<'a, Header>(
    segments: &'a [Header::ProgramHeader],
    endian: Endianness,
    data: &'a ReadCache<Headed>,
) -> Option<String>
where
    Header: FileHeader<Endian = Endianness>,
{
    let dynamic = segments.iter().find(|s| s.p_type(endian) == PT_DYNAMIC)?;
    let (mut offset, size) = dynamic.file_range(endian);
    let count = usize::try_from(size.min(MAX_DYNAMIC)).ok()? / size_of::<Header::Dyn>();
    let entries: &'a [Header::Dyn] = data.read_slice(&mut offset, count).ok()?;
    let value = |tag| {
        let set = entries.iter().take_while(|e| e.tag(endian).0 != 0);
        set.clone().find(|e| e.tag(endian) == tag).map(|e| e.val(endian))
    };
    let strings = file_offset(segments, endian, value(DT_STRTAB)?)?;
    name(data, strings.checked_add(value(DT_SONAME)?)?)
}

fn file_offset<Segment>(segments: &[Segment], endian: Endianness, address: u64) -> Option<u64>
where
    Segment: ProgramHeader<Endian = Endianness>,
{
    let mut loaded = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD);
    loaded.find_map(|segment| {
        let (offset, size) = segment.file_range(endian);
        let within = address.checked_sub(segment.p_vaddr(endian).into())?;
        (within < size).then(|| offset.checked_add(within))?
    })
}

/// A string of the table. `None`: it is empty, or has a slash or control characters.
fn name(data: &ReadCache<Headed>, at: u64) -> Option<String> {
    let bytes = data.read_bytes_at_until(at..at.checked_add(MAX_NAME)?, 0).ok()?;
    let name = std::str::from_utf8(bytes).ok()?;
    let plain = !name.is_empty() && !name.contains(|c: char| c == '/' || c.is_control());
    plain.then(|| name.to_owned())
}

/// The flags that `ldconfig` writes for a library. For 32-bit x86 without libc.so.6, glibc 2.36
/// writes 0x1; glibc 2.41 no longer has that value, and both loaders accept 0x3.
fn flags(machine: Machine, wide: bool, processor: u32) -> u32 {
    const RISCV_FLOAT: u32 = 0x6;
    const RISCV_DOUBLE: u32 = 0x4;
    const LOONGARCH_FLOAT: u32 = 0x7;
    const LOONGARCH_DOUBLE: u32 = 0x3;
    let required = match (machine, wide) {
        (EM_X86_64, true) => 0x0300,
        (EM_X86_64, false) => 0x0800, // x32
        (EM_AARCH64, true) => 0x0a00,
        (EM_PPC64, true) => 0x0500,
        (EM_S390, true) => 0x0400,
        (EM_ARM, false) if processor & EF_ARM_ABI_FLOAT_HARD != 0 => 0x0900,
        (EM_ARM, false) => 0x0b00,
        (EM_RISCV, true) if processor & RISCV_FLOAT == RISCV_DOUBLE => 0x1000,
        (EM_RISCV, true) => 0x0f00,
        (EM_LOONGARCH, true) if processor & LOONGARCH_FLOAT == LOONGARCH_DOUBLE => 0x1200,
        (EM_LOONGARCH, true) => 0x1100,
        _ => 0,
    };
    required | FLAG_LIBC6
}

/// A file whose first bytes are in memory.
struct Headed<'a> {
    file: &'a File,
    at: u64,
    head: Vec<u8>,
}

impl<'a> Headed<'a> {
    fn new(file: &'a File) -> Option<Self> {
        let mut headed = Self { file, at: 0, head: Vec::new() };
        let mut head = vec![0; HEAD];
        let length = headed.read(&mut head).ok()?;
        head.truncate(length);
        headed.head = head;
        Some(headed)
    }
}

impl ReadCacheOps for Headed<'_> {
    /// The kernel is not asked, because every read has its own limit and fails at the file's end.
    fn len(&mut self) -> Result<u64, ()> {
        Ok(u64::MAX)
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.at = position;
        Ok(position)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = self.at.checked_add(done as u64).ok_or(())?;
            match self.file.read_at(&mut buffer[done..], at) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        Ok(done)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        let start = usize::try_from(self.at).map_err(|_| ())?;
        let end = start.checked_add(buffer.len()).ok_or(())?;
        if let Some(near) = self.head.get(start..end) {
            buffer.copy_from_slice(near);
            return Ok(());
        }
        (self.read(buffer)? == buffer.len()).then_some(()).ok_or(())
    }
}

#[cfg(test)]
mod tests;
