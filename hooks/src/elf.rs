//! Reads from a shared library what the loader's cache records about it.
//!
//! Only the headers and the dynamic section are read, each with a bound, so a
//! malformed file is an error and never a crash or a large allocation.
//! Layout: System V ABI, chapters 4 and 5; flags: glibc `sysdeps/generic/ldconfig.h`.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// What one library is, as far as the cache is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    pub soname: Option<String>,
    /// glibc's cache flags for it.
    pub flags: u32,
    /// It names a program interpreter: not static.
    pub interpreted: bool,
}

const FLAG_LIBC6: u32 = 0x3;
/// The flags of libraries for the architecture that this program is built for.
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
const MAX_HEADERS: usize = 512;
const MAX_DYNAMIC: u64 = 1 << 16;
const MAX_NAME: usize = 255;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// Reads an open file. `None`: not an ELF file, or one that doesn't hold together.
pub fn read(file: &File) -> Option<Elf> {
    // Enough for the program headers of any usual library.
    let mut head = [0; 1024];
    let length = fill(file, &mut head, 0)?;
    let reader = Reader::new(file, &head[..length])?;
    let segments = reader.segments(&head[..length])?;
    let interpreted = segments.iter().any(|s| s.kind == PT_INTERP);
    Some(Elf {
        flags: reader.flags(),
        soname: reader.soname(&segments),
        interpreted,
    })
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

struct Reader<'a> {
    file: &'a File,
    wide: bool,
    big: bool,
    machine: u16,
    processor_flags: u32,
}

impl<'a> Reader<'a> {
    fn new(file: &'a File, head: &[u8]) -> Option<Self> {
        let (magic, class, data) = (head.get(..4)?, *head.get(4)?, *head.get(5)?);
        if magic != b"\x7fELF" || !matches!(class, 1 | 2) || !matches!(data, 1 | 2) {
            return None;
        }
        let mut reader = Self {
            file,
            wide: class == 2,
            big: data == 2,
            machine: 0,
            processor_flags: 0,
        };
        reader.machine = u16::try_from(reader.number(head, 18, 2)?).ok()?;
        let flags_at = if reader.wide { 48 } else { 36 };
        reader.processor_flags = u32::try_from(reader.number(head, flags_at, 4)?).ok()?;
        Some(reader)
    }

    /// An unsigned number of 2, 4 or 8 bytes.
    fn number(&self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let bytes = bytes.get(at..at.checked_add(size)?)?;
        let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.big {
            bytes.iter().fold(0, fold)
        } else {
            bytes.iter().rev().fold(0, fold)
        })
    }

    fn segments(&self, head: &[u8]) -> Option<Vec<Segment>> {
        let (offset_at, size_at) = if self.wide { (32, 54) } else { (28, 42) };
        let word = self.word();
        let offset = self.number(head, offset_at, word)?;
        let size = usize::try_from(self.number(head, size_at, 2)?).ok()?;
        let count = usize::try_from(self.number(head, size_at + 2, 2)?).ok()?;
        if count > MAX_HEADERS || size < if self.wide { 56 } else { 32 } || size > 256 {
            return None;
        }
        let start = usize::try_from(offset).ok()?;
        let table = match head.get(start..start.checked_add(count * size)?) {
            Some(near) => near.to_vec(),
            None => self.bytes(offset, count * size)?,
        };
        table.chunks_exact(size).map(|s| self.segment(s)).collect()
    }

    fn segment(&self, header: &[u8]) -> Option<Segment> {
        let word = self.word();
        let (offset, address, size) = if self.wide { (8, 16, 32) } else { (4, 8, 16) };
        Some(Segment {
            kind: u32::try_from(self.number(header, 0, 4)?).ok()?,
            offset: self.number(header, offset, word)?,
            address: self.number(header, address, word)?,
            size: self.number(header, size, word)?,
        })
    }

    fn word(&self) -> usize {
        if self.wide {
            8
        } else {
            4
        }
    }

    fn bytes(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        (fill(self.file, &mut bytes, offset)? == length).then_some(bytes)
    }

    fn soname(&self, segments: &[Segment]) -> Option<String> {
        let dynamic = segments.iter().find(|s| s.kind == PT_DYNAMIC)?;
        let size = usize::try_from(dynamic.size.min(MAX_DYNAMIC)).ok()?;
        let table = self.bytes(dynamic.offset, size)?;
        let word = self.word();
        let entries: Vec<(u64, u64)> = table
            .chunks_exact(2 * word)
            .map_while(|e| Some((self.number(e, 0, word)?, self.number(e, word, word)?)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let value = |tag| entries.iter().find(|e| e.0 == tag).map(|e| e.1);
        let strings = file_offset(segments, value(DT_STRTAB)?)?;
        self.name(strings, value(DT_SONAME)?)
    }

    /// A string of the table: plain text without a slash, or nothing.
    fn name(&self, strings: u64, at: u64) -> Option<String> {
        let mut bytes = [0; MAX_NAME + 1];
        let length = fill(self.file, &mut bytes, strings.checked_add(at)?)?;
        let end = bytes[..length].iter().position(|&b| b == 0)?;
        let name = std::str::from_utf8(&bytes[..end]).ok()?;
        let plain = !name.is_empty() && !name.contains(|c: char| c == '/' || c.is_control());
        plain.then(|| name.to_owned())
    }

    /// What `ldconfig` writes for this library. glibc 2.36 gives 0x1 to one of 32-bit x86 that
    /// doesn't need libc.so.6; 2.41 knows that value no more, and both loaders take 0x3.
    fn flags(&self) -> u32 {
        const HARD_FLOAT: u32 = 0x400;
        const RISCV_DOUBLE: u32 = 0x4;
        const LOONGARCH_DOUBLE: u32 = 0x3;
        let required = match (self.machine, self.wide) {
            (62, true) => 0x0300,                                            // x86-64
            (62, false) => 0x0800,                                           // x32
            (183, true) => 0x0a00,                                           // aarch64
            (21, true) => 0x0500,                                            // ppc64
            (22, true) => 0x0400,                                            // s390x
            (40, false) if self.processor_flags & HARD_FLOAT != 0 => 0x0900, // arm
            (40, false) => 0x0b00,
            (243, true) if self.processor_flags & 0x6 == RISCV_DOUBLE => 0x1000,
            (243, true) => 0x0f00,
            (258, true) if self.processor_flags & 0x7 == LOONGARCH_DOUBLE => 0x1200,
            (258, true) => 0x1100,
            _ => 0,
        };
        required | FLAG_LIBC6
    }
}

fn file_offset(segments: &[Segment], address: u64) -> Option<u64> {
    segments.iter().filter(|s| s.kind == PT_LOAD).find_map(|s| {
        let within = address.checked_sub(s.address)?;
        (within < s.size).then(|| s.offset.checked_add(within))?
    })
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let at = offset.checked_add(done as u64)?;
        // An offset beyond what the kernel takes is an error of the file.
        match file.read_at(&mut buffer[done..], at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(done)
}

#[cfg(test)]
mod tests;
