//! Reads the fields of a shared library that the loader's cache records.
//!
//! The crate `object` parses the format. It gets the file through a reader that fetches the headers
//! at once and further parts on demand, so a library of 100 MB costs three reads. The flags are
//! those of glibc's `sysdeps/generic/ldconfig.h`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{
    FileHeader32, FileHeader64, Machine, DT_SONAME, DT_STRTAB, EF_ARM_ABI_FLOAT_HARD, EM_AARCH64,
    EM_ARM, EM_LOONGARCH, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64, PT_DYNAMIC, PT_LOAD,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use object::Endianness;

/// The fields of one library.
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
pub fn read(file: &File) -> Option<Elf> {
    let cache = ReadCache::new(Headed::new(file)?);
    let ident: &[u8] = cache.read_bytes_at(0, 5).ok()?;
    match ident.last() {
        Some(1) => parse::<FileHeader32<Endianness>>(&cache),
        Some(2) => parse::<FileHeader64<Endianness>>(&cache),
        _ => None,
    }
}

/// Reads a section of an open file, of at most `limit` bytes. `None`: the file has no such section.
pub fn section(file: &File, name: &str, limit: u64) -> Option<Vec<u8>> {
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
