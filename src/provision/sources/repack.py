"""Takes NVIDIA's .run apart: the modules' source, and user space as a layer of the artifact.

Nothing in it is run or unpacked to disk: members are copied from one tar file to another, under
checked names. The same file gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from provision.elf import Elf, read_elf
from provision.errors import ProvisionError
from provision.pin import RunfileSource
from provision.sources.makeself import MAX_PAYLOAD, read_head, require, unpack_payload
from provision.sources.nvidia_lists import (
    FILE_LIST,
    MANIFEST,
    MAX_LIST,
    inside,
    parse_file_list,
    parse_manifest,
)
from provision.sources.placement import Placed, place

# The parts: the folders with the modules' source, the layer with user space, and its description.
SOURCES = ("kernel-open", "kernel")
LAYER = "layer"
FILES = "files"
_MAX_MEMBERS = 200_000
_CHUNK = 1 << 20
_LICENCE = ("LICENSE", "/usr/share/doc/nvidia/LICENSE")
# Below the root of an artifact image.
_DRIVER = "opt/driver"
# SONAMEs, such as libcuda.so.1: a link of that name is made beside the library.
_SONAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_AGAIN = "Download it again, and compare its sha256 with the one that NVIDIA publishes."


def repack(
    run: Path, source: RunfileSource, folder: Path, *, limit: int = MAX_PAYLOAD
) -> dict[str, Path]:
    """Write the parts of a .run.

    Args:
        run: The file.
        source: Its source in the Pin.
        folder: An existing folder with room for three times the file inside.
        limit: The most bytes that the file inside may have.

    Returns:
        The parts' files: some of ``SOURCES``, ``LAYER`` and ``FILES``.

    Raises:
        NotFoundError: A program that unpacks it is missing.
        ProvisionError: It is no such file, damaged, for another architecture or version, or has
            paths that lead out of it.
    """
    name = source.url.rpartition("/")[2]
    with run.open("rb") as stream:
        head = read_head(stream, name)
    require(head, version=source.version, architecture=source.architecture, name=name)
    payload = folder / "payload.tar"
    try:
        unpack_payload(run, head, payload, limit=limit)
        with _opened(payload, name) as (tar, members):
            parts = {
                top: _source_part(tar, members, top, folder / top)
                for top in SOURCES
                if any(path.startswith(f"{top}/") for path in members)
            }
            if not parts:
                raise _unfit(name, f"it has no folder {' or '.join(SOURCES)}")
            placed = _placed(tar, members, source, name)
            # A list may name a file many times.
            size = sum(_file(members, one.name).size for one in placed if one.name)
            if size > limit:
                raise _unfit(name, f"user space has more than {limit >> 20} MiB")
            parts[LAYER], rows = _layer(tar, members, placed, folder / LAYER, name)
    finally:
        payload.unlink(missing_ok=True)
    parts[FILES] = folder / FILES
    document = {"schema": 1, "version": source.version, "files": rows}
    parts[FILES].write_text(json.dumps(document, sort_keys=True, indent=1) + "\n")
    return parts


@contextmanager
def _opened(
    payload: Path, name: str
) -> Iterator[tuple[tarfile.TarFile, Mapping[str, tarfile.TarInfo]]]:
    """Open the tar file inside; yields it with its members by path, checked."""
    try:
        with tarfile.open(payload, mode="r:") as tar:
            yield tar, _members(tar, name)
    # The last two are errors of invalid or oversized numbers in headers.
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError) as error:
        raise ProvisionError(
            f"'{name}' is damaged or cut off: {error}.", resolution=_AGAIN
        ) from error


def _members(tar: tarfile.TarFile, name: str) -> dict[str, tarfile.TarInfo]:
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
            raise _unfit(name, f"it has more than {_MAX_MEMBERS} files")
    if problems:
        raise _unfit(name, "some of its files can't be taken", problems)
    return members


def _problem(member: tarfile.TarInfo, known: Collection[str]) -> tuple[str | None, str | None]:
    """Return the problem of a member, or its path."""
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


def _unfit(name: str, what: str, problems: list[str] | None = None) -> ProvisionError:
    return ProvisionError(
        f"'{name}' is not what NVIDIA publishes: {what}.",
        resolution=_AGAIN,
        details="\n".join(problems) if problems else None,
    )


def _source_part(
    tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], top: str, target: Path
) -> Path:
    """Write the folder with one flavour's source, prebuilt objects included."""
    with tarfile.open(target, mode="w", format=tarfile.GNU_FORMAT) as out:
        for path in sorted(path for path in members if path.startswith(f"{top}/")):
            _add(out, path, tar, members[path])
    return target


def _add(out: tarfile.TarFile, path: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    entry = tarfile.TarInfo(path)
    entry.mode = 0o755 if member.mode & 0o111 else 0o644
    if member.issym():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, member.linkname, 0o777
        out.addfile(entry)
        return
    entry.size = member.size
    out.addfile(entry, tar.extractfile(member))


def _placed(
    tar: tarfile.TarFile,
    members: Mapping[str, tarfile.TarInfo],
    source: RunfileSource,
    name: str,
) -> list[Placed]:
    """Return the places of user space, from the lists in the file.

    Raises:
        ProvisionError: The list is missing, or names missing files; all are named.
    """
    text = _text(tar, members, MANIFEST)
    if text is None:
        raise _unfit(name, f"it has no list of its files, {MANIFEST}")
    said = parse_file_list(_text(tar, members, FILE_LIST) or "")
    listed = parse_manifest(text, version=source.version)
    placed = place(listed, version=source.version, said=said, leave_out=source.leave_out)
    missing = [one.name for one in placed if one.name and one.name not in members]
    if missing:
        raise _unfit(name, "files that its list names are missing", [str(one) for one in missing])
    if _LICENCE[0] in members:
        placed.append(Placed(_LICENCE[0], _LICENCE[1], "miscellaneous", ()))
    return placed


def _text(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], path: str) -> str | None:
    member = members.get(path)
    if member is None or not member.isreg() or member.size > MAX_LIST:
        return None
    stream = tar.extractfile(member)
    return stream.read().decode(errors="replace") if stream else None


def _layer(
    tar: tarfile.TarFile,
    members: Mapping[str, tarfile.TarInfo],
    placed: list[Placed],
    target: Path,
    name: str,
) -> tuple[Path, list[dict[str, Any]]]:
    """Write the layer with user space; returns it with the manifest's row of each file."""
    rows: dict[str, dict[str, Any]] = {}
    damaged: list[str] = []
    with tarfile.open(target, mode="w", format=tarfile.GNU_FORMAT) as out:
        for folder in _folders(placed):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            out.addfile(entry)
        for one in sorted((p for p in placed if p.name), key=lambda p: p.path):
            stream = tar.extractfile(_file(members, str(one.name)))
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
        raise _unfit(name, "some of its files are damaged", damaged)
    return target, [rows[path] for path in sorted(rows)]


def _file(members: Mapping[str, tarfile.TarInfo], path: str) -> tarfile.TarInfo:
    """Return a member, or the target of a link."""
    member = members[path]
    for _ in range(8):
        if not member.issym():
            return member
        linked = posixpath.normpath(PurePosixPath(path).parent / member.linkname)
        if linked not in members:
            break
        path, member = linked, members[linked]
    raise ProvisionError(f"'{path}' in the .run is a link to nothing.", resolution=_AGAIN)


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
    """Copy a file; returns its row in the manifest."""
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
    """Return the links in the list, and those for SONAMEs that it lacks."""
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
