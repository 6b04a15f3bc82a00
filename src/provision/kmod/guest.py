"""A virtual machine with one kernel, an initramfs, and nothing else: no disk, no network.

It boots in seconds, also without KVM, and needs no privileges. What it runs is the script ``/main``
of the initramfs; what that prints comes through a serial port of its own. The kernel's messages
come through another one, so that neither spoils the other. All files of a run are open and have no
name, and QEMU ends with this process: a run that is killed leaves nothing. Where this machine has
no QEMU, one elsewhere serves as well (``provision.kmod.guest_packages``).
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from io import BytesIO
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import IO, Literal, NamedTuple, Protocol

from provision.errors import NotFoundError, ProvisionError
from provision.files import shared_path, templates_dir
from provision.host.facts import find_qemu, qemu_of
from provision.progress import Note, report
from provision.run import TimeLimitError, stream

_MIB = 1 << 20
# What a distro's kernel takes for itself. The initramfs is there twice while it is unpacked.
_KERNEL_MIB = 384
_COPIES = 2.25
# Seconds until the first program runs. Emulated, a kernel needs three on an idle processor.
_STARTS_WITHIN_S = 120.0
# With KVM a kernel needs one; where KVM is offered and does not work, nothing ever comes.
_KVM_STARTS_WITHIN_S = 5.0
_KVM = Path("/dev/kvm")
_MEMORY = Path("/proc/meminfo")
_STARTED = "@started"
_ENDED = re.compile(r"@ended (\d+)")
# Of lines that the kernel prints: [    1.234567][  T123] text.
_STAMP = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d+\](?:\[ *[CT]\d+\])? ")
_OPTIONS = (
    # A crash ends the machine, and so does a processor that a module keeps for itself.
    *("panic=-1", "oops=panic", "softlockup_panic=1"),
    # Protects nobody here, and costs a third where it is emulated.
    "mitigations=off",
    *("rdinit=/init", "loglevel=4"),
)


class _Machine(NamedTuple):
    # Arguments; ``{console}`` and ``{report}`` are its character devices.
    words: tuple[str, ...]
    # A processor for emulation: without features that programs use wherever they find them, and
    # that cost an emulator most.
    processor: str
    # The kernel's console, and the port of the report.
    ports: tuple[str, str]
    # Debian's package of QEMU, and SUSE's; the RPM families have one name for all.
    package: str
    package_of_suse: str


_MACHINES = {
    "x86_64": _Machine(
        # RHEL's has no older one.
        ("-machine", "q35", "-serial", "chardev:console", "-serial", "chardev:report"),
        "max,avx=off,avx2=off",
        ("ttyS0", "ttyS1"),
        *("qemu-system-x86", "qemu-x86"),
    ),
    "aarch64": _Machine(
        ("-machine", "virt", "-serial", "chardev:console", "-device", "pci-serial,chardev=report"),
        "max,pauth=off,sve=off,lpa2=off",
        ("ttyAMA0", "ttyS0"),
        *("qemu-system-arm", "qemu-arm"),
    ),
}


class NotTriedError(NotFoundError):
    """Nothing was found out, because no guest can run here."""


class Files(NamedTuple):
    """Paths by which a QEMU finds what it boots, and where it writes what the kernel says."""

    kernel: str
    initramfs: str
    console: str


class Qemu(Protocol):
    """A QEMU, wherever it is."""

    @property
    def files(self) -> Files:
        """Its files."""

    def memory(self) -> str:
        """Return what ``/proc/meminfo`` of its machine says."""

    def run(
        self,
        argv: Sequence[str],
        *,
        on_line: Callable[[str], None],
        first_within: float,
        timeout: float,
    ) -> None:
        """Run it, passing on each line that it prints.

        Raises:
            TimeLimitError: It did not end within ``timeout`` seconds.
            ProvisionError: It failed.
        """

    def said(self) -> bytes:
        """Return what the kernel has said."""


# Makes one ready for a kernel and an initramfs.
Elsewhere = Callable[[IO[bytes], IO[bytes]], AbstractContextManager[Qemu]]


class Initramfs:
    """Writes an initramfs: an archive of cpio's format "newc", of which later entries win.

    Source: https://docs.kernel.org/driver-api/early-userspace/buffer-format.html.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._number = 0
        self._folders: set[PurePosixPath] = set()

    def add(self, path: str, content: bytes | Path, *, mode: int = 0o644) -> None:
        """Add a file."""
        with BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(0)
            self._file(path, mode, size, source)

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        text = target.encode()
        self._entry(path, 0o120777, len(text))
        self._stream.write(text)
        self._pad()

    def add_tree(self, path: str, folder: Path) -> None:
        """Add all files and links of a folder, as ``path``."""
        for parent, _folders, names in os.walk(folder):
            below = PurePosixPath(path, Path(parent).relative_to(folder))
            for name in sorted([*names, *(n for n in _folders if Path(parent, n).is_symlink())]):
                source = Path(parent, name)
                if source.is_symlink():
                    self.add_link(str(below / name), str(source.readlink()))
                elif source.is_file():
                    mode = source.stat().st_mode & 0o777
                    self.add(str(below / name), source, mode=mode)

    def add_archive(self, archive: tarfile.TarFile, prefix: str) -> None:
        """Add the files and links of a tar archive whose names begin with a prefix."""
        for member in archive:
            name = member.name.removeprefix("./")
            if not name.startswith(prefix):
                continue
            path = name.removeprefix(prefix)
            content = archive.extractfile(member) if member.isfile() else None
            if member.issym():
                self.add_link(path, member.linkname)
            elif content is not None:
                self._file(path, member.mode, member.size, content)

    def close(self, script: str) -> None:
        """Add what the guest runs, and end the archive.

        Args:
            script: For ``sh``; the guest ends with it.
        """
        self.add("init", (templates_dir() / "guest/init.sh").read_bytes(), mode=0o755)
        self.add("main", script.encode())
        self._head("TRAILER!!!", 0, 0)

    def _file(self, path: str, mode: int, size: int, content: IO[bytes]) -> None:
        self._entry(path, 0o100000 | mode, size)
        copyfileobj(content, self._stream)
        self._pad()

    def _entry(self, path: str, mode: int, size: int) -> None:
        for folder in reversed(PurePosixPath(path).parents[:-1]):
            if folder not in self._folders:
                self._folders.add(folder)
                self._head(str(folder), 0o040755, 0)
        self._head(path, mode, size)

    def _head(self, path: str, mode: int, size: int) -> None:
        name = path.encode() + b"\0"
        self._number += 1
        # ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
        # namesize, check
        fields = (self._number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name), 0)
        self._stream.write(b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        self._pad()

    def _pad(self) -> None:
        self._stream.write(bytes(-self._stream.tell() % 4))


class Ran(NamedTuple):
    """What became of a guest."""

    # ``ended``: its script did; ``crashed``: the kernel reset the machine; ``limit``: neither in
    # time.
    end: Literal["ended", "crashed", "limit"]
    # The script's exit status.
    status: int | None
    # What the script printed.
    lines: tuple[str, ...]
    # What the kernel said, without the times.
    console: tuple[str, ...]
    accelerator: str
    seconds: float


class _EndedError(Exception):
    """The guest's script has ended."""


def package_of(architecture: str) -> str:
    """Return Debian's package of a QEMU that boots kernels of an architecture."""
    return _machine(architecture).package


def how_to_install(architecture: str) -> str:
    """Return how this machine gets a QEMU that boots kernels of an architecture."""
    machine = _machine(architecture)
    return (
        f"apt-get install {machine.package} (RHEL, Fedora: dnf install qemu-kvm-core; SUSE: zypper"
        f" install {machine.package_of_suse})"
    )


def _machine(architecture: str) -> _Machine:
    machine = _MACHINES.get(architecture)
    if machine is None:
        raise NotTriedError(
            f"No kernel of the architecture '{architecture}' can be tried.",
            resolution=f"There are {', '.join(_MACHINES)}.",
        )
    return machine


class _Here(NamedTuple):
    kernel: IO[bytes]
    initramfs: IO[bytes]
    console: IO[bytes]

    @property
    def files(self) -> Files:
        return Files(*map(shared_path, (self.kernel, self.initramfs, self.console)))

    def memory(self) -> str:
        return _MEMORY.read_text()

    def run(
        self,
        argv: Sequence[str],
        *,
        on_line: Callable[[str], None],
        first_within: float,
        timeout: float,
    ) -> None:
        stream(
            argv,
            why="try modules in their kernel",
            on_line=on_line,
            timeout=timeout,
            first_within=first_within,
            is_isolated=False,
        )

    def said(self) -> bytes:
        self.console.seek(0)
        return self.console.read()


def run_guest(
    architecture: str,
    kernel: IO[bytes],
    initramfs: IO[bytes],
    *,
    limit: float,
    options: Sequence[str] = (),
    accelerators: Sequence[str] = (),
    elsewhere: Elsewhere | None = None,
) -> Ran:
    """Boot a kernel and let it run ``/main``.

    Args:
        kernel: The file with its image.
        limit: Seconds that the script may take.
        options: More of the kernel's command line.
        accelerators: This machine's QEMU's, of which the first that works is used; empty: KVM if
            it is offered, then emulation.
        elsewhere: Where there is a QEMU, if this machine has none; it emulates.

    Raises:
        NotTriedError: QEMU or memory is missing, or the kernel said nothing at all.
    """
    machine = _machine(architecture)
    program = find_qemu(architecture)
    with ExitStack() as opened:
        if program is not None:
            offered = os.access(_KVM, os.R_OK | os.W_OK) and os.uname().machine == architecture
            accelerators = accelerators or (("kvm", "tcg") if offered else ("tcg",))
            console = opened.enter_context(tempfile.TemporaryFile())
            qemu: Qemu = _Here(kernel, initramfs, console)
        elif elsewhere is not None:
            accelerators = ("tcg",)
            qemu = opened.enter_context(elsewhere(kernel, initramfs))
            program = qemu_of(architecture)
        else:
            raise NotTriedError(
                f"There is no {qemu_of(architecture)}, which boots a kernel to try modules in.",
                resolution=f"Install it: {how_to_install(architecture)}",
            )
        memory = _needed_memory(initramfs, qemu)
        for accelerator in accelerators:
            words = _words(machine, accelerator, memory, qemu.files, options)
            if ran := _run(qemu, [program, *words], accelerator, limit):
                return ran
            report(Note(f"The kernel does not start with {accelerator}"))
    raise NotTriedError(
        "The kernel did not start its first program, so nothing was tried.",
        resolution="It may have no driver for a serial port or for an initramfs: see"
        " 'CONFIG_SERIAL_8250' and 'CONFIG_BLK_DEV_INITRD' in its configuration.",
    )


def _needed_memory(initramfs: IO[bytes], qemu: Qemu) -> int:
    """Return the guest's memory in MiB, which QEMU's machine has."""
    size = os.fstat(initramfs.fileno()).st_size
    needed = _KERNEL_MIB + round(size * _COPIES / _MIB)
    found = re.search(r"^MemAvailable: +(\d+) kB$", qemu.memory(), re.MULTILINE)
    available = int(found[1]) >> 10 if found else needed
    if available < needed:
        raise NotTriedError(
            f"Trying the modules takes {needed} MiB of memory, and {available} MiB are free.",
            resolution="Stop something that takes memory, or try the artifact on another machine:"
            " provision verify --boot IMAGE",
        )
    return needed


def _words(
    machine: _Machine, accelerator: str, memory: int, files: Files, options: Sequence[str]
) -> list[str]:
    port, report_port = machine.ports
    line = [f"console={port}", f"report={report_port}", *_OPTIONS, *options]
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-accel", accelerator, "-smp", "1", "-m", str(memory)),
        *("-cpu", "host" if accelerator == "kvm" else machine.processor),
        *("-chardev", f"file,id=console,path={files.console}"),
        *("-chardev", "file,id=report,path=/proc/self/fd/1"),
        *machine.words,
        *("-kernel", files.kernel, "-initrd", files.initramfs),
        *("-append", " ".join(line)),
    ]


def _run(qemu: Qemu, argv: Sequence[str], accelerator: str, limit: float) -> Ran | None:
    """Run QEMU; None: no program of the guest ran in time."""
    lines: list[str] = []
    statuses: list[int] = []

    def hear(line: str) -> None:
        line = line.rstrip("\r")
        if line == _STARTED:
            lines.append(line)
        elif found := _ENDED.fullmatch(line):
            statuses.append(int(found[1]))
            raise _EndedError
        elif lines:
            lines.append(line)

    begun = time.monotonic()
    start = _KVM_STARTS_WITHIN_S if accelerator == "kvm" else _STARTS_WITHIN_S
    end: Literal["ended", "crashed", "limit"] = "crashed"
    try:
        qemu.run(argv, on_line=hear, first_within=start, timeout=start + limit)
    except _EndedError:
        end = "ended"
    except TimeLimitError:
        end = "limit"
    except ProvisionError as error:
        if accelerator == "kvm":
            return None
        raise NotTriedError(
            "QEMU did not start, so nothing was tried.",
            resolution="See what it says: provision verify --boot --verbose IMAGE",
            details=error.details,
        ) from error
    if not lines:
        return None
    console = qemu.said().decode(errors="replace").splitlines()
    return Ran(
        end,
        statuses[0] if statuses else None,
        tuple(lines[1:]),
        tuple(_STAMP.sub("", line.rstrip("\r")) for line in console),
        accelerator,
        time.monotonic() - begun,
    )
