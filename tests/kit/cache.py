"""Where things that are slow to make are kept between runs, outside the repository.

Nothing in it is precious: delete the folder and the next run makes it again. What an entry is made
from and by is part of its name (`key_of`), so that a change of code makes it again. `prune` removes
what has not been used for the longest time, measured by how long it took to make.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TextIO

import pytest

from kit.process import run

REPOSITORY = Path(__file__).resolve().parents[2]
_BUILD = REPOSITORY / "src/provision/build"
# What makes a base image.
BASES = (_BUILD / "base_image.py",)
_TEMPLATES = REPOSITORY / "templates"
# What decides how an artifact is built, beside its Pin.
BUILDS = (
    *sorted(_TEMPLATES.glob("Dockerfile.*.j2")),
    *(_TEMPLATES / name for name in ("apt", "dkms", "loader", "macros", "rpm")),
    *(_BUILD / f"{name}.py" for name in ("collector", "../loader_script", "step")),
    *(_BUILD / f"{name}.py" for name in ("dockerfile", "image", "unpack_source")),
    REPOSITORY / "src/provision/distros/prepare_tree.py",
)
_LIMIT_BYTES = 3 << 30
# Another run may be at what was used so lately.
_IN_USE_S = 2 * 3600
# Folders whose entries `provision` itself makes again, and ours that serve only a cold run.
_PROVISIONS = ("archive", "bundles", "logs", "packages")
_COLD = "debs-"
# Keys, notes: not worth a removal.
_LITTLE = 1 << 20
# What was made within this time is as soon made again.
_SOON_MADE_S = 60.0


def cache_dir() -> Path:
    """`$PROVISION_TEST_CACHE`, else a folder below `$XDG_CACHE_HOME`, else below /var/cache."""
    named = os.environ.get("PROVISION_TEST_CACHE")
    if named:
        folder = Path(named)
    else:
        parent = os.environ.get("XDG_CACHE_HOME")
        folder = Path(parent) / "provision-tests" if parent else Path("/var/cache/provision-tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(name: Path) -> Iterator[TextIO]:
    with name.open("a") as lock:
        flock(lock, LOCK_EX)
        # The note of this use.
        os.utime(name)
        yield lock


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The cache entry `name`; where it is missing, `make` fills a fresh path that then becomes it.

    Two processes that want the same entry don't both make it; an entry is there whole or not at
    all, because it gets its name by one rename.
    """
    entry = cache_dir() / name
    with _locked(cache_dir() / f".{name}.lock") as lock:
        if entry.exists():
            return entry
        draft = cache_dir() / f".{name}.draft"
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
        begun = time.monotonic()
        make(draft)
        draft.rename(entry)
        lock.truncate(0)
        lock.write(f"{time.monotonic() - begun:.0f}")
    return entry


@contextmanager
def shared_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder of all processes of one run of the tests, for one of them at a time."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield folder


def shared_file(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """A file of all processes; the first to want it has `make` make it, given a fresh folder."""
    with shared_folder(factory, name) as folder:
        there = next((path for path in folder.iterdir() if path.name != "lock"), None)
        if there is None:
            made = make(factory.mktemp(name))
            there = folder / made.name
            shutil.move(made, there)
        return there


def key_of(*inputs: object) -> str:
    """Twelve digits that change with the inputs; of a path, with the files there."""
    digest = hashlib.sha256()
    for one in inputs:
        if isinstance(one, Path):
            for path in [one] if one.is_file() else sorted(one.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    content = path.read_bytes()
                    digest.update(code_of(content) if path.suffix == ".py" else content)
        else:
            digest.update(f"{one!r}\0".encode())
    return digest.hexdigest()[:12]


def code_of(program: bytes) -> bytes:
    """A program in Python without comments, docstrings and layout."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree).encode()


def prune(limit: int = _LIMIT_BYTES, in_use_s: float = _IN_USE_S) -> None:
    """Remove what was not used for the longest time, until the rest is within the limit.

    What took an hour to make may be left unused for sixty times as long as what took a minute, so
    that what only the night needs outlives the day.
    """
    folder = cache_dir()
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    ours = folder / "provision"
    entries += [path for name in _PROVISIONS for path in (ours / name).glob("*")]
    ages = {path: time.time() - _last_use(path) for path in entries if path != ours}
    sizes = {path: _size(path) for path in ages}
    total = sum(sizes.values())

    def first(path: Path) -> tuple[bool, float]:
        return not path.name.startswith(_COLD), -ages[path] / _made_within(path)

    for path in sorted(ages, key=first):
        if not path.name.startswith(_COLD) and (total <= limit or sizes[path] < _LITTLE):
            continue
        if ages[path] < in_use_s:
            continue
        run(["rm", "-rf", "--one-file-system", path], check=False)
        _lock_of(path).unlink(missing_ok=True)
        total -= sizes[path]


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _made_within(path: Path) -> float:
    lock = _lock_of(path)
    said = lock.read_text() if lock.exists() else ""
    return max(float(said or 0), _SOON_MADE_S)


def _last_use(path: Path) -> float:
    lock = _lock_of(path)
    return max(one.stat().st_mtime for one in (path, lock) if one.exists())


def _size(path: Path) -> int:
    # What another process removes meanwhile has no size.
    told = run(["du", "-s", "-B1", path], check=False).stdout
    return int(told.split()[0]) if told else 0
