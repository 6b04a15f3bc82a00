"""The files that a Dockerfile is rendered from, and their digest, which is part of the Pin."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined, select_autoescape

from provision.distros import distro_named, known_distros
from provision.errors import NotFoundError
from provision.pin import DistroPin
from provision.render.quoting import label_value, shell_word

COLLECTOR = "collect.py"
_KMM = "kmm.py"
PREPARE_TREE = "prepare_tree.py"
# The family of kernels whose headers are no packages, whatever the distro.
TREE = "tree"
_UNPACKER = "unpack.py"
# What only builds from a dkms.conf run.
_DKMS = "dkms"
_DISTRO = "distro.json"
_KEYRING = "archive-keyring.gpg"
# The template that serves a family of distros.
_TEMPLATES = {"apt": "apt", "dnf": "rpm", "zypper": "rpm"}
# Whose script installs the packages of a kernel tree's toolchain.
_SCRIPTS = {TREE: "apt"}
# What of a distro's data reaches the Dockerfile.
_REACHING = {"headers", "compilers"}


@dataclass(frozen=True, slots=True)
class Templates:
    """What one distro family is rendered from.

    Attributes:
        family: Its name.
        dockerfile: Name of the main template.
        sources: Jinja sources by name: the main template and its macros.
        helpers: Files that go into the context as they are, by name.
        special: Those of them that only builds from some kinds of sources run.
    """

    family: str
    dockerfile: str
    sources: Mapping[str, str]
    helpers: Mapping[str, bytes]
    special: frozenset[str] = frozenset()

    def helpers_of(self, scripts: Collection[str]) -> dict[str, bytes]:
        """Return the files of a context: those of every build, and of the others these."""
        return {
            name: content
            for name, content in self.helpers.items()
            if name not in self.special or name in scripts
        }

    @property
    def digest(self) -> str:
        """Sha256 over the names and contents of all files, as 64 hexadecimal digits."""
        return digest_of(self.sources, self.helpers)


def digest_of(sources: Mapping[str, str], helpers: Mapping[str, bytes]) -> str:
    """Return the sha256 over the names and contents of files, as 64 hexadecimal digits.

    Args:
        sources: Jinja sources by name.
        helpers: Files that go into the context as they are, by name.
    """
    contents = {name: text.encode() for name, text in sources.items()}
    contents |= {f"context/{name}": data for name, data in helpers.items()}
    total = hashlib.sha256()
    for name, data in sorted(contents.items()):
        total.update(f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode())
    return total.hexdigest()


def keyring_file(keyring: bytes | None) -> dict[str, bytes]:
    """Return the file of a build context that the archive is verified with, if it has one."""
    return {} if keyring is None else {_KEYRING: keyring}


def fill_template(name: str, sources: Mapping[str, str], values: Mapping[str, object]) -> str:
    """Return the text of a Dockerfile's template with values in it.

    Args:
        name: Which of the sources.
        sources: Jinja sources by name: it, and what it takes from others.
        values: What it is given.
    """
    environment = Environment(
        loader=DictLoader(dict(sources)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Nothing here is HTML: the filters shell and label quote what comes from data.
        autoescape=select_autoescape(),
    )
    environment.filters |= {"shell": shell_word, "label": label_value}
    return environment.get_template(name).render(values)


def family_of(distro_id: str) -> str:
    """Return the family of a distro, by its ID in os-release.

    Raises:
        NotFoundError: There is no template for it.
    """
    distro = distro_named(distro_id)
    family = _TEMPLATES.get(distro.family) if distro else None
    if family is None:
        known = {name.partition(":")[0] for name in known_distros()}
        raise NotFoundError(
            f"There is no Dockerfile template for the distro '{distro_id}'",
            resolution=f"Distros with one: {', '.join(sorted(known))}.",
        )
    return family


def load_templates(directory: Path, distro_id: str) -> Templates:
    """Read the templates of a distro.

    Args:
        directory: The ``templates`` folder.
        distro_id: Which distro, by its ID in os-release.

    Raises:
        NotFoundError: No template serves this distro, or the folder lacks it.
    """
    loaded = load_family(directory, family_of(distro_id))
    return replace(loaded, sources={**loaded.sources, **_distro_data(distro_id)})


def load_tree_templates(directory: Path, toolchain: DistroPin | None) -> Templates:
    """Read the templates of kernels whose headers are no packages.

    Args:
        directory: The ``templates`` folder.
        toolchain: The distro whose packages compile; None: the base image has everything.

    Raises:
        NotFoundError: The folder lacks them.
    """
    loaded = load_family(directory, TREE)
    if toolchain is None:
        return loaded
    return replace(loaded, sources={**loaded.sources, **_distro_data(toolchain.id)})


def load_family(directory: Path, family: str) -> Templates:
    """Read the templates of a distro family; arguments and errors as ``load_templates``."""
    main = directory / f"Dockerfile.{family}.j2"
    if not main.is_file():
        raise NotFoundError(
            f"There is no template '{main}'",
            resolution="Give the folder that holds the Dockerfile templates.",
        )
    macros = sorted((directory / "macros").glob("*.j2"))
    folder = directory / _SCRIPTS.get(family, family)
    scripts = sorted(path for path in folder.glob("*") if path.is_file())
    programs = resources.files(__package__)
    own = {name: programs.joinpath(name).read_bytes() for name in (COLLECTOR, _KMM, _UNPACKER)}
    special = {path.name: path.read_bytes() for path in sorted((directory / _DKMS).glob("*"))}
    if family == TREE:
        script = resources.files("provision.distros").joinpath(PREPARE_TREE)
        own[PREPARE_TREE] = script.read_bytes()
    return Templates(
        family=family,
        dockerfile=main.name,
        sources={str(path.relative_to(directory)): path.read_text() for path in (main, *macros)},
        helpers=own | special | {path.name: path.read_bytes() for path in scripts},
        special=frozenset(special),
    )


def _distro_data(distro_id: str) -> dict[str, str]:
    """Return what of a distro's data reaches its Dockerfiles, so that their digest knows it."""
    distro = distro_named(distro_id)
    if distro is None:
        return {}
    return {_DISTRO: distro.model_dump_json(include=_REACHING)}
