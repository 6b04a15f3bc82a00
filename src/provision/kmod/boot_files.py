"""What a guest boots: a kernel, some of its modules, and the programs that a loader needs.

They come from one place. A host that has the kernel has what its loader will run with, too. Where
the kernel is not installed, its distro's packages have it: the solver finds them in the archive and
on the base image of the Pin, and keeps them as it keeps the packages of builds.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfileobj
from typing import IO

from provision import distros
from provision.build.base_image import ensure_base
from provision.build.package_store import Closure, PackageStore, closure_key
from provision.build.solve import packages_request, solve
from provision.build.workspace import Settings
from provision.distros import family_of
from provision.engine.docker_api import Container, ContainerRequest
from provision.engine.scratch import container_owner
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root, lock, mark_used, replacing, shared_path
from provision.kmod.guest import Initramfs, NotTriedError
from provision.kmod.kernel_image import program_of
from provision.pin import Pin
from provision.progress import Note, Output, report
from provision.run import run
from provision.shipped import templates_dir

# What a loader and the guest's own scripts run.
PROGRAMS = (
    *("sh", "kmod", "modprobe", "rmmod", "awk", "mount", "chroot"),
    *("cat", "chmod", "cp", "dirname", "ln", "ls", "mkdir", "mknod", "mv", "od", "readlink", "rm"),
    *("sha256sum", "sleep", "sort", "stat", "timeout", "tr"),
)
_COLLECT = "guest/collect.sh"
_UNPACK = "guest/kernel.sh"
_WORK = "/provision/boot"
_LOCK = "boot-files"
# Seconds in which a container unpacks a kernel, on a slow machine.
_LIMIT_S = 900.0
_LINES = 10


@dataclass(frozen=True, slots=True)
class BootFiles:
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
    *,
    programs: Sequence[str] = PROGRAMS,
) -> Iterator[BootFiles]:
    """Yield what boots a kernel, as this host has it, or else as the distro of a Pin packages it.

    Args:
        modules: Those of the kernel's own that are needed; one that it lacks is left out.

    Raises:
        NotTriedError: The kernel is neither here nor packaged.
    """
    words = [kernel, " ".join(modules), *programs]
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
    if ran.status != 0:
        raise ProvisionError(
            f"The packages of the kernel {words[0]} could not be unpacked.",
            resolution="Run the command again with --verbose to see all that is printed.",
            details="\n".join(ran.said.splitlines()[-_LINES:]) or None,
        )


def _closure(settings: Settings, pin: Pin, kernel: str) -> Closure:
    """Return the packages of a kernel, on the base image of a Pin."""
    data, _release = distros.release_of(pin.distro)
    query = None if pin.tree else family_of(data).headers(data, kernel, pin.kernel.architecture)
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
    request = replace(asked, kernel=kernel, architecture=pin.kernel.architecture)
    return solve(settings.engine, request, PackageStore(settings.state))


def _fetched(store: PackageStore, closure: Closure) -> dict[str, Path]:
    return {
        one.location.rpartition("/")[2]: store.fetch(
            one.sha256, closure.urls.get(one.sha256, ()), name=one.name, size=one.size
        )
        for one in closure.packages
    }
