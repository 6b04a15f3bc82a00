"""Takes NVIDIA's self-extracting .run files apart, without running them.

Such a file is a shell script with a compressed tar file behind it. Its head says ``skip=N``: the
tar file begins with line N. Source: https://makeself.io/, and the heads of NVIDIA's own files. The
parts are the modules' source, and user space as a layer of the artifact. Nothing is unpacked to
disk: members are copied from one tar file to another, under checked names. The same file gives the
same bytes.

Its list of files is ``.manifest``: eight lines of head (the second is the version), then a line a
file: ``NAME MODE TYPE [NATIVE|COMPAT32] [FOLDER/ | INHERIT_PATH_DEPTH:N] [TARGET] MODULE:NAME``;
mode 0000 stands for a link. Newer drivers bring ``sandboxutils-filelist.json`` too, which says what
files are for: a list of objects with ``name`` and ``category``. Sources: manifest.c and files.c of
https://github.com/NVIDIA/nvidia-installer; for the features, nvc_info.c of
https://github.com/NVIDIA/libnvidia-container.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import lzma
import posixpath
import re
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from provision.elf import Elf, read_elf
from provision.errors import ProvisionError
from provision.manifest import FileKind
from provision.pin import RunfileSource
from provision.run import decompress

# The largest known head has some 40 kB.
_MAX_HEAD = 4 << 20
# Bytes of the tar file inside; today's have 1.3 GB.
MAX_PAYLOAD = 8 << 30
_CHUNK = 1 << 20
_SKIP = re.compile(rb"^skip=\"?([0-9]{1,6})\"?\s*$")
_FIELD = re.compile(rb"^(targetdir|pkg_version|label)=\"?([^\"\n]{0,200})\"?\s*$")
_FOLDER = re.compile(r"^NVIDIA-Linux-(?P<arch>[a-z0-9_]+)-(?P<version>[0-9][0-9.]*[0-9])")
_AGAIN = "Download it again, and compare its sha256 with the one that NVIDIA publishes."
_MAX_MEMBERS = 200_000
# As many links as are followed from one file to the next.
_MOST_LINKS = 8


class Head(NamedTuple):
    """The head of a file."""

    offset: int
    architecture: str | None
    version: str | None


def read_head(stream: IO[bytes], name: str) -> Head:
    """Read the head of a self-extracting file."""
    first = stream.read(512)
    if re.match(rb"\s*<(!doctype|html|\?xml)", first, re.IGNORECASE):
        raise ProvisionError(
            f"'{name}' is a web page, and no .run file.",
            resolution="A proxy or the server answered with a page in its place: open the address"
            " in a browser and look what it says.",
        )
    if not first.startswith(b"#!"):
        raise ProvisionError(
            f"'{name}' is no .run file: it doesn't begin with '#!'.", resolution=_AGAIN
        )
    stream.seek(0)
    fields: dict[str, str] = {}
    skip = 0
    for number in range(1, _MAX_HEAD):
        if number == skip:
            folder = _FOLDER.match(fields.get("targetdir", "").removeprefix("./"))
            version = folder["version"] if folder else fields.get("pkg_version") or None
            return Head(stream.tell(), folder["arch"] if folder else None, version)
        line = stream.readline(_MAX_HEAD)
        if not line.endswith(b"\n") or stream.tell() > _MAX_HEAD:
            break
        if match := _SKIP.match(line):
            skip = int(match[1])
        if match := _FIELD.match(line):
            fields.setdefault(match[1].decode(), match[2].decode(errors="replace"))
    said = f"it ends before line {skip}, where its content begins" if skip else "no 'skip=' in it"
    raise ProvisionError(f"'{name}' is no whole .run file: {said}.", resolution=_AGAIN)


def require(head: Head, *, version: str, architecture: str, name: str) -> None:
    """Refuse a file of another driver version or for another architecture."""
    for what, found, expected in (
        ("for the architecture", head.architecture, architecture),
        ("of the version", head.version, version),
    ):
        if found is not None and found != expected:
            raise ProvisionError(
                f"'{name}' is {what} {found}, not {expected}.",
                resolution="Correct 'url' (its {version} and {arch}), 'version' or 'architecture'"
                " of the release in driver.toml.",
            )


def unpack_payload(path: Path, head: Head, target: Path, *, limit: int = MAX_PAYLOAD) -> None:
    """Write the tar file inside a self-extracting file."""
    cut = target.with_name(f"{target.name}.zst")
    try:
        with path.open("rb") as stream:
            stream.seek(head.offset)
            magic = stream.read(6)
            stream.seek(head.offset)
            if magic.startswith(b"\x28\xb5\x2f\xfd"):
                _copy(stream, cut, path.name, limit)
                decompress(cut, target, limit=limit, why=f"unpack {path.name}")
            else:
                _copy(_plain(stream, magic, path.name), target, path.name, limit)
    except (EOFError, ValueError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ProvisionError(
            f"'{path.name}' is damaged or cut off: {error}.", resolution=_AGAIN
        ) from error
    except OSError as error:
        raise _too_large(path.name, limit) if error.errno == errno.EFBIG else error from error
    finally:
        cut.unlink(missing_ok=True)


def _plain(stream: IO[bytes], magic: bytes, name: str) -> IO[bytes] | gzip.GzipFile:
    if magic == b"\xfd7zXZ\x00":
        return lzma.open(stream)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    raise ProvisionError(
        f"The content of '{name}' is compressed in an unknown way (it begins with {magic.hex()}).",
        resolution="xz, zstd and gzip are known. " + _AGAIN,
    )


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, name: str, limit: int) -> None:
    done = 0
    with target.open("wb") as stream:
        while chunk := source.read(_CHUNK):
            done += len(chunk)
            if done > limit:
                raise _too_large(name, limit)
            stream.write(chunk)


def _too_large(name: str, limit: int) -> ProvisionError:
    return ProvisionError(
        f"The content of '{name}' has more than {limit >> 20} MiB.", resolution=_AGAIN
    )


class Members(NamedTuple):
    """The files and links of an open archive."""

    tar: tarfile.TarFile
    files: Mapping[str, tarfile.TarInfo]
    name: str

    def file(self, path: str) -> tarfile.TarInfo:
        """Return a member, or the target of a link."""
        member = self.files[path]
        for _ in range(_MOST_LINKS):
            if not member.issym():
                return member
            linked = posixpath.normpath(PurePosixPath(path).parent / member.linkname)
            if linked not in self.files:
                break
            path, member = linked, self.files[linked]
        raise ProvisionError(f"'{path}' in the .run is a link to nothing.", resolution=_AGAIN)

    def text(self, path: str, limit: int) -> str | None:
        """Return the text of a file; None if there is none, or it has more bytes than a limit."""
        member = self.files.get(path)
        if member is None or not member.isreg() or member.size > limit:
            return None
        stream = self.tar.extractfile(member)
        return stream.read().decode(errors="replace") if stream else None

    def invalid(self, what: str, problems: list[str] | None = None) -> ProvisionError:
        """Return the error for a file that can't be one of NVIDIA's."""
        return _invalid(self.name, what, problems)


@contextmanager
def open_members(payload: Path, name: str) -> Iterator[Members]:
    """Open the archive inside a .run."""
    try:
        with tarfile.open(payload, mode="r:") as tar:
            yield Members(tar, _checked(tar, name), name)
    # The last two are errors of invalid or oversized numbers in headers.
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError) as error:
        raise ProvisionError(
            f"'{name}' is damaged or cut off: {error}.", resolution=_AGAIN
        ) from error


def _checked(tar: tarfile.TarFile, name: str) -> dict[str, tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    problems: list[str] = []
    for member in tar:
        if member.name in {".", "./"}:
            continue
        problem, path = _problem(member, members)
        if problem:
            problems.append(problem)
        elif path:
            members[path] = member
        if len(members) > _MAX_MEMBERS:
            raise _invalid(name, f"it has more than {_MAX_MEMBERS} files")
    if problems:
        raise _invalid(name, "some of its files can't be taken", problems)
    return members


def _problem(member: tarfile.TarInfo, known: Collection[str]) -> tuple[str | None, str | None]:
    try:
        path = inside(member.name)
    except ValueError as error:
        return str(error), None
    if member.isdir():
        return None, None
    if path in known:
        return f"'{path}' comes twice", None
    if member.issym():
        climbs = PurePosixPath(path).parent / member.linkname
        depth = 0
        for part in climbs.parts:
            depth += -1 if part == ".." else 1
            if depth < 0:
                break
        if PurePosixPath(member.linkname).is_absolute() or depth < 0:
            return f"'{path}' is a link out of it, to '{member.linkname[:80]}'", None
    # A sparse file may claim to be larger than any disk.
    elif not member.isreg() or member.issparse():
        return f"'{path}' is neither file, folder nor link", None
    return None, path


def _invalid(name: str, what: str, problems: list[str] | None = None) -> ProvisionError:
    return ProvisionError(
        f"'{name}' is not what NVIDIA publishes: {what}.",
        resolution=_AGAIN,
        details="\n".join(problems) if problems else None,
    )


# The parts: the folders with the modules' source, the layer with user space, and its description.
SOURCES = ("kernel-open", "kernel")
LAYER = "layer"
FILES = "files"
# Which cards a version drives.
CARDS = "supported-gpus/supported-gpus.json"
_LICENCE = ("LICENSE", "/usr/share/doc/nvidia/LICENSE")
# Below the root of an artifact image.
_DRIVER = "opt/driver"
# SONAMEs, such as libcuda.so.1: a link of that name is made beside the library.
_SONAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")


def repack(
    run: Path, source: RunfileSource, folder: Path, *, limit: int = MAX_PAYLOAD
) -> dict[str, Path]:
    """Write the parts of a .run.

    Args:
        folder: An existing folder with room for three times the file inside.

    Returns:
        The parts' files: some of ``SOURCES``, ``LAYER`` and ``FILES``.
    """
    name = source.url.rpartition("/")[2]
    with run.open("rb") as stream:
        head = read_head(stream, name)
    require(head, version=source.version, architecture=source.architecture, name=name)
    payload = folder / "payload.tar"
    try:
        unpack_payload(run, head, payload, limit=limit)
        with open_members(payload, name) as members:
            parts = _source_parts(members, folder)
            placed = _placed(members, source)
            # A list may name a file many times.
            size = sum(members.file(one.name).size for one in placed if one.name)
            if size > limit:
                raise members.invalid(f"user space has more than {limit >> 20} MiB")
            parts[LAYER], rows = _layer(members, placed, folder / LAYER)
    finally:
        payload.unlink(missing_ok=True)
    parts[FILES] = folder / FILES
    document = {"schema": 1, "version": source.version, "files": rows}
    parts[FILES].write_text(json.dumps(document, sort_keys=True, indent=1) + "\n")
    return parts


def _source_parts(members: Members, folder: Path) -> dict[str, Path]:
    parts = {}
    for top in SOURCES:
        paths = sorted(path for path in members.files if path.startswith(f"{top}/"))
        if not paths:
            continue
        paths += [CARDS] if CARDS in members.files else []
        parts[top] = folder / top
        with tarfile.open(parts[top], mode="w", format=tarfile.GNU_FORMAT) as out:
            for path in paths:
                _add(out, path, members)
    if not parts:
        raise members.invalid(f"it has no folder {' or '.join(SOURCES)}")
    return parts


def _add(out: tarfile.TarFile, path: str, members: Members) -> None:
    member = members.files[path]
    entry = tarfile.TarInfo(path)
    entry.mode = 0o755 if member.mode & 0o111 else 0o644
    if member.issym():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, member.linkname, 0o777
        out.addfile(entry)
        return
    entry.size = member.size
    out.addfile(entry, members.tar.extractfile(member))


def _placed(members: Members, source: RunfileSource) -> list[Placed]:
    text = members.text(MANIFEST, MAX_LIST)
    if text is None:
        raise members.invalid(f"it has no list of its files, {MANIFEST}")
    said = parse_file_list(members.text(FILE_LIST, MAX_LIST) or "")
    listed = parse_manifest(text, version=source.version)
    placed = place(listed, version=source.version, said=said, leave_out=source.leave_out)
    missing = [one.name for one in placed if one.name and one.name not in members.files]
    if missing:
        raise members.invalid("files that its list names are missing", list(map(str, missing)))
    if _LICENCE[0] in members.files:
        placed.append(Placed(_LICENCE[0], _LICENCE[1], "miscellaneous", ()))
    return placed


def _layer(
    members: Members, placed: list[Placed], target: Path
) -> tuple[Path, list[dict[str, Any]]]:
    rows: dict[str, dict[str, Any]] = {}
    damaged: list[str] = []
    with tarfile.open(target, mode="w", format=tarfile.GNU_FORMAT) as out:
        for folder in _folders(placed):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            out.addfile(entry)
        for one in sorted((p for p in placed if p.name), key=lambda p: p.path):
            stream = members.tar.extractfile(members.file(str(one.name)))
            if stream is None:
                damaged.append(f"'{one.name}' is a link to nothing")
                continue
            try:
                rows[one.path] = _file_row(out, one, stream)
            except ValueError as error:
                damaged.append(f"'{one.name}' is {error}")
        for one in sorted(_links(placed, rows), key=lambda p: p.path):
            rows[one.path] = _link_row(out, one)
    if damaged:
        raise members.invalid("some of its files are damaged", damaged)
    return target, [rows[path] for path in sorted(rows)]


def _folders(placed: list[Placed]) -> list[str]:
    found = {PurePosixPath("opt"), PurePosixPath(_DRIVER)}
    for one in placed:
        found.update(
            parent
            for parent in PurePosixPath(_DRIVER + one.path).parents
            if parent.is_relative_to("opt")
        )
    return sorted(str(path) for path in found)


def _file_row(out: tarfile.TarFile, one: Placed, stream: IO[bytes]) -> dict[str, Any]:
    library: Elf | None = None
    if one.kind == "library":
        library = read_elf(stream)
    stream.seek(0, io.SEEK_END)
    entry = tarfile.TarInfo(_DRIVER + one.path)
    entry.size = stream.tell()
    entry.mode = 0o755 if one.is_executable else 0o644
    stream.seek(0)
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    stream.seek(0)
    out.addfile(entry, stream)
    return {
        "path": one.path,
        "kind": one.kind,
        "features": list(one.features),
        "sha256": digest.hexdigest(),
        "size": entry.size,
        "mode": f"{entry.mode:04o}",
        "soname": library.soname if library else None,
        "elf_class": library.bits if library else None,
        "link": None,
    }


def _links(placed: list[Placed], rows: Mapping[str, dict[str, Any]]) -> list[Placed]:
    links = {one.path: one for one in placed if one.target is not None}
    for path, row in rows.items():
        soname = row["soname"] or ""
        beside = str(PurePosixPath(path).with_name(soname)) if _SONAME.fullmatch(soname) else path
        if beside not in rows and beside not in links:
            target = PurePosixPath(path).name
            links[beside] = Placed(None, beside, row["kind"], tuple(row["features"]), target)
    return [one for path, one in links.items() if path not in rows]


def _link_row(out: tarfile.TarFile, one: Placed) -> dict[str, Any]:
    entry = tarfile.TarInfo(_DRIVER + one.path)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(one.target), 0o777
    out.addfile(entry)
    return {
        "path": one.path,
        "kind": one.kind,
        "features": list(one.features),
        "sha256": None,
        "size": None,
        "mode": None,
        "soname": None,
        "elf_class": None,
        "link": one.target,
    }


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


class Listed(NamedTuple):
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


class Placed(NamedTuple):
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
