"""From a pin to the build context. Pure, but for reading the templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from provision.build.templates import digest_of, fill_template
from provision.hostpython.python_pin import PythonPin

DIGEST_LABEL = "provision.python.digest"
_DOCKERFILE = "python/Dockerfile.j2"
_MACROS = ("macros/apt.j2", "macros/image.j2")
_HELPERS = ("python/apt-sources.sh",)
# Its name in the build container, and the file that it is.
_BUNDLER = "bundle.py"
_BUNDLER_FILE = "relocate.py"


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
