"""QEMU in a container of a base image, for machines that have none.

The container gets the distro's own package of it, a kernel and an initramfs: no network, no
capabilities, no device, and no folder of the host. It emulates.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision import distros
from provision.build.base_image import ensure_base
from provision.build.workspace import Settings
from provision.engine.docker_api import Container, ContainerRequest, container_owner
from provision.errors import ProvisionError
from provision.files import lock, shared_path
from provision.kmod.boot_files import distro_packages
from provision.kmod.guest import (
    Files,
    NotTriedError,
    Qemu,
    how_to_install,
    package_of,
    qemu_of,
)
from provision.pin import Pin
from provision.progress import Output, report
from provision.run import TimeLimitError

_WORK = "/provision/guest"
_LOCK = "guest"
# Without their scripts for a whole system; libraries are found without a cache.
_UNPACK = f"dpkg --unpack --force-all --force-unsafe-io {_WORK}/packages/*.deb"
# Seconds for all of it, and the exit status of timeout(1) when it has ended a program.
_LIMIT_S = 900.0
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
    data, _release = distros.release_of(pin.distro)
    if data.apt is None or pin.tree is not None or machine != os.uname().machine:
        raise NotTriedError(
            f"There is no {qemu_of(machine)}, which boots a kernel to try modules in.",
            resolution=f"Install it: {how_to_install(machine)}",
        )
    with ExitStack() as opened:
        try:
            waiting = "Another process tries modules; waiting for it"
            opened.enter_context(lock(settings.state / "locks" / _LOCK, waiting=waiting))
            packages = distro_packages(settings, pin, (package,))
            engine = settings.engine()
            request = ContainerRequest(
                ensure_base(engine, pin.base).id,
                owner=container_owner(settings.state, _LOCK),
                network="none",
                environment={"LC_ALL": "C.UTF-8"},
                limit=_LIMIT_S,
                is_powerless=True,
            )
            container = opened.enter_context(engine.container(request))
            container.put(packages, f"{_WORK}/packages")
            _run(container, _UNPACK)
            files = {"kernel": Path(shared_path(kernel)), "initramfs": Path(shared_path(initramfs))}
            container.put(files, _WORK)
        except ProvisionError as error:
            raise NotTriedError(
                f"There is no {qemu_of(machine)} here, and none in a container: {error.message}",
                resolution=f"Install it: {how_to_install(machine)}",
                details=error.details,
            ) from error
        yield _InContainer(container)


@dataclass(frozen=True, slots=True)
class _InContainer:
    container: Container

    @property
    def files(self) -> Files:
        return Files(*(f"{_WORK}/{name}" for name in Files._fields))

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
