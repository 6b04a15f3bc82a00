//! Device rules of cgroup version 2: the BPF programs that the runtime attached to the cgroup.
//!
//! All programs of a cgroup must allow an access, so an additional program can't allow anything.
//! Each program is therefore replaced by itself with our rules in front: what was allowed stays
//! allowed, and what was denied stays denied, except for our devices.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#device-controller>
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::host::syscalls::bpf;
use crate::model::edits::{Access, Device};

/// The numbers of `linux/bpf.h`.
mod number {
    pub const LOAD: i32 = 5;
    pub const ATTACH: i32 = 8;
    pub const OPEN_BY_ID: i32 = 13;
    pub const INFORMATION: i32 = 15;
    pub const QUERY: i32 = 16;
    pub const CGROUP_DEVICE_PROGRAM: u32 = 15;
    pub const CGROUP_DEVICE: u32 = 6;
    pub const REPLACE: u32 = 1 << 2;
    pub const ALLOW_MULTI: u32 = 1 << 1;
    pub const EFFECTIVE: u32 = 1 << 0;
    pub const BLOCK: i32 = 1;
    pub const CHARACTER: i32 = 2;
}

/// The codes of instructions: `linux/bpf.h`, `linux/bpf_common.h`.
mod code {
    pub const LOAD_WORD: u8 = 0x61;
    pub const AND: u8 = 0x54;
    pub const SHIFT_RIGHT: u8 = 0x74;
    pub const JUMP_UNLESS_EQUAL: u8 = 0x56;
    pub const MOVE: u8 = 0xb7;
    pub const EXIT: u8 = 0x95;
}

const MAX_PROGRAMS: usize = 64;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination and source; which half is which depends on the byte order.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Makes an instruction. The upper half of `registers` is the source.
fn make(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: if cfg!(target_endian = "big") { registers.rotate_left(4) } else { registers },
        offset,
        immediate,
    }
}

/// Puts rules for the devices in front of every program of the cgroup.
/// A cgroup without programs allows everything.
pub fn allow(cgroup: &OwnedFd, devices: &[Device]) -> rustix::io::Result<()> {
    let devices = devices.iter().filter(|device| device.needs_rule());
    let rules: Vec<Instruction> = devices.flat_map(rule).collect();
    if rules.is_empty() {
        return Ok(());
    }
    let (ids, flags) = programs(cgroup, 0)?;
    for id in ids {
        let old = open(id)?;
        let existing = instructions(&old)?;
        if existing.starts_with(&rules) {
            continue;
        }
        let new = load(&[rules.as_slice(), &existing].concat())?;
        replace(cgroup, &old, &new, flags)?;
    }
    Ok(())
}

/// True if the first cgroup obeys programs that none of the cgroups has itself: those of others above.
pub fn obeys_others(cgroups: &[OwnedFd]) -> rustix::io::Result<bool> {
    let Some(first) = cgroups.first() else {
        return Ok(false);
    };
    let mut effective = programs(first, number::EFFECTIVE)?.0;
    for cgroup in cgroups {
        let own = programs(cgroup, 0)?.0;
        effective.retain(|id| !own.contains(id));
    }
    Ok(!effective.is_empty())
}

/// Instructions that allow the given accesses to the device, and continue with what follows for
/// every other access. The program starts with its context in register 1, which does not change
/// (`struct bpf_cgroup_dev_ctx`: access and type in one word, major, minor).
fn rule(device: &Device) -> Vec<Instruction> {
    let kind = match device.kind {
        'b' => number::BLOCK,
        _ => number::CHARACTER,
    };
    let mut program = Vec::with_capacity(13);
    let withheld = withheld(device.access);
    if withheld != 0 {
        program.extend([
            make(code::LOAD_WORD, 0x12, 0, 0),
            make(code::SHIFT_RIGHT, 0x02, 0, 16),
            make(code::AND, 0x02, 0, withheld),
            make(code::JUMP_UNLESS_EQUAL, 0x02, 9, 0),
        ]);
    }
    program.extend([
        make(code::LOAD_WORD, 0x12, 0, 0),
        make(code::AND, 0x02, 0, 0xffff),
        make(code::JUMP_UNLESS_EQUAL, 0x02, 6, kind),
        make(code::LOAD_WORD, 0x12, 4, 0),
        make(code::JUMP_UNLESS_EQUAL, 0x02, 4, signed(device.major)),
        make(code::LOAD_WORD, 0x12, 8, 0),
        make(code::JUMP_UNLESS_EQUAL, 0x02, 2, signed(device.minor)),
        make(code::MOVE, 0x00, 0, 1),
        make(code::EXIT, 0x00, 0, 0),
    ]);
    program
}

/// The accesses that the container does not get: `BPF_DEVCG_ACC_…` of `linux/bpf.h`.
fn withheld(access: Access) -> i32 {
    [(access.make, 1), (access.read, 2), (access.write, 4)]
        .into_iter()
        .filter_map(|(given, bit)| (!given).then_some(bit))
        .sum()
}

/// The same bits.
fn signed(number: u32) -> i32 {
    i32::from_ne_bytes(number.to_ne_bytes())
}

#[repr(C)]
#[derive(Default)]
struct Query {
    target: RawFd,
    kind: u32,
    flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

/// The programs of the cgroup itself or (`EFFECTIVE`) all that decide about it, and how the former
/// were attached.
fn programs(cgroup: &OwnedFd, flags: u32) -> rustix::io::Result<(Vec<u32>, u32)> {
    let mut ids = vec![0u32; MAX_PROGRAMS];
    let mut query = Query {
        target: cgroup.as_raw_fd(),
        kind: number::CGROUP_DEVICE,
        flags,
        ids: ids.as_mut_ptr() as u64,
        count: u32::try_from(MAX_PROGRAMS).unwrap_or_default(),
        ..Query::default()
    };
    // SAFETY: `ids` has room for `count` numbers.
    unsafe { bpf(number::QUERY, &mut query) }?;
    ids.truncate(query.count as usize);
    Ok((ids, query.attach_flags))
}

#[repr(C)]
#[derive(Default)]
struct OpenById {
    id: u32,
    next: u32,
    flags: u32,
}

fn open(id: u32) -> rustix::io::Result<OwnedFd> {
    let mut attributes = OpenById { id, ..OpenById::default() };
    // SAFETY: the structure has no addresses in it.
    let fd = unsafe { bpf(number::OPEN_BY_ID, &mut attributes) }?;
    owned(fd)
}

fn owned(fd: libc::c_long) -> rustix::io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel has just made it for us, with close-on-exec like all of bpf(2)'s.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
#[derive(Default)]
struct Information {
    program: RawFd,
    size: u32,
    address: u64,
}

/// The beginning of `struct bpf_prog_info`; the kernel fills in as much as there is room for.
#[repr(C)]
#[derive(Default)]
struct ProgramInformation {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    machine_size: u32,
    size: u32,
    machine_address: u64,
    address: u64,
}

/// Reads the instructions of a program. Errors: `PERM` if the kernel never shows programs
/// (`kernel.kptr_restrict`, `net.core.bpf_jit_harden`).
fn instructions(program: &OwnedFd) -> rustix::io::Result<Vec<Instruction>> {
    let mut asked = ProgramInformation::default();
    information(program, &mut asked)?;
    let count = asked.size as usize / size_of::<Instruction>();
    let mut instructions = vec![Instruction::default(); count];
    let mut asked = ProgramInformation {
        size: asked.size,
        address: instructions.as_mut_ptr() as u64,
        ..ProgramInformation::default()
    };
    information(program, &mut asked)?;
    if asked.address == 0 || instructions.iter().all(|i| *i == Instruction::default()) {
        return Err(Errno::PERM);
    }
    Ok(instructions)
}

fn information(program: &OwnedFd, into: &mut ProgramInformation) -> rustix::io::Result<()> {
    let mut attributes = Information {
        program: program.as_raw_fd(),
        size: u32::try_from(size_of::<ProgramInformation>()).unwrap_or_default(),
        address: &raw mut *into as u64,
    };
    // SAFETY: `into` has the size that is passed. If it has an address for instructions, there is
    // room for `size` bytes.
    unsafe { bpf(number::INFORMATION, &mut attributes) }.map(drop)
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected: u32,
}

fn load(instructions: &[Instruction]) -> rustix::io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..13].copy_from_slice(b"oci_decorator");
    let mut attributes = Load {
        kind: number::CGROUP_DEVICE_PROGRAM,
        count: u32::try_from(instructions.len()).map_err(|_| Errno::FBIG)?,
        instructions: instructions.as_ptr() as u64,
        // The program calls no helper that requires a licence.
        licence: c"".as_ptr() as u64,
        name,
        expected: number::CGROUP_DEVICE,
        ..Load::default()
    };
    // SAFETY: the number of instructions is right, the licence ends with NUL, and there is no log.
    let fd = unsafe { bpf(number::LOAD, &mut attributes) }?;
    owned(fd)
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    target: RawFd,
    program: RawFd,
    kind: u32,
    flags: u32,
    replaced: RawFd,
}

/// Replaces a program in one call, so that the cgroup always has its rules.
fn replace(cgroup: &OwnedFd, old: &OwnedFd, new: &OwnedFd, flags: u32) -> rustix::io::Result<()> {
    let mut attributes = Attach {
        target: cgroup.as_raw_fd(),
        program: new.as_raw_fd(),
        kind: number::CGROUP_DEVICE,
        flags,
        replaced: 0,
    };
    // Without "multi", attaching a program replaces the only other one.
    if flags & number::ALLOW_MULTI != 0 {
        attributes.flags |= number::REPLACE;
        attributes.replaced = old.as_raw_fd();
    }
    // SAFETY: the structure has no addresses in it.
    unsafe { bpf(number::ATTACH, &mut attributes) }.map(drop)
}

#[cfg(test)]
mod tests;
