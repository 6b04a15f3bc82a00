//! Gives the cgroup of an existing container the right to use devices.
//!
//! Version 1 of cgroups has a file for this. Version 2 has BPF programs of the
//! process's cgroup or of one above. At a `daemon-reload`, systemd reverts what a hook changes
//! there. The front ends that edit the spec are not affected (`docs/reference/oci-decorator.md`).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{pidfd_send_signal, waitid, Signal, WaitId, WaitIdOptions};

use crate::apply::namespace::{checked, Process};
use crate::error::{Error, Result};
use crate::host::rootfs::{mountinfo, MountPoint};
use crate::model::edits::{Access, Device};

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

fn allow_by_program(devices: &[Device], folder: &Path, id: &str) -> Result<()> {
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
        add_rules(cgroup, devices).map_err(fail)?;
    }
    if !obeys_others(&cgroups).map_err(fail)? {
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

// All BPF programs of a cgroup must allow an access, so an additional program can't allow anything.
// Each program is therefore replaced by itself with our rules in front: what was allowed stays
// allowed, and what was denied stays denied, except for our devices.
// <https://docs.kernel.org/admin-guide/cgroup-v2.html#device-controller>

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
fn add_rules(cgroup: &OwnedFd, devices: &[Device]) -> rustix::io::Result<()> {
    let devices = devices.iter().filter(|device| device.needs_rule());
    let rules: Vec<Instruction> = devices.flat_map(rule).collect();
    if rules.is_empty() {
        return Ok(());
    }
    let (ids, flags) = programs(cgroup, 0)?;
    for id in ids {
        let old = open_program(id)?;
        let existing = instructions(&old)?;
        if existing.starts_with(&rules) {
            continue;
        }
        let new = load_program(&[rules.as_slice(), &existing].concat())?;
        replace_program(cgroup, &old, &new, flags)?;
    }
    Ok(())
}

/// True if the first cgroup obeys programs that none of the cgroups has itself: those of others above.
fn obeys_others(cgroups: &[OwnedFd]) -> rustix::io::Result<bool> {
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

fn open_program(id: u32) -> rustix::io::Result<OwnedFd> {
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

fn load_program(instructions: &[Instruction]) -> rustix::io::Result<OwnedFd> {
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
fn replace_program(
    cgroup: &OwnedFd,
    old: &OwnedFd,
    new: &OwnedFd,
    flags: u32,
) -> rustix::io::Result<()> {
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

/// Calls bpf(2) with one of its structures.
///
/// # Safety
/// Every address in the structure must be valid for what the command does with it.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> rustix::io::Result<libc::c_long> {
    let size = size_of::<T>();
    // SAFETY: the structure has the size that is passed; the caller answers for its addresses.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    checked(result)
}

/// Longer than a look at some nodes takes.
const CHILD: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Flags of `linux/sched.h`.
const INTO_CGROUP: u64 = 0x2_0000_0000;
const PIDFD: u64 = 0x1000;
/// Waits for children that end without a signal too, which this process may ignore.
const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(0x4000_0000);

/// `struct clone_args` of `linux/sched.h`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    handle: u64,
    _child: u64,
    _parent: u64,
    _signal: u64,
    _stack: [u64; 5],
    cgroup: u64,
}

/// The first device that processes in the cgroup must not use. A child looks from there: access(2)
/// heeds the rules for devices and opens none. Errors: the child couldn't start or end there.
fn forbidden_in<'d>(
    cgroup: &OwnedFd,
    devices: &'d [Device],
) -> rustix::io::Result<Option<&'d Device>> {
    let modes = devices.iter().map(|device| {
        let read = if device.access.read { libc::R_OK } else { 0 };
        let write = if device.access.write { libc::W_OK } else { 0 };
        let path = CString::new(&*device.source).map_err(|_| Errno::INVAL)?;
        Ok((path, read | write))
    });
    let modes = modes.collect::<rustix::io::Result<Vec<_>>>()?;
    let mut handle: RawFd = -1;
    let mut arguments = CloneArguments {
        flags: INTO_CGROUP | PIDFD,
        handle: &raw mut handle as u64,
        cgroup: u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?,
        ..CloneArguments::default()
    };
    // SAFETY: the structure has its size, and its address is valid. This process has one thread, and
    // the child neither allocates nor returns.
    let pid = unsafe {
        let size = size_of::<CloneArguments>();
        checked(libc::syscall(libc::SYS_clone3, &raw mut arguments, size))?
    };
    if pid == 0 {
        let is_forbidden = |(path, mode): &(CString, libc::c_int)| {
            // SAFETY: the path ends with NUL.
            let looked = unsafe { libc::access(path.as_ptr(), *mode) };
            looked != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
        };
        let found = modes.iter().position(is_forbidden);
        let code = found.map_or(0, |at| i32::try_from(at + 1).unwrap_or(i32::MAX).min(255));
        // SAFETY: nothing of this process runs any more.
        unsafe { libc::_exit(code) };
    }
    // SAFETY: the kernel has just made it for us, with close-on-exec.
    let child = unsafe { OwnedFd::from_raw_fd(handle) };
    let mut one = [PollFd::new(&child, PollFlags::IN)];
    if poll(&mut one, Some(&CHILD))? == 0 {
        pidfd_send_signal(&child, Signal::KILL)?;
    }
    let ended = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | ALL)?;
    match ended.and_then(|ended| ended.exit_status()) {
        Some(0) => Ok(None),
        Some(code) => Ok(usize::try_from(code - 1).ok().and_then(|at| devices.get(at))),
        None => Err(Errno::TIMEDOUT),
    }
}

#[cfg(test)]
mod tests;
