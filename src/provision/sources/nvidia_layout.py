"""NVIDIA's own lists of a driver's files, and where those files go in a container.

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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from provision.errors import ProvisionError
from provision.manifest import FileKind

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
    """A line of the list."""

    name: str
    mode: int
    type: str
    compat32: bool
    # Subfolder of its type's own folder; may be empty.
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


_COMPAT = "compat32"
_LIBRARIES = "/usr/lib64/nvidia"
_LIBRARIES_32 = "/usr/lib/nvidia"

# Features by MODULE of the list.
_BY_MODULE: Mapping[str, tuple[str, ...]] = {
    "nvml": ("utility",),
    "installer": ("utility",),
    "nvpd": ("utility",),
    "gpgpu": ("compute",),
    "uvm": ("compute",),
    "nvcuvid": ("video",),
    "encodeapi": ("video",),
    "opticalflow": ("video",),
    "vdpau": ("video",),
    "opengl": ("graphics",),
    "optix": ("graphics",),
    "nvfbc": ("graphics",),
    "egl": ("graphics",),
    "vulkan": ("graphics",),
    "ngx": ("ngx",),
    "xdriver": ("display",),
}
# Files whose features differ from their module's. Empty: host only; None: not needed at all.
_BY_NAME: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    ("nvidia-modprobe", ()),
    ("nvidia-settings", None),
    ("nvidia-xconfig", None),
    ("nvidia-bug-report", None),
    ("nvidia-installer", None),
    ("nvidia-uninstall", None),
    ("libcuda.so", ("compute", "video")),
    ("libnvidia-ml.so", ("utility",)),
    ("libnvidia-cfg.so", ("utility",)),
    ("libnvidia-gpucomp.so", ("compute", "graphics")),
    ("libnvidia-allocator.so", ("compute", "graphics")),
    ("nvidia-smi", ("utility",)),
    ("nvidia-debugdump", ("utility",)),
    ("nvidia-persistenced", ("utility",)),
    ("nvidia-cuda-mps-", ("compute",)),
)
# Types that never go into a container: complete, or by prefix.
_LEFT_OUT = frozenset(
    {
        "APPLICATION_PROFILE",
        "DBUS_CONFIG",
        "DOCUMENTATION",
        "DOT_DESKTOP",
        "EXPLICIT_PATH",
        "FLEXERA_DATA",
        "ICON",
        "LIBGL_LA",
        "MANPAGE",
        "MODULE_SIGNING_KEY",
        "NVIDIA_MODPROBE_MANPAGE",
        "OPENGL_HEADER",
        "SANDBOXUTILS_FILELIST_JSON",
        "XORG_OUTPUTCLASS_CONFIG",
        "XMODULE_NEWSYM",
    }
)
_LEFT_OUT_STARTS = (
    "DKMS_",
    "EGL_CLIENT_",
    # Its link leads to another folder, which artifacts don't have.
    "GBM_BACKEND_",
    "GLVND_LIB",
    "GLVND_SYMLINK",
    "GLX_CLIENT_",
    "INSTALLER_",
    "INTERNAL_UTILITY_",
    "KERNEL_MODULE",
    "OPENCL_WRAPPER_",
    "SYSTEMD_",
    "UVM_MODULE_",
    "VDPAU_WRAPPER_",
    "WINE_",
    "XLIB_",
)
# Folders of other types.
_FOLDERS: Mapping[str, str] = {
    "CUDA_ICD": "/etc/OpenCL/vendors",
    "EGL_EXTERNAL_PLATFORM_JSON": "/usr/share/egl/egl_external_platform.d",
    "GLVND_EGL_ICD_JSON": "/usr/share/glvnd/egl_vendor.d",
    "NVOPTIX_DATA": "/usr/share/nvidia",
    "OPENGL_DATA": "/usr/share/nvidia",
    "OPTIX_DATA": "/usr/share/nvidia",
    "VULKAN_ICD_JSON": "/usr/share/vulkan",
    "VULKANSC_ICD_JSON": "/usr/share/vulkansc",
}


@dataclass(frozen=True, slots=True)
class Placed:
    """A file or link of user space: path in the .run, and path in a container."""

    # Path in the .run; of a link: None.
    name: str | None
    path: str
    kind: FileKind
    features: tuple[str, ...]
    target: str | None = None
    is_executable: bool = False


def place(
    listed: Iterable[Listed],
    *,
    version: str,
    said: Mapping[str, tuple[str, ...]],
    leave_out: Collection[str] = (),
) -> list[Placed]:
    """Return the places of a driver's user space.

    Args:
        said: Features by file name, from the additional list of newer drivers.
    """
    placed: dict[str, Placed] = {}
    unknown: dict[str, str] = {}
    for entry in listed:
        kind = None if entry.type in leave_out else _kind(entry.type)
        if kind is None:
            # Files that no feature needs may have any type.
            may_be_needed = entry.type not in leave_out and not _is_left_out(entry.type)
            if may_be_needed and _features(entry, said):
                unknown.setdefault(entry.type, entry.name)
            continue
        features = _features(entry, said)
        if features is None and kind != "firmware":
            continue
        one = _place(entry, kind, features or (), version)
        placed.setdefault(one.path, one)
    if unknown:
        rows = [f"{kind}, such as {name}" for kind, name in sorted(unknown.items())]
        raise wrong_list("it has types of files that are not known", rows)
    return _without_dangling(placed)


def _is_left_out(kind: str) -> bool:
    return kind in _LEFT_OUT or kind.startswith(_LEFT_OUT_STARTS)


def _kind(kind: str) -> FileKind | None:
    """Return the vendor file's list for a type; None if it is left out or unknown."""
    if _is_left_out(kind):
        return None
    if kind == "FIRMWARE":
        return "firmware"
    if kind in _FOLDERS or kind.startswith(("XMODULE_", "GLX_MODULE_")):
        return "miscellaneous"
    if kind.endswith(("_BINARY", "_BIN_SYMLINK")) or kind == "NVIDIA_MODPROBE":
        return "binary"
    return "library" if kind.endswith(("_LIB", "_SYMLINK")) else None


def _features(entry: Listed, said: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the features that need a file; empty: only the host; None: not needed at all."""
    name = PurePosixPath(entry.name).name
    features = _BY_MODULE.get(entry.module, ())
    for start, own in _BY_NAME:
        if name.startswith(start):
            if not own:
                return own
            features = own
            break
    features = said.get(name) or features
    if not features:
        return None
    return (_COMPAT,) if entry.compat32 else features


def _place(entry: Listed, kind: FileKind, features: tuple[str, ...], version: str) -> Placed:
    folder = PurePosixPath(_folder(entry, kind, version))
    name = PurePosixPath(entry.name).name
    target = None if entry.target is None else PurePosixPath(entry.target).name
    return Placed(
        name=entry.name if target is None else None,
        path=str(folder / name),
        kind=kind,
        features=features,
        target=target,
        is_executable=bool(entry.mode & 0o111),
    )


def _folder(entry: Listed, kind: FileKind, version: str) -> str:
    if kind == "firmware":
        return f"/lib/firmware/nvidia/{version}"
    if kind == "binary":
        return "/usr/bin"
    below = f"/{entry.folder}" if entry.folder else ""
    if entry.type.startswith(("XMODULE_", "GLX_MODULE_")):
        return f"/usr/lib64/xorg/modules{below}"
    if kind == "miscellaneous":
        # Older lists name no folder for their only Vulkan file.
        default = "/icd.d" if entry.type.startswith("VULKAN") else ""
        return _FOLDERS[entry.type] + (below or default)
    # One folder, so that the loader finds all; variants in other folders are for old kernels.
    return _LIBRARIES_32 if entry.compat32 else _LIBRARIES


def _without_dangling(placed: Mapping[str, Placed]) -> list[Placed]:
    """Return the placed files and links, without links to missing files."""
    kept = dict(placed)
    while True:
        dangling = [
            path
            for path, one in kept.items()
            if one.target is not None and str(PurePosixPath(path).parent / one.target) not in kept
        ]
        if not dangling:
            return list(kept.values())
        for path in dangling:
            del kept[path]
