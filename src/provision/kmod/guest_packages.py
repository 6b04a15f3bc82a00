"""What a guest takes from the packages of its kernel's distro.

A guest boots a kernel, some of its modules, and the programs that a loader needs, all from one
place. A host that has the kernel has what its loader will run with, too. Where the kernel is not
installed, its distro's packages have it: the solver finds them in the archive and on the base image
of the Pin, and keeps them as it keeps the packages of builds.

A machine without QEMU gets the distro's package of it in a container of that base image, with no
network, no capabilities, no device, and no folder of the host. It emulates.
"""

from __future__ import annotations

import lzma
import os
import shlex
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import IO, NamedTuple

from provision.build.base_image import ensure_base
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.build.solve import closure_of, packages_request
from provision.build.workspace import Settings
from provision.distros.distro import release_of
from provision.distros.family import headers_of
from provision.engine.docker_api import Container, ContainerRequest, container_owner
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root, lock, mark_used, replacing, shared_path, templates_dir
from provision.host.facts import qemu_of
from provision.kmod.guest import (
    Files,
    Initramfs,
    NotTriedError,
    Qemu,
    how_to_install,
    package_of,
)
from provision.pin import Pin
from provision.progress import Note, Output, report
from provision.run import TimeLimitError, decompress, run

# What a loader and the guest's own scripts run.
_PROGRAMS = (
    *("sh", "kmod", "modprobe", "rmmod", "awk", "mount", "chroot"),
    *("cat", "chmod", "cp", "dirname", "ln", "ls", "mkdir", "mknod", "mv", "od", "readlink", "rm"),
    *("sha256sum", "sleep", "sort", "stat", "timeout", "tr"),
)
_COLLECT = "guest/collect.sh"
_UNPACK = "guest/kernel.sh"
_WORK = "/provision/boot"
_LOCK = "boot-files"
# Seconds in which a container does all of its work, on a slow machine.
_LIMIT_S = 900.0


class BootFiles(NamedTuple):
    """A kernel with its programs: an archive of ``templates/guest/collect.sh``."""

    archive: IO[bytes]

    def write_kernel(self, image: IO[bytes]) -> None:
        """Write to a file what starts the kernel soonest: its image, or the program in that."""
        with self._opened() as archive:
            content = archive.extractfile("kernel")
            if content is not None:
                whole = content.read()
                image.write(program_of(whole) or whole)

    def add_to(self, initramfs: Initramfs) -> None:
        """Add the modules and programs to an initramfs."""
        with self._opened() as archive:
            initramfs.add_archive(archive, "root/")

    def _opened(self) -> tarfile.TarFile:
        self.archive.seek(0)
        return tarfile.open(fileobj=self.archive, mode="r:")


@contextmanager
def boot_files(
    settings: Settings,
    pin: Pin,
    kernel: str,
    modules: Sequence[str],
) -> Iterator[BootFiles]:
    """Yield what boots a kernel, as this host has it, or else as the distro of a Pin packages it.

    Args:
        modules: Those of the kernel's own that are needed; one that it lacks is left out.

    Raises:
        NotTriedError: The kernel is neither here nor packaged.
    """
    words = [kernel, " ".join(modules), *_PROGRAMS]
    if has_kernel(settings.root, kernel):
        with tempfile.TemporaryFile() as archive:
            _collect_here(settings.root, archive, words)
            yield BootFiles(archive)
    else:
        with _collected_from_packages(settings, pin, words).open("rb") as archive:
            yield BootFiles(archive)


def has_kernel(root: Path, kernel: str) -> bool:
    """Return whether a kernel is installed under a root, with its modules."""
    tree = in_root(root, f"lib/modules/{kernel}")
    images = (in_root(root, f"boot/vmlinuz-{kernel}"), tree / "vmlinuz")
    return (tree / "modules.dep").is_file() and any(image.is_file() for image in images)


def _collect_here(root: Path, archive: IO[bytes], given: Sequence[str]) -> None:
    kernel, modules, *programs = given
    # The script writes below the root's own name, as modprobe prints it.
    place = "" if root == Path("/") else str(root)
    words = [shared_path(archive), kernel, place, modules, *programs]
    run(["/bin/sh", templates_dir() / _COLLECT, *words], why=f"collect what boots {kernel}")


def _collected_from_packages(settings: Settings, pin: Pin, words: Sequence[str]) -> Path:
    """Return the archive of a packaged kernel; it is kept: unpacking takes longer than a boot."""
    kernel = words[0]
    closure = _closure(settings, pin, kernel)
    store = PackageStore(settings.state)
    scripts = {name: (templates_dir() / name).read_text() for name in (_COLLECT, _UNPACK)}
    sums = sorted(package.sha256 for package in closure.packages)
    key = closure_key({"base": pin.base.digest, "packages": sums, "of": words, "by": scripts})
    path = store.boot / f"{key}.tar"
    waiting = "Another process unpacks a kernel; waiting for it"
    with lock(settings.state / "locks" / _LOCK, waiting=waiting):
        if path.is_file():
            mark_used(path)
            return path
        packages = _fetched(store, closure)
        report(Note(f"Unpacking {kernel}"))
        engine = settings.engine()
        request = ContainerRequest(
            ensure_base(engine, pin.base).id,
            owner=container_owner(settings.state, "boot"),
            network="none",
            environment={"LC_ALL": "C.UTF-8"},
            limit=_LIMIT_S,
        )
        with engine.container(request) as container, replacing(path) as archive:
            _unpack(container, packages, scripts, words)
            for _name, content in container.files(f"{_WORK}/out.tar"):
                copyfileobj(content, archive, 1 << 20)
    return path


def _unpack(
    container: Container,
    packages: Mapping[str, Path],
    scripts: Mapping[str, str],
    words: Sequence[str],
) -> None:
    container.put(packages, f"{_WORK}/packages")
    files = {Path(name).name: text.encode() for name, text in scripts.items()}
    arguments = "\0".join(words).encode()
    container.put({**files, "arguments": arguments}, _WORK)
    ran = container.run(
        f"cd {_WORK} && xargs -0 -a arguments sh kernel.sh {_WORK}/out.tar",
        on_line=lambda line: report(Output(line)),
    )
    ran.require(f"The packages of the kernel {words[0]} could not be unpacked.")


def _closure(settings: Settings, pin: Pin, kernel: str) -> Closure:
    data, _release = release_of(pin.distro)
    query = None if pin.tree else headers_of(data, kernel, pin.kernel.architecture)
    if query is None or not query.image or data.apt is None:
        raise NotTriedError(
            f"The kernel {kernel} is not installed here, and {data.name}'s packages of it are not"
            " known.",
            resolution="Try the artifact on a host that has the kernel (/boot/vmlinuz-"
            f"{kernel}): provision verify --boot {pin.image}",
        )
    try:
        return _solved(settings, pin, ("kmod", *query.image), kernel=kernel)
    except NotFoundError as error:
        raise NotTriedError(
            f"The kernel {kernel} is not installed here, and can't be had from {data.name}:"
            f" {error.message}",
            resolution=error.resolution,
            details=error.details,
        ) from error


def distro_packages(settings: Settings, pin: Pin, names: Sequence[str]) -> dict[str, Path]:
    """Return packages for the base image of a Pin, with those that they need: path by name."""
    return _fetched(PackageStore(settings.state), _solved(settings, pin, names))


def _solved(settings: Settings, pin: Pin, names: Sequence[str], *, kernel: str = "") -> Closure:
    asked = packages_request(settings, pin.distro, pin.base, tuple(names))
    request = asked._replace(kernel=kernel, architecture=pin.kernel.architecture)
    return closure_of(settings.engine, request, PackageStore(settings.state))


def _fetched(store: PackageStore, closure: Closure) -> dict[str, Path]:
    return {
        one.location.rpartition("/")[2]: store.fetch(
            one.sha256, closure.urls.get(one.sha256, ()), name=one.name, size=one.size
        )
        for one in closure.packages
    }


# The kernel within an image of x86: a program, compressed, behind the code that unpacks it. That
# code takes most of the time that an emulated processor needs for a boot. QEMU starts the program
# itself as well, if it has the entry of PVH. Sources: https://docs.kernel.org/arch/x86/boot.html,
# https://xenbits.xen.org/docs/unstable/misc/pvh.html.
_MAGIC_AT, _MAGIC = 0x202, b"HdrS"
# setup_sects; payload_offset and payload_length.
_SECTORS_AT, _PAYLOAD_AT = 0x1F1, 0x248
_SECTOR = 512
# What older headers mean by none.
_SECTORS = 4
# The type and the name of the ELF note XEN_ELFNOTE_PHYS32_ENTRY.
_PVH_NOTE = struct.pack("<I4s", 18, b"Xen\0")
# More than any kernel.
_LIMIT = 1 << 30


def program_of(image: bytes) -> bytes | None:
    """Return the program in an image; None: there is none that QEMU could start."""
    if image[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
        return None
    try:
        offset, length = struct.unpack_from("<II", image, _PAYLOAD_AT)
        begin = ((image[_SECTORS_AT] or _SECTORS) + 1) * _SECTOR + offset
        program = _decompressed(image[begin : begin + length])
    except (struct.error, zlib.error, lzma.LZMAError, OSError, ValueError, ProvisionError):
        # QEMU has it unpacked by its own code, and says what is wrong with it.
        return None
    return program if program is not None and _PVH_NOTE in program else None


def _decompressed(payload: bytes) -> bytes | None:
    """Return its content; but for gzip, whose own end says it, four bytes with the size follow."""
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31).decompress(payload)
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "kernel.zst"), Path(folder, "kernel")
            source.write_bytes(payload[:-4])
            decompress(source, target, limit=_LIMIT, why="start a kernel")
            return target.read_bytes()
    return None


_QEMU_WORK = "/provision/guest"
_QEMU_LOCK = "guest"
# Without their scripts for a whole system; libraries are found without a cache.
_UNPACK_QEMU = f"dpkg --unpack --force-all --force-unsafe-io {_QEMU_WORK}/packages/*.deb"
# The exit status of timeout(1) when it has ended a program.
_TIMED_OUT = 124
_FAILED = "'{}' failed in a container."


@contextmanager
def qemu_in_container(
    settings: Settings, pin: Pin, kernel: IO[bytes], initramfs: IO[bytes]
) -> Iterator[Qemu]:
    """Start a container with a QEMU for the kernel of a Pin; it is removed afterwards.

    Raises:
        NotTriedError: There can be none here.
    """
    machine = pin.kernel.architecture
    package = package_of(machine)
    data, _release = release_of(pin.distro)
    if data.apt is None or pin.tree is not None or machine != os.uname().machine:
        raise NotTriedError(
            f"There is no {qemu_of(machine)}, which boots a kernel to try modules in.",
            resolution=f"Install it: {how_to_install(machine)}",
        )
    with ExitStack() as opened:
        try:
            waiting = "Another process tries modules; waiting for it"
            opened.enter_context(lock(settings.state / "locks" / _QEMU_LOCK, waiting=waiting))
            packages = distro_packages(settings, pin, (package,))
            engine = settings.engine()
            request = ContainerRequest(
                ensure_base(engine, pin.base).id,
                owner=container_owner(settings.state, _QEMU_LOCK),
                network="none",
                environment={"LC_ALL": "C.UTF-8"},
                limit=_LIMIT_S,
                is_powerless=True,
            )
            container = opened.enter_context(engine.container(request))
            container.put(packages, f"{_QEMU_WORK}/packages")
            _run(container, _UNPACK_QEMU)
            files = {"kernel": Path(shared_path(kernel)), "initramfs": Path(shared_path(initramfs))}
            container.put(files, _QEMU_WORK)
        except ProvisionError as error:
            raise NotTriedError(
                f"There is no {qemu_of(machine)} here, and none in a container: {error.message}",
                resolution=f"Install it: {how_to_install(machine)}",
                details=error.details,
            ) from error
        yield _InContainer(container)


class _InContainer(NamedTuple):
    container: Container

    @property
    def files(self) -> Files:
        return Files(*(f"{_QEMU_WORK}/{name}" for name in Files._fields))

    def memory(self) -> str:
        return _run(self.container, "cat /proc/meminfo")

    def run(
        self,
        argv: Sequence[str],
        *,
        on_line: Callable[[str], None],
        first_within: float,  # noqa: ARG002 - of accelerators that may not work; this one emulates
        timeout: float,
    ) -> None:
        words = ["timeout", "--kill-after=5", f"{timeout:.0f}", *argv]
        ran = self.container.run(shlex.join(words), on_line=on_line)
        if ran.status == _TIMED_OUT:
            raise TimeLimitError(f"QEMU did not end within {timeout:g} s.", resolution=None)
        ran.require(_FAILED.format(argv[0]))

    def said(self) -> bytes:
        return self.container.read(self.files.console)


def _run(container: Container, script: str) -> str:
    ran = container.run(script, on_line=lambda line: report(Output(line)))
    ran.require(_FAILED.format(script.split(maxsplit=1)[0]))
    return ran.said
