"""The archive of wheels that a machine installs provision from.

Format, name and checksum are those of the Ansible module ``bundle``, which can't import this: it
runs on controllers that have no provision. So a playbook that comes later finds what it would have
installed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from provision.errors import NotFoundError, UsageError
from provision.files import lock, sha256_file
from provision.ignition.pythons import HostPython
from provision.progress import Note, Progress
from provision.run import run

# What of a checkout goes into the wheel: pyproject.toml, setup.py.
_PARTS = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "src",
    "docs",
    "driver_images",
    "templates",
)
_OLDEST_GLIBC = 5
_FORMAT = b"1"
_NAME = re.compile(r"provision-([0-9a-f]{12})\.tar")
_SHORT = 12
_KEPT = 8
_NEEDED = ("provision-*.whl", "pip-*.whl")


@dataclass(frozen=True, slots=True)
class Origin:
    """What an archive is made from.

    Attributes:
        source: A checkout of the project, or a wheel of provision.
        wheelhouse: A folder with the wheels that it depends on; None: the package index.
        python: What it is for.
    """

    source: Path
    wheelhouse: Path | None
    python: HostPython

    @property
    def digest(self) -> str:
        """A checksum of everything that decides what is in the archive."""
        total = hashlib.sha256(_FORMAT)
        libc = ["glibc", self.python.glibc]
        total.update(repr([list(self.python.version), self.python.machine, libc]).encode())
        for path in _source_files(self.source):
            total.update(f"{path.relative_to(self.source.parent)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
        for path in sorted(self.wheelhouse.glob("*.whl")) if self.wheelhouse else ():
            total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        return total.hexdigest()

    @property
    def environment_name(self) -> str:
        """The name of the environment that a machine makes from the archive, as Ansible does."""
        return f"venv-{self.digest[:_SHORT]}"


def origin(source: Path, wheelhouse: Path | None, python: HostPython) -> Origin:
    """Return what an archive is to be made from.

    Raises:
        UsageError: The source is neither a checkout nor a wheel, or there is no such wheelhouse.
    """
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
    return Origin(source, wheelhouse, python)


def bundles_folder(environ: Mapping[str, str]) -> Path:
    """Return where archives are kept; the Ansible role keeps its own there too."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "provision/bundles"


def have_bundle(origin: Origin, folder: Path, *, progress: Progress) -> Path:
    """Return the archive, made where there is none yet.

    Args:
        origin: What it is made from.
        folder: Where archives are kept.
        progress: Told what takes long.

    Raises:
        NotFoundError: The Python that runs this has no pip.
        ProvisionError: pip could not get a package.
        OSError: The folder can't be written.
    """
    target = folder / f"provision-{origin.digest[:_SHORT]}.tar"
    with lock(folder / ".lock", on_wait=lambda: progress(Note("waiting for another run"))):
        if not target.exists():
            _make(origin, target)
        target.touch()
        _make_room(folder)
    return target


def _make(origin: Origin, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".bundle-") as name:
        folder = Path(name)
        wheels = folder / "wheels"
        _pip(_download_words(origin, _wheel(origin.source, folder), wheels))
        draft = folder / target.name
        with tarfile.open(draft, "w") as archive:
            for path in sorted(wheels.glob("*.whl")):
                archive.add(path, path.name)
        draft.replace(target)


def environment_name(bundle: Path, python: HostPython) -> str:
    """Return the name of the environment that a machine makes from an archive, as Ansible does.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is no such archive, or one for another Python.
    """
    way_out = "Take one of ~/.cache/provision/bundles, where the Ansible role keeps them."
    if not bundle.is_file():
        raise NotFoundError(f"There is no file '{bundle}'.", resolution=way_out)
    try:
        with tarfile.open(bundle, "r:") as archive:
            names = [Path(name) for name in archive.getnames()]
    except (tarfile.TarError, OSError) as error:
        raise UsageError(f"'{bundle}' is no archive: {error}.", resolution=way_out) from error
    missing = [needed for needed in _NEEDED if not any(path.match(needed) for path in names)]
    if missing:
        raise UsageError(f"'{bundle}' has no '{missing[0]}'.", resolution=way_out)
    if others := [path.name for path in names if not _suits(path.name, python)]:
        version = ".".join(map(str, python.version))
        raise UsageError(
            f"'{bundle}' has '{others[0]}', which is not for Python {version} on {python.machine}.",
            resolution=way_out,
        )
    named = _NAME.fullmatch(bundle.name)
    return f"venv-{named[1] if named else sha256_file(bundle)[:_SHORT]}"


def platforms(python: HostPython) -> list[str]:
    """Return the platforms whose wheels run with a Python, best first.

    Source: https://peps.python.org/pep-0600/
    """
    newest = int(python.glibc.split(".")[1])
    minors = range(newest, _OLDEST_GLIBC - 1, -1)
    known = [f"manylinux_2_{minor}_{python.machine}" for minor in minors]
    return [*known, f"manylinux2014_{python.machine}"]


def _make_room(folder: Path) -> None:
    """Remove archives that nobody has used for long, as the role does."""
    archives = sorted(folder.glob("provision-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in archives[:-_KEPT]:
        path.unlink()


def _suits(wheel: str, python: HostPython) -> bool:
    """Whether a Python can have a wheel, by its name.

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


def _download_words(origin: Origin, wheel: Path, wheels: Path) -> list[str]:
    version = ".".join(map(str, origin.python.version))
    words = ["download", "--only-binary=:all:", f"--python-version={version}", f"--dest={wheels}"]
    words += [f"--platform={name}" for name in platforms(origin.python)]
    if origin.wheelhouse is not None:
        words += ["--no-index", f"--find-links={origin.wheelhouse}"]
    return [*words, str(wheel), "pip"]


def _wheel(source: Path, folder: Path) -> Path:
    """Return the wheel of provision, made from a copy: setuptools writes into its source."""
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
    if source.is_file():
        return [source]
    found = [path for part in _PARTS for path in _below(source / part)]
    return [
        path for path in found if "__pycache__" not in path.parts and ".egg-info" not in str(path)
    ]


def _below(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def _pip(words: list[str]) -> None:
    why = "get the Python packages that provision needs"
    pip = [sys.executable, "-m", "pip"]
    if run([*pip, "--version"], why=why, check=False).returncode != 0:
        raise NotFoundError(
            f"'{sys.executable}' has no pip, which is needed to {why}.",
            resolution="Run provision from an environment with pip, or name an archive that"
            " Ansible made (--bundle).",
        )
    common = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([*pip, words[0], *common, *words[1:]], why=why)
