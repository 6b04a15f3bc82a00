"""A Python for hosts that have none: a distro's packages with every library that they need.

The result is one archive that is unpacked at ``/``. It runs whatever C library the host has, or
where it has none (docs/decisions/09-other-systems.md).
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import StringConstraints, ValidationError

from provision import distros
from provision.build.base_image import base_request, ensure_base, find_base
from provision.build.diagnosis import BuildError, source_errors
from provision.build.dockerfile import STEP, fill_template, program_text
from provision.build.image import BuildLog, labelled_image, run_build
from provision.build.package_store import PackageStore
from provision.build.provenance import is_built_here, record_built, with_own_cache
from provision.build.request import choose_distro
from provision.build.solve import packages_request, solve
from provision.build.workspace import Settings
from provision.distros.debian.relations import upstream_version
from provision.engine.docker_api import BuildOptions, Image
from provision.engine.scratch import scratch
from provision.engine.stream import BuildStream
from provision.engine.transfer import extract
from provision.errors import NotFoundError, UsageError
from provision.files import copy_output, lock, replacing, sha256_file
from provision.pin import BasePin, ClosurePackage, Digested, DistroPin, Name, PackageVersion
from provision.progress import Note, report
from provision.shipped import templates_dir

DEFAULT_PREFIX = "/opt/provision/python"
# Two folders or more: an archive of '/opt' itself would clash with what is there. ELF headers and
# scripts' first lines name it, so no blanks.
Prefix = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*){2,}$")]
DIGEST_LABEL = "provision.python.digest"
_PYTHON = "python3"
# patchelf gives programs their own loader and libraries; wheels expect libstdc++ on every host.
# Registries are read by skopeo, which hosts without packages lack too.
_PACKAGES = (_PYTHON, "libstdc++6", "patchelf", "skopeo")
_TEMPLATES = ("python/Dockerfile.j2", "macros/image.j2")
_INSTALLER = "apt/install.sh"
_TREE = "python_tree.py"
_LAST_LINES = 20


class PythonPin(Digested):
    """The inputs of a host's Python."""

    # Python's own, such as ``3.11.2``.
    version: Annotated[str, StringConstraints(pattern=r"^3(\.[0-9]+)+$")]
    package: PackageVersion
    # Its path on hosts; programs contain the absolute path of their loader.
    prefix: Prefix
    # As ``uname -m`` prints it.
    architecture: Name
    distro: DistroPin
    base: BasePin
    closure: tuple[ClosurePackage, ...]
    # Raised by hand when what we ship can give the same packages another tree.
    format: Literal[1] = 1

    @property
    def image(self) -> str:
        """The name of the image with the result."""
        return f"provision/host-python:{self.version}-{self.short_digest}"

    @property
    def archive_name(self) -> str:
        """The usual name of the archive."""
        return f"provision-python-{self.version}-{self.architecture}.tar.gz"


@dataclass(frozen=True, slots=True)
class PythonRequest:
    """The options of an archive."""

    # Whose Python, such as ``debian:12``; None: this machine's.
    distro: str | None
    prefix: str
    # The archive, or a folder that gets it under its usual name.
    output: Path
    # Network of the container that downloads; None: what provision.toml says.

    def path(self, pin: PythonPin) -> Path:
        """Return the path of the archive."""
        return self.output / pin.archive_name if self.output.is_dir() else self.output


@dataclass(frozen=True, slots=True)
class HostPython:
    """A finished archive."""

    pin: PythonPin
    path: Path
    sha256: str
    size: int
    built: bool


def resolve_python(settings: Settings, request: PythonRequest) -> PythonPin:
    """Let the distro's solver find the packages of a Python, and download them."""
    distro = choose_distro(settings, request.distro)
    data, release = distros.release_of(distro)
    if data.apt is None:
        raise UsageError(
            f"A Python can't be assembled from the packages of {data.name}.",
            resolution="Leave out --distro, or name Debian or Ubuntu: --distro debian:12. The host"
            " may run any distro.",
        )
    base = find_base(settings.engine(), base_request(settings, distro))
    asked = packages_request(settings, distro, base, _PACKAGES)
    # Security updates of Python and OpenSSL count more than the packages of an earlier run.
    closure = solve(settings.engine, asked, PackageStore(settings.state), update=True)
    version = next((tool.version for tool in closure.tools if tool.name == _PYTHON), None)
    if version is None:
        raise NotFoundError(
            f"{data.name} {release.version} has no package '{_PYTHON}'.",
            resolution="Name a complete mirror in /etc/provision/provision.toml:"
            f' [distros.{distro.id}.archive] mirror = "https://…".',
        )
    try:
        return PythonPin(
            version=upstream_version(version),
            package=version,
            prefix=request.prefix,
            architecture=asked.architecture,
            distro=distro,
            base=base,
            closure=closure.packages,
        )
    except ValidationError as error:
        raise UsageError(
            f"A Python can't be made for '{request.prefix}'.",
            resolution="Give an absolute path of two folders or more, of letters, digits and"
            " ._+-, such as /opt/provision/python.",
            details="\n".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            ),
        ) from error


def make_python(settings: Settings, request: PythonRequest) -> HostPython:
    """Make the archive; it is assembled unless the engine already has the result."""
    pin = resolve_python(settings, request)
    waiting = f"Another process is building {pin.image}; waiting for it"
    with lock(settings.state / "locks" / pin.short_digest, waiting=waiting):
        found = find_image(settings, pin)
        image = found or _build(settings, pin)
    target = request.path(pin)
    with scratch(settings.state, "host-python") as folder:
        tree = folder / "tree"
        extract(settings.engine(), image, tree, state=settings.state)
        report(Note(f"Packing {target}"))
        # The target may be a pipe, which nobody reads again.
        archive = folder / "archive"
        pack_tree(tree, pin.prefix, archive)
        copy_output(archive, target)
        sha256, size = sha256_file(archive), archive.stat().st_size
    return HostPython(pin, target, sha256, size, built=found is None)


def find_image(settings: Settings, pin: PythonPin) -> Image | None:
    """Return the image of a pin if it was built here, or None."""
    image = settings.engine().image(pin.image)
    if image is None or image.labels.get(DIGEST_LABEL) != pin.digest:
        return None
    return image if is_built_here(settings.state, image) else None


def _sources() -> Mapping[str, str]:
    folder = templates_dir()
    return {name: (folder / name).read_text() for name in _TEMPLATES}


def _programs() -> Mapping[str, bytes]:
    return {
        "install.sh": (templates_dir() / _INSTALLER).read_bytes(),
        _TREE: resources.files(__package__).joinpath(_TREE).read_bytes(),
        STEP: program_text(STEP),
    }


def build_context(pin: PythonPin, store: PackageStore) -> dict[str, bytes | Path]:
    """Return the build context of a pin: content by path, or the file that has it."""
    labels = {
        "org.opencontainers.image.title": f"Python {pin.version} for hosts without one",
        "org.opencontainers.image.version": pin.version,
        "org.opencontainers.image.base.name": pin.base.image,
        "org.opencontainers.image.base.digest": pin.base.digest,
        "provision.python": pin.canonical_json(),
        DIGEST_LABEL: pin.digest,
    }
    dockerfile = fill_template(_TEMPLATES[0], _sources(), {"pin": pin, "labels": labels})
    facts = {
        "prefix": pin.prefix,
        "version": pin.version,
        "package": pin.package,
        "distro": pin.distro.name,
        "digest": pin.digest,
    }
    names = {package.location.rpartition("/")[2]: package.sha256 for package in pin.closure}
    sums = "".join(f"{sha256}  {name}\n" for name, sha256 in names.items())
    return {
        "Dockerfile": dockerfile.encode(),
        "python.json": json.dumps(facts, indent=1).encode(),
        "packages.sha256": sums.encode(),
        **{f"packages/{name}": store.path(sha256) for name, sha256 in names.items()},
        **_programs(),
    }


def _build(settings: Settings, pin: PythonPin) -> Image:
    engine = settings.engine()
    base = ensure_base(engine, pin.base)
    log = settings.state / "logs" / f"host-python-{pin.short_digest}.log"
    with BuildLog(log) as stream:
        built = run_build(
            engine,
            f"Python {pin.version}",
            with_own_cache(build_context(pin, PackageStore(settings.state)), settings.state),
            BuildOptions({"BASE_IMAGE": base.id}, "none"),
            stream,
            partial(_failed, pin, log),
        )
    image = labelled_image(engine, built, DIGEST_LABEL, pin.digest)
    record_built(settings.state, image.id, pin.image)
    engine.tag(image.id, pin.image)
    return image


def _failed(pin: PythonPin, log: Path, stream: BuildStream) -> BuildError:
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = [f"Step {step.number}/{stream.total}: {step.instruction}"] if step else []
    ending = [*where, *lines[-_LAST_LINES:], stream.error or "", f"Whole output: {log}"]
    return BuildError(
        f"Python {pin.version} could not be assembled.",
        resolution="Please report the lines above, which are the failing step's last ones. Another"
        " distro's Python may do: --distro debian:12.",
        details="\n".join(ending),
        steps=stream.steps,
        source_errors=source_errors(lines),
        log=log,
    )


def pack_tree(tree: Path, prefix: str, target: Path) -> None:
    """Write a gzip-compressed tar archive to be unpacked at ``/``; it appears when complete.

    Folders above the prefix are left out: on some hosts ``/opt`` is a link, which an archive that
    has it as a folder would replace.

    Args:
        tree: The folder that becomes ``prefix``.
    """
    with (
        replacing(target) as stream,
        gzip.GzipFile("", "wb", 9, stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in [tree, *sorted(tree.rglob("*"))]:
            _add(archive, path, f"{prefix[1:]}/{path.relative_to(tree)}".removesuffix("/."))


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = archive.gettarinfo(path, name)
    # Hard links are files of their own: their order would depend on the file system.
    if entry.islnk():
        entry.type, entry.size, entry.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    if entry.isreg():
        with path.open("rb") as content:
            archive.addfile(entry, content)
    else:
        archive.addfile(entry)
