"""The pin of a Python for hosts, the build context it is rendered to, and its image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Annotated

from pydantic import StringConstraints

from provision.build.base_image import ensure_base
from provision.build.diagnosis import BuildError, source_errors
from provision.build.templates import digest_of, fill_template
from provision.documents import Frozen
from provision.engine.docker_api import BuildOptions, Engine, EngineLostError, Image
from provision.engine.stream import BuildStream
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError
from provision.pin import BasePin, DistroPin, FilePin, Name, PackagePin, PackageVersion, Sha256
from provision.progress import Output, Progress, Step

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


class SourcePin(FilePin):
    """A file of the source package."""

    name: _FileName


class PythonPin(Frozen):
    """What a host's Python is made of.

    Attributes:
        version: Python's own, such as ``3.11.2``.
        package: Version of the distro's source package.
        prefix: Where it lies on hosts; programs name their loader by its whole path.
        architecture: As ``uname -m`` prints it.
        distro: Whose source and libraries.
        base: The base image of the build.
        original: The source as upstream released it.
        patches: The distro's changes.
        packages: Build tools and libraries.
        template: Digest of the Dockerfile's template and its helpers.
        keyring: Of the keys that the archive is verified with, where they are not the distro's own.
    """

    version: Annotated[str, StringConstraints(pattern=r"^3(\.[0-9]+)+$")]
    package: PackageVersion
    prefix: Prefix
    architecture: Name
    distro: DistroPin
    base: BasePin
    original: SourcePin
    patches: SourcePin
    packages: tuple[PackagePin, ...]
    template: Sha256
    keyring: Sha256 | None = None

    def canonical_json(self) -> str:
        """Return the one JSON text of this pin: sorted keys, no blanks."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """``sha256:`` and the sha256 of the canonical JSON."""
        return f"sha256:{hashlib.sha256(self.canonical_json().encode()).hexdigest()}"

    @property
    def short_digest(self) -> str:
        """The digest's first 12 hexadecimal digits."""
        return self.digest.removeprefix("sha256:")[:12]

    @property
    def image(self) -> str:
        """The name of the image that holds the result."""
        return f"provision/host-python:{self.version}-{self.short_digest}"

    @property
    def archive_name(self) -> str:
        """The usual name of the archive."""
        return f"provision-python-{self.version}-{self.architecture}.tar.gz"


@dataclass(frozen=True, slots=True)
class PythonTemplates:
    """What the build context is rendered from.

    Attributes:
        sources: Jinja sources by name.
        helpers: Files that go into the context as they are, by name.
    """

    sources: Mapping[str, str]
    helpers: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Sha256 over names and contents, as 64 hexadecimal digits."""
        return digest_of(self.sources, self.helpers)


def templates_of(folder: Path) -> PythonTemplates:
    """Read what is needed of the ``templates`` folder.

    Raises:
        OSError: It lacks a file.
    """
    return PythonTemplates(
        sources={name: (folder / name).read_text() for name in (_DOCKERFILE, *_MACROS)},
        helpers={Path(name).name: (folder / name).read_bytes() for name in _HELPERS}
        | {_BUNDLER: resources.files(__package__).joinpath(_BUNDLER_FILE).read_bytes()},
    )


def render_python(pin: PythonPin, templates: PythonTemplates) -> dict[str, bytes]:
    """Return the build context, but for the sources: content by path."""
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
    """Return the image of a pin if the engine has it."""
    image = engine.image(pin.image)
    return image if image and image.labels.get(DIGEST_LABEL) == pin.digest else None


def build_image(
    engine: Engine,
    pin: PythonPin,
    files: Mapping[str, bytes],
    *,
    build_args: Mapping[str, str],
    network: str | None,
    log: Path,
    progress: Progress,
) -> Image:
    """Build the image of a pin, and give it its name.

    Args:
        engine: Where.
        pin: What.
        files: The build context.
        build_args: Values that can't change the result.
        network: Network of the build containers; None: the engine's default.
        log: Where the whole output goes.
        progress: Receives each step, and each line of the output.

    Raises:
        BuildError: A step failed; has its last lines.
        EngineLostError: The engine went away.
    """
    base = ensure_base(engine, pin.base, progress=progress)
    options = BuildOptions({**build_args, "BASE_IMAGE": base.id}, network)
    stream = BuildStream()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        for message in engine.build(pack(files), options):
            for event in stream.feed(message):
                _write(output, event)
                progress(event)
        stream.finish()
    if stream.error is not None:
        raise _failed(pin, stream, log)
    image = engine.image(stream.image_id) if stream.image_id else None
    if image is None:
        raise EngineLostError(
            f"The engine at {engine.host} stopped in the middle of building Python {pin.version}.",
            resolution="Look whether it runs (systemctl status docker), and run the command"
            " again: it goes on after the last complete step.",
            details=f"Whole output: {log}",
        )
    if image.labels.get(DIGEST_LABEL) != pin.digest:
        raise ProvisionError(
            f"The new image carries another {DIGEST_LABEL} than {pin.digest}.",
            resolution="The Dockerfile must set that label: use this version's templates.",
        )
    engine.tag(image.id, pin.image)
    return image


def _write(output: IO[str], event: object) -> None:
    if isinstance(event, Step):
        output.write(f"Step {event.number}/{event.total}: {event.text}\n")
    elif isinstance(event, Output):
        output.write(f"{event.text}\n")


def _failed(pin: PythonPin, stream: BuildStream, log: Path) -> BuildError:
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = [f"Step {step.number}/{stream.total}: {step.instruction}"] if step else []
    ending = [*where, *lines[-_LAST_LINES:], stream.error or "", f"Whole output: {log}"]
    return BuildError(
        f"Python {pin.version} could not be built.",
        resolution="The lines above are the failing step's last ones. A download that failed:"
        " look whether the build container reaches the archive ([engine] network of"
        " provision.toml). Then run the command again: it goes on after the last complete step.",
        details="\n".join(ending),
        steps=stream.steps,
        source_errors=source_errors(lines),
        log=log,
    )
