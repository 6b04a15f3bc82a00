"""Parses NVIDIA's own lists of a driver's files.

The list is ``.manifest`` in the .run: eight lines of head (the second is the version), then a line
a file: ``NAME MODE TYPE [NATIVE|COMPAT32] [FOLDER/ | INHERIT_PATH_DEPTH:N] [TARGET] MODULE:NAME``;
mode 0000 stands for a link. Newer drivers bring ``sandboxutils-filelist.json`` too, which says what
files are for: a list of objects with ``name`` and ``category``. Sources: manifest.c and files.c of
https://github.com/NVIDIA/nvidia-installer; for the features, nvc_info.c of
https://github.com/NVIDIA/libnvidia-container.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from provision.errors import ProvisionError

MANIFEST = ".manifest"
FILE_LIST = "sandboxutils-filelist.json"
# Bytes of either list; today's have 200 kB.
MAX_LIST = 8 << 20
_HEAD_LINES = 8
_MODE = re.compile(r"^[0-7]{4}$")

# Features by category of the list of newer drivers.
_BY_CATEGORY: Mapping[str, str] = {
    "nvml": "utility",
    "utils": "utility",
    "cuda": "compute",
    "gbm": "graphics",
    "glx": "graphics",
    "ngx": "ngx",
    "opencl": "compute",
    "optix": "graphics",
    "video": "video",
    "vulkan": "graphics",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list.

    Attributes:
        mode: Permission bits; 0: a link.
        folder: Subfolder of its type's own folder; may be empty.
    """

    name: str
    mode: int
    type: str
    compat32: bool
    folder: str
    target: str | None
    module: str


def parse_manifest(text: str, *, version: str) -> list[Listed]:
    """Read the list of a driver's files."""
    lines = text.splitlines()
    if len(lines) < _HEAD_LINES:
        raise wrong_list(f"it has {len(lines)} lines, and {_HEAD_LINES} are only its head")
    if lines[1].strip() != version:
        raise wrong_list(f"it is of the version '{lines[1].strip()[:40]}', not of {version}")
    listed, problems = [], []
    for number, line in enumerate(lines[_HEAD_LINES:], _HEAD_LINES + 1):
        if not line.strip():
            continue
        try:
            listed.append(_line(line))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        raise wrong_list("some of its lines are not valid", problems)
    return listed


def wrong_list(what: str, problems: Iterable[str] = ()) -> ProvisionError:
    """Return the error for a list that can't be used."""
    return ProvisionError(
        f"The list of files in the .run, {MANIFEST}, can't be used: {what}.",
        resolution="Take another version of the driver (--version). If this one is new, its list"
        " may have what this version of provision doesn't know: name types of files that no"
        " container needs in 'leave_out' of the [[source]] in driver.toml, or install a newer"
        " provision.",
        details="\n".join(problems) or None,
    )


def _line(line: str) -> Listed:
    words = line.split()
    if len(words) < 3 or not _MODE.match(words[1]):  # noqa: PLR2004 - name, mode, type
        raise ValueError(f"'{line.strip()[:80]}' is not NAME MODE TYPE …")
    name = inside(words[0])
    modules = [word.partition(":")[2] for word in words[3:] if word.startswith("MODULE:")]
    rest = [word for word in words[3:] if not word.startswith("MODULE:")]
    compat32 = "COMPAT32" in rest
    rest = [word for word in rest if word not in {"COMPAT32", "NATIVE"}]
    mode = int(words[1], 8)
    target = None
    if mode == 0:
        if not rest or rest[-1].startswith("INHERIT_PATH_DEPTH:"):
            raise ValueError(f"the link '{name}' has no target")
        target = inside(rest.pop())
    folder = ""
    for word in rest:
        depth = word.removeprefix("INHERIT_PATH_DEPTH:")
        if depth != word:
            parts = PurePosixPath(name).parts[:-1]
            folder = "/".join(parts[int(depth) :] if depth.isdecimal() else parts)
        elif word.endswith("/") and word.strip("/"):
            folder = inside(word.strip("/"))
    return Listed(name, mode, words[2], compat32, folder, target, modules[0] if modules else "")


def inside(path: str) -> str:
    """Return a path below a folder, without ``./`` at its beginning."""
    plain = path
    while plain.startswith("./"):
        plain = plain[2:]
    pure = PurePosixPath(plain)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in plain:
        raise ValueError(f"the path '{path[:80]}' leads out of the archive")
    return str(pure)


def parse_file_list(text: str) -> dict[str, tuple[str, ...]]:
    """Return the features of files by name, from the additional list of newer drivers.

    Unknown forms are ignored: the other list has every file.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for item in data if isinstance(data, list) else []:
        if not isinstance(item, dict):
            continue
        name, words = item.get("name"), item.get("category")
        if isinstance(name, str) and isinstance(words, list):
            # A file may be listed several times, once for each use.
            features = {_category(word) for word in words if isinstance(word, str)}
            key = PurePosixPath(name).name
            found[key] = tuple(sorted({*found.get(key, ()), *(f for f in features if f)}))
    return found


def _category(word: str) -> str | None:
    plain = word.lower()
    return "graphics" if plain.startswith("egl") else _BY_CATEGORY.get(plain)
