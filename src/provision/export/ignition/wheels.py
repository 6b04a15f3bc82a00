"""Makes the archive of wheels from which a machine installs provision.

Format, name and checksums are those of the Ansible module ``_provision_bundle``, which can't import
this: it runs on controllers without provision. So a later playbook finds what it would install.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from provision.elf import HEAD_SIZE, elf_machine
from provision.errors import NotFoundError, UsageError
from provision.files import lock, sha256_file
from provision.run import LONG_LIMIT_S, run

_ROOT = PurePosixPath("opt/provision/python")
_PROGRAM = "bin/python3"
_PROGRAMS = re.compile(r"bin/python(\d+)\.(\d+)")
_LIBRARY = re.compile(r"lib/(.*/)?libc(-2\.\d+)?\.so(\.6)?")
# Every glibc has this text, which 'libc.so.6' prints when it is run.
_VERSION = re.compile(rb"stable release version (2\.\d+)")
_OLDEST = (3, 11)
_WAY_OUT = "Make one: provision export host-python --output FILE"


@dataclass(frozen=True, slots=True)
class HostPython:
    """An archive of a Python."""

    path: Path
    version: tuple[int, int]
    # Architecture as ``uname -m`` prints it.
    machine: str
    glibc: str


def read_python(path: Path) -> HostPython:
    """Read the description of an archive."""
    if not path.is_file():
        raise NotFoundError(f"There is no file '{path}'.", resolution=_WAY_OUT)
    names: set[str] = set()
    version = machine = glibc = None
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = _name(member)
                names.add(name)
                stream = archive.extractfile(member) if member.isreg() else None
                if stream and (program := _PROGRAMS.fullmatch(name)):
                    version = (int(program[1]), int(program[2]))
                    machine = elf_machine(stream.read(HEAD_SIZE))
                elif stream and _LIBRARY.fullmatch(name):
                    found = _VERSION.search(stream.read())
                    glibc = found[1].decode() if found else glibc
    except (tarfile.TarError, zlib.error, ValueError, EOFError, OSError) as error:
        raise _refusal(path, f"is not an archive: {error}") from error
    if version is None or machine is None or _PROGRAM not in names:
        raise _refusal(path, f"has no '{_ROOT / _PROGRAM}'")
    if glibc is None:
        raise _refusal(path, "contains no C library")
    if version < _OLDEST:
        text = ".".join(map(str, version))
        raise _refusal(path, f"has Python {text}, and provision needs 3.11 or newer")
    return HostPython(path, version, machine, glibc)


def _name(member: tarfile.TarInfo) -> str:
    """Return the path of a member below the folder of the Python; for folders above it, ``..``."""
    place = PurePosixPath(member.name)
    if member.isdir() and place != _ROOT and _ROOT.is_relative_to(place):
        return ".."
    if not place.is_relative_to(_ROOT):
        raise tarfile.TarError(f"'{member.name}' is not below '{_ROOT}'")
    if ".." in place.parts:
        raise tarfile.TarError(f"'{member.name}' leads out of it")
    return str(place.relative_to(_ROOT))


def _refusal(path: Path, what: str) -> UsageError:
    return UsageError(f"'{path}' {what}.", resolution=_WAY_OUT)


_OLDEST_GLIBC = 5


def platforms(python: HostPython) -> list[str]:
    """Return the platforms whose wheels run with a Python, best first.

    Source: https://peps.python.org/pep-0600/
    """
    newest = int(python.glibc.split(".")[1])
    minors = range(newest, _OLDEST_GLIBC - 1, -1)
    known = [f"manylinux_2_{minor}_{python.machine}" for minor in minors]
    return [*known, f"manylinux2014_{python.machine}"]


def suits(wheel: str, python: HostPython) -> bool:
    """Whether a wheel suits a Python, by its name.

    Source: https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
    """
    try:
        tags = parse_wheel_filename(wheel)[3]
    except InvalidWheelFilename:
        return False
    own = "cp" + "".join(map(str, python.version))
    return any(
        (tag.platform == "any" or tag.platform.endswith(f"_{python.machine}"))
        and (tag.interpreter in {"py3", own} or tag.abi == "abi3")
        for tag in tags
    )


# The parts of a checkout that go into the wheel: pyproject.toml, setup.py.
_PARTS = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "constraints.txt",
    "src",
    "docs",
    "driver_images",
    "templates",
)
CONSTRAINTS = "constraints.txt"
# Where setup.py installs it, relative to the root of the environment.
_INSTALLED = f"share/provision/{CONSTRAINTS}"
_FORMAT = b"2"
# The earliest time that a wheel can have: the same files give the same wheel.
# Source: https://reproducible-builds.org/specs/source-date-epoch/
_EPOCH = {"SOURCE_DATE_EPOCH": "315532800"}
_SHORT = 12
_KEPT = 8
_NEEDED = ("provision-*.whl", "pip-*.whl")


@dataclass(frozen=True, slots=True)
class BundleOrigin:
    """The origin of an archive."""

    source: Path
    # Text of the requirements file, with the sha256 of every package.
    constraints: str
    # A folder with these packages; None: the package index.
    wheelhouse: Path | None
    python: HostPython

    @property
    def digest(self) -> str:
        """A checksum of all inputs, which is part of the archive's name."""
        total = hashlib.sha256(_FORMAT)
        libc = ["glibc", self.python.glibc]
        total.update(repr([list(self.python.version), self.python.machine, libc]).encode())
        total.update(hashlib.sha256(self.constraints.encode()).digest())
        for path in _source_files(self.source):
            is_source = path == self.source
            name = path.name if is_source else str(path.relative_to(self.source))
            total.update(f"{name}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
        for path in sorted(self.wheelhouse.glob("*.whl")) if self.wheelhouse else ():
            total.update(f"{path.name}\0{sha256_file(path)}\0".encode())
        return total.hexdigest()


def origin(source: Path, wheelhouse: Path | None, python: HostPython) -> BundleOrigin:
    """Return the origin of an archive."""
    source = source.resolve()
    is_wheel = source.is_file() and source.name.startswith("provision-") and source.suffix == ".whl"
    if not (is_wheel or (source / "pyproject.toml").is_file()):
        raise UsageError(
            f"'{source}' is neither a checkout of the project nor a wheel of provision.",
            resolution="Name one (--source), or an archive that Ansible made (--bundle).",
        )
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise UsageError(
            f"There is no folder '{wheelhouse}'.",
            resolution="Name one with the wheels that provision depends on, and pip's own.",
        )
    return BundleOrigin(source, _constraints(source), wheelhouse, python)


def _constraints(source: Path) -> str:
    """Return the text of the constraints in a checkout or wheel."""
    try:
        if source.is_dir():
            return (source / CONSTRAINTS).read_text()
        with zipfile.ZipFile(source) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(f"/{_INSTALLED}"))
            return wheel.read(name).decode()
    except (FileNotFoundError, StopIteration) as error:
        raise UsageError(
            f"'{source}' has no {CONSTRAINTS}.",
            resolution="Name a checkout of this version, or a wheel made of it (--source).",
        ) from error
    except zipfile.BadZipFile as error:
        raise UsageError(
            f"'{source}' is not a wheel: {error}.", resolution="Name one of provision (--source)."
        ) from error


def bundles_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of archives, which the Ansible role uses too."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "provision/bundles"


def have_bundle(origin: BundleOrigin, folder: Path) -> Path:
    """Return the archive of an origin, making it if it is missing."""
    target = folder / f"provision-{origin.digest[:_SHORT]}.tar"
    with lock(folder / ".lock", waiting="waiting for another run"):
        if not target.exists():
            _make(origin, target)
        target.touch()
        _make_room(folder)
    return target


def _make(origin: BundleOrigin, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".bundle-") as name:
        folder = Path(name)
        wheels = folder / "wheels"
        wheels.mkdir()
        file = folder / CONSTRAINTS
        file.write_text(origin.constraints)
        shutil.copy(_wheel(origin.source, folder), wheels)
        _pip(_download_words(origin, file, wheels))
        draft = folder / target.name
        with tarfile.open(draft, "w") as archive:
            for path in sorted(wheels.glob("*.whl")):
                archive.add(path, path.name)
        draft.replace(target)


def environment_name(bundle: Path, python: HostPython) -> str:
    """Return the name of the virtual environment made from an archive, as Ansible names it."""
    way_out = "Use an archive in ~/.cache/provision/bundles, where the Ansible role keeps them."
    if not bundle.is_file():
        raise NotFoundError(f"There is no file '{bundle}'.", resolution=way_out)
    try:
        checksums = _checksums(bundle)
    except (tarfile.TarError, ValueError, EOFError, OSError) as error:
        raise UsageError(f"'{bundle}' is not an archive: {error}.", resolution=way_out) from error
    names = [Path(name) for name in checksums]
    missing = [needed for needed in _NEEDED if not any(path.match(needed) for path in names)]
    if missing:
        raise UsageError(f"'{bundle}' has no '{missing[0]}'.", resolution=way_out)
    if others := [path.name for path in names if not suits(path.name, python)]:
        version = ".".join(map(str, python.version))
        raise UsageError(
            f"'{bundle}' has '{others[0]}', which is not for Python {version} on {python.machine}.",
            resolution=way_out,
        )
    lines = "".join(f"{name} {checksum}\n" for name, checksum in sorted(checksums.items()))
    return f"venv-{hashlib.sha256(lines.encode()).hexdigest()[:_SHORT]}"


def _checksums(bundle: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with tarfile.open(bundle, "r:") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                found[Path(member.name).name] = hashlib.sha256(content.read()).hexdigest()
    return found


def _make_room(folder: Path) -> None:
    """Remove archives that were not used for a long time, as the role does."""
    archives = sorted(folder.glob("provision-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in archives[:-_KEPT]:
        path.unlink()


def _download_words(origin: BundleOrigin, constraints: Path, wheels: Path) -> list[str]:
    version = ".".join(map(str, origin.python.version))
    words = ["download", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    words += [f"--python-version={version}", f"--dest={wheels}"]
    words += [f"--platform={name}" for name in platforms(origin.python)]
    if origin.wheelhouse is not None:
        words += ["--no-index", f"--find-links={origin.wheelhouse}"]
    return [*words, "--requirement", str(constraints)]


def _wheel(source: Path, folder: Path) -> Path:
    """Return provision's wheel, made from a copy because setuptools writes into its source."""
    if source.is_file():
        return source
    copy = folder / "source"
    for path in _source_files(source):
        target = copy / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    _pip(["wheel", "--no-deps", f"--wheel-dir={folder}", str(copy)])
    return next(folder.glob("provision-*.whl"))


def _source_files(source: Path) -> list[Path]:
    """Return a wheel, or the files of a checkout that go into one."""
    found = [
        path
        for part in (source / name for name in _PARTS)
        for path in ([part] if part.is_file() else sorted(part.rglob("*")))
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    ]
    return [source] if source.is_file() else found


def _pip(words: list[str]) -> None:
    why = "get the Python packages that provision needs"
    pip = [sys.executable, "-I", "-m", "pip"]
    if run([*pip, "--version"], why=why, check=False).returncode != 0:
        raise NotFoundError(
            f"'{sys.executable}' has no pip, which is needed to {why}.",
            resolution="Run provision from an environment with pip, or name an archive that"
            " Ansible made (--bundle).",
        )
    common = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([*pip, words[0], *common, *words[1:]], why=why, env=_EPOCH, timeout=LONG_LIMIT_S)
