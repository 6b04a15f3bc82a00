"""The files that a Dockerfile is rendered from, their digest, and how values are quoted in them.

Dockerfile syntax: https://docs.docker.com/reference/dockerfile/ (escape character, LABEL, RUN).
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from provision.distros import distro_named, known_distros
from provision.errors import NotFoundError, UsageError
from provision.pin import DistroPin
from provision.shipped import templates_dir

# Characters of a label that stay on one line.
_LONG = 8000
# An instruction ends at the line's end, whatever quotes are open, and no escape stands for one.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
COLLECTOR = "collect.py"
PREPARE_TREE = "prepare_tree.py"
# The family of kernels whose headers are no packages, whatever the distro.
TREE = "tree"
# Our programs that run in the build container: the file by its name in the container.
_PROGRAMS = {
    COLLECTOR: "build/collector.py",
    "kmm.py": "build/kmm.py",
    "loader_script.py": "build/loader_script.py",
    "unpack.py": "build/unpack_source.py",
}
_TREE_PROGRAM = "distros/prepare_tree.py"
# The folder of scripts that only builds from a dkms.conf run, and that of what images run.
_DKMS = "dkms"
_LOADER = "loader"
_DISTRO = "distro.json"
# The template that serves a family of distros.
_TEMPLATES = {"apt": "apt", "dnf": "rpm", "zypper": "rpm"}
# The family whose script installs the packages of a kernel tree's toolchain.
_SCRIPTS = {TREE: "apt"}
# The parts of a distro's data that reach the Dockerfile.
_REACHING = {"headers", "compilers"}


def shell_word(text: str) -> str:
    """Return ``text`` as one word of a RUN instruction's shell line."""
    return shlex.quote(_printable(text))


def shell_command(arguments: list[str], variables: dict[str, str]) -> str:
    """Return an argument list as a shell command.

    Args:
        variables: Text to find in the words, and the shell variable that takes its place there.
    """
    return " ".join(_with_variables(word, variables) for word in arguments)


def label_value(text: str) -> str:
    """Return ``text`` as the value of a LABEL instruction."""
    escaped = re.sub(r'(["$\\])', r"\\\1", _printable(text))
    if len(escaped) > _LONG:
        # A Dockerfile's line may have 64 KiB, and a Pin with some hundred packages has more. The
        # engine puts continued lines together as they are; none of these begins as a comment.
        escaped = escaped.replace("},{", "},\\\n{")
    return f'"{escaped}"'


def one_line(text: str) -> str:
    """Return text for people on one line: every run of blanks and line ends as one blank."""
    return " ".join(text.split())


def _with_variables(word: str, variables: dict[str, str]) -> str:
    if not any(marker in word for marker in variables):
        return shell_word(word)
    pattern = "|".join(re.escape(marker) for marker in variables)
    parts = re.split(f"({pattern})", word)
    return "".join(
        f'"${{{variables[part]}}}"' if part in variables else shell_word(part)
        for part in parts
        if part
    )


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise UsageError(
            f"{text!r} can't go into a Dockerfile: it holds a control character",
            resolution="Remove line ends and other control characters from the recipe's values.",
        )
    return text


@dataclass(frozen=True, slots=True)
class Templates:
    """The files from which the Dockerfiles of one distro family are rendered."""

    family: str
    dockerfile: str
    sources: Mapping[str, str]
    # Files that go into the context as they are, by name.
    helpers: Mapping[str, bytes]
    # The helpers that only builds from some kinds of sources run.
    special: frozenset[str] = frozenset()

    def helpers_of(self, scripts: Collection[str]) -> dict[str, bytes]:
        """Return the helpers of every build, and those of the special ones that are named."""
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
    """Return the sha256 over the names and contents of files, as 64 hexadecimal digits."""
    contents = {name: text.encode() for name, text in sources.items()}
    contents |= {f"context/{name}": data for name, data in helpers.items()}
    total = hashlib.sha256()
    for name, data in sorted(contents.items()):
        total.update(f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode())
    return total.hexdigest()


def fill_template(name: str, sources: Mapping[str, str], values: Mapping[str, object]) -> str:
    """Return the text of a template with values in it."""
    from jinja2 import (  # noqa: PLC0415 - 0.02 s that a command which renders nothing doesn't pay
        DictLoader,
        Environment,
        StrictUndefined,
        select_autoescape,
    )

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


def fill_shipped(name: str, **values: object) -> str:
    """Return the text of a template that comes with provision, with values in it."""
    return fill_template(name, {name: (templates_dir() / name).read_text()}, values)


def family_of(distro_id: str) -> str:
    """Return the family of a distro, by its ID in os-release."""
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
    """Read the templates of a distro."""
    return _load(directory, family_of(distro_id), distro_id)


def load_tree_templates(directory: Path, toolchain: DistroPin | None) -> Templates:
    """Read the templates of kernels whose headers are no packages."""
    return _load(directory, TREE, toolchain.id if toolchain else None)


def _load(directory: Path, family: str, distro_id: str | None) -> Templates:
    main = directory / f"Dockerfile.{family}.j2"
    if not main.is_file():
        raise NotFoundError(
            f"There is no template '{main}'",
            resolution="Give the folder that holds the Dockerfile templates.",
        )
    texts = [main, *sorted((directory / "macros").glob("*.j2"))]
    sources = {str(path.relative_to(directory)): path.read_text() for path in texts}
    # The data of a distro that reach its Dockerfiles, so that the digest covers them.
    distro = distro_named(distro_id) if distro_id else None
    if distro is not None:
        sources[_DISTRO] = distro.model_dump_json(include=_REACHING)
    folder = directory / _SCRIPTS.get(family, family)
    scripts = sorted(path for path in folder.glob("*") if path.is_file())
    scripts += sorted((directory / _LOADER).glob("*"))
    own = {name: _program(module) for name, module in _PROGRAMS.items()}
    special = {path.name: path.read_bytes() for path in sorted((directory / _DKMS).glob("*"))}
    if family == TREE:
        own[PREPARE_TREE] = _program(_TREE_PROGRAM)
    return Templates(
        family=family,
        dockerfile=main.name,
        sources=sources,
        helpers=own | special | {path.name: path.read_bytes() for path in scripts},
        special=frozenset(special),
    )


def _program(path: str) -> bytes:
    return resources.files("provision").joinpath(path).read_bytes()
