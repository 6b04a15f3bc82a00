"""The pin of a Python for hosts, the build context it is rendered to, and its image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints

from provision.build.base_image import ensure_base
from provision.build.diagnosis import BuildError, BuildFailure, source_errors
from provision.build.engine_build import EngineBuild, labelled_image, run_build
from provision.build.templates import digest_of, fill_template
from provision.engine.docker_api import BuildOptions, Engine, Image
from provision.engine.stream import BuildStream
from provision.pin import (
    BasePin,
    Digested,
    DistroPin,
    FilePin,
    Name,
    PackagePin,
    PackageVersion,
    Sha256,
)
from provision.progress import Progress

DEFAULT_PREFIX = "/opt/provision/python"
# Names go into file names and RUN lines; Debian's have '+' and '~' too.
_FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~-]*$")]
# Two folders or more: an archive of '/opt' itself would clash with what is there. ELF headers and
# scripts' first lines name it, so no blanks.
Prefix = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*){2,}$")]
DIGEST_LABEL = "provision.python.digest"
_DOCKERFILE = "python/Dockerfile.j2"
_MACROS = ("macros/apt.j2", "macros/image.j2")
_HELPERS = ("python/apt-sources.sh",)
# Its name in the build container, and the file that it is.
_BUNDLER = "bundle.py"
_BUNDLER_FILE = "relocate.py"
_LAST_LINES = 20


class SourceFilePin(FilePin):
    """A file of the source package."""

    name: _FileName


class PythonPin(Digested):
    """The inputs of a host's Python.

    Attributes:
        version: Python's own, such as ``3.11.2``.
        package: Version of the distro's source package.
        prefix: Its path on hosts; programs contain the absolute path of their loader.
        architecture: As ``uname -m`` prints it.
        distro: The distro that its source and libraries come from.
        base: The base image of the build.
        original: The source as upstream released it.
        patches: The distro's changes.
        packages: Build tools and libraries.
        template: Digest of the Dockerfile's template and its helpers.
        keyring: Digest of the archive's keys, if they are not the distro's own.
    """

    version: Annotated[str, StringConstraints(pattern=r"^3(\.[0-9]+)+$")]
    package: PackageVersion
    prefix: Prefix
    architecture: Name
    distro: DistroPin
    base: BasePin
    original: SourceFilePin
    patches: SourceFilePin
    packages: tuple[PackagePin, ...]
    template: Sha256
    keyring: Sha256 | None = None

    @property
    def image(self) -> str:
        """The name of the image with the result."""
        return f"provision/host-python:{self.version}-{self.short_digest}"

    @property
    def archive_name(self) -> str:
        """The usual name of the archive."""
        return f"provision-python-{self.version}-{self.architecture}.tar.gz"


@dataclass(frozen=True, slots=True)
class PythonTemplates:
    """The templates of the build context.

    Attributes:
        sources: Jinja sources by name.
        helpers: Files that are copied into the context, by name.
    """

    sources: Mapping[str, str]
    helpers: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Sha256 over names and contents, as 64 hexadecimal digits."""
        return digest_of(self.sources, self.helpers)


def templates_of(folder: Path) -> PythonTemplates:
    """Read the templates from the ``templates`` folder.

    Raises:
        OSError: It lacks a file.
    """
    return PythonTemplates(
        sources={name: (folder / name).read_text() for name in (_DOCKERFILE, *_MACROS)},
        helpers={Path(name).name: (folder / name).read_bytes() for name in _HELPERS}
        | {_BUNDLER: resources.files(__package__).joinpath(_BUNDLER_FILE).read_bytes()},
    )


def render_python(pin: PythonPin, templates: PythonTemplates) -> dict[str, bytes]:
    """Return the build context without the sources: content by path."""
    text = fill_template(_DOCKERFILE, templates.sources, {"pin": pin, "labels": _labels(pin)})
    plan = {"prefix": pin.prefix, "version": pin.version, "digest": pin.digest}
    plan |= {"distro": f"{pin.distro.id}:{pin.distro.version}", "package": pin.package}
    return {
        "Dockerfile": text.encode(),
        "bundle.json": json.dumps(plan, indent=1).encode(),
        **templates.helpers,
    }


def _labels(pin: PythonPin) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"Python {pin.version} for hosts without one",
        "org.opencontainers.image.version": pin.version,
        "org.opencontainers.image.base.name": pin.base.image,
        "org.opencontainers.image.base.digest": pin.base.digest,
        "provision.python": pin.canonical_json(),
        DIGEST_LABEL: pin.digest,
    }


def find_image(engine: Engine, pin: PythonPin) -> Image | None:
    """Return the image of a pin, or None if the engine lacks it."""
    image = engine.image(pin.image)
    return image if image and image.labels.get(DIGEST_LABEL) == pin.digest else None


@dataclass(frozen=True, slots=True)
class PythonBuild:
    """The inputs and options of a build.

    Attributes:
        pin: Names the result.
        files: The build context.
        build_args: Values that can't change the result.
        network: Network of the build containers; None: the engine's default.
        log: Where the whole output goes.
    """

    pin: PythonPin
    files: Mapping[str, bytes | Path]
    build_args: Mapping[str, str]
    network: str | None
    log: Path


def build_image(engine: Engine, build: PythonBuild, *, progress: Progress) -> Image:
    """Build the image of a pin and tag it.

    Raises:
        BuildError: A step failed; has its last lines.
        EngineLostError: The engine went away.
    """
    pin = build.pin
    base = ensure_base(engine, pin.base, progress=progress)
    options = BuildOptions({**build.build_args, "BASE_IMAGE": base.id}, build.network)
    run = EngineBuild(
        f"Python {pin.version}",
        build.files,
        options,
        build.log,
        lambda stream: _failed(pin, stream, build.log),
    )
    build.log.parent.mkdir(parents=True, exist_ok=True)
    with build.log.open("w", encoding="utf-8") as log:
        stream = run_build(engine, run, log, progress)
    image = labelled_image(engine, stream, DIGEST_LABEL, pin.digest)
    engine.tag(image.id, pin.image)
    return image


def _failed(pin: PythonPin, stream: BuildStream, log: Path) -> BuildError:
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = [f"Step {step.number}/{stream.total}: {step.instruction}"] if step else []
    ending = [*where, *lines[-_LAST_LINES:], stream.error or "", f"Whole output: {log}"]
    return BuildError(
        f"Python {pin.version} could not be built.",
        BuildFailure(stream.steps, source_errors(lines), log),
        resolution="The lines above are the failing step's last ones. A download that failed:"
        " check whether the build container reaches the archive ([engine] network of"
        " provision.toml). Then run the command again: it continues after the last complete step.",
        details="\n".join(ending),
    )
