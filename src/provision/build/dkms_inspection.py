"""Evaluates the dkms.conf of a source in a container without a network."""

from __future__ import annotations

import hashlib
import io
import re
import shlex
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.build.base_image import ensure_base
from provision.engine.containers import Container, ContainerRequest
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError, UsageError
from provision.files import lock
from provision.pin import BasePin
from provision.progress import Note, Output, Progress, silent
from provision.shipped import templates_dir

# A source has some MB; the kernel's own graphics drivers have 300.
MAX_BYTES = 512 << 20
MAX_FILES = 100_000
_LIMIT_S = 600.0
_PAIR = re.compile(r"0x([0-9a-f]{4})\D+0x([0-9a-f]{4})")
_WORK = "/provision"
_TREE = f"{_WORK}/tree"
_OUT = f"{_WORK}/out"
_PACKAGE = "package.deb"
_SOURCE = "source.tar"
# The caller ships, or fetches and checks, these files. Only the dkms.conf in them is run.
_UNPACK = {
    _PACKAGE: f"dpkg-deb --extract {_WORK}/{_PACKAGE} .",
    _SOURCE: f"tar --no-same-owner -xf {_WORK}/{_SOURCE}",
}


@dataclass(frozen=True, slots=True)
class SourceToInspect:
    """A source with a dkms.conf."""

    path: Path
    name: str
    kernel: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """The statements of a source about itself.

    Attributes:
        variables: The variables of the dkms.conf, for
            ``provision.sources.dkms_conf.parse_variables``.
        pci: PCI devices that are named by numbers: vendor and device, four digits each.
    """

    variables: bytes
    conf: str
    unset: tuple[str, ...]
    licences: tuple[str, ...]
    pci: tuple[tuple[str, str], ...]


def inspect_source(
    engine: Engine,
    base: BasePin,
    source: SourceToInspect,
    *,
    state: Path,
    progress: Progress = silent,
) -> Inspected:
    """Evaluate a dkms.conf in a container of a base image."""
    file = _PACKAGE if source.path.is_file() else _SOURCE
    script = (templates_dir() / "dkms/dkms.bash").read_bytes()
    files = {"dkms.bash": script, file: _bytes(source)}
    where = f"inspect {source.name} {state.resolve()}"
    owner = hashlib.sha256(where.encode()).hexdigest()[:32]
    image = ensure_base(engine, base, progress=progress)
    request = ContainerRequest(image_id=image.id, owner=owner, network="none", limit=_LIMIT_S)
    progress(Note(f"Evaluating the dkms.conf of {source.name}"))
    with (
        lock(state / "locks" / f"inspect-{owner}"),
        engine.container(request) as container,
    ):
        container.put(files, _WORK)
        command = (
            f"mkdir {_TREE} && cd {_TREE} && {_UNPACK[file]}"
            f" && bash {_WORK}/dkms.bash inspect {shlex.quote(source.kernel)}"
            f" {shlex.quote(source.architecture)} {_OUT}"
        )
        ran = container.run(command, on_line=lambda line: progress(Output(line)))
        if ran.status != 0:
            raise _refused(source, ran.said)
        return _inspected(container)


def _bytes(source: SourceToInspect) -> bytes:
    """Return the package, or a tar file of the folder without what git keeps."""
    if source.path.is_file():
        if source.path.stat().st_size > MAX_BYTES:
            raise _too_large(source)
        return source.path.read_bytes()
    buffer = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for count, path in enumerate(sorted(source.path.rglob("*"))):
            name = path.relative_to(source.path)
            if name.parts[0] == ".git" or not (path.is_symlink() or path.is_file()):
                continue
            size += path.lstat().st_size
            if size > MAX_BYTES or count > MAX_FILES:
                raise _too_large(source)
            archive.add(path, arcname=str(name), recursive=False)
    return buffer.getvalue()


def _too_large(source: SourceToInspect) -> ProvisionError:
    return ProvisionError(
        f"'{source.name}' is too large to be inspected: more than {MAX_BYTES >> 20} MiB or"
        f" {MAX_FILES} files.",
        resolution="Give the folder with the driver's source and its dkms.conf only.",
    )


def _refused(source: SourceToInspect, said: str) -> UsageError:
    lines = said.splitlines()
    complaints = [line.removeprefix("dkms: ") for line in lines if line.startswith("dkms: ")]
    reason = complaints[0] if complaints else "it can't be evaluated"
    return UsageError(
        f"The dkms.conf of '{source.name}' can't be taken: {reason.rstrip('.')}.",
        resolution="A dkms.conf only sets variables. Where the source has a template of it"
        " (dkms.conf.in), run the vendor's build first, and give the folder that this makes.",
        details="\n".join(lines[-20:]),
    )


def _inspected(container: Container) -> Inspected:
    def lines(name: str) -> Sequence[str]:
        return container.read(f"{_OUT}/{name}").decode(errors="replace").splitlines()

    spdx = [line.partition(":")[2].strip() for line in lines("spdx")]
    modules = [match[1] for line in lines("licences") if (match := re.search(r'"([^"]+)"', line))]
    pairs = [match for line in lines("pci") if (match := _PAIR.search(line.lower()))]
    return Inspected(
        variables=container.read(f"{_OUT}/variables"),
        conf=container.read(f"{_OUT}/conf").decode(errors="replace"),
        unset=tuple(dict.fromkeys(lines("unset"))),
        licences=tuple(
            dict.fromkeys([*filter(None, spdx), *(f'MODULE_LICENSE("{text}")' for text in modules)])
        ),
        pci=tuple(dict.fromkeys((pair[1], pair[2]) for pair in pairs)),
    )
