"""Takes NVIDIA's .run apart: the modules' source, and user space as a layer of the artifact.

Nothing in it is run or unpacked to disk: members are copied from one tar file to another, under
checked names. The same file gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from provision.elf import Elf, read_elf
from provision.pin import RunfileSource
from provision.sources.nvidia_lists import (
    FILE_LIST,
    MANIFEST,
    MAX_LIST,
    parse_file_list,
    parse_manifest,
)
from provision.sources.placement import Placed, place
from provision.sources.runfile import (
    MAX_PAYLOAD,
    Members,
    open_members,
    read_head,
    require,
    unpack_payload,
)

# The parts: the folders with the modules' source, the layer with user space, and its description.
SOURCES = ("kernel-open", "kernel")
LAYER = "layer"
FILES = "files"
_CHUNK = 1 << 20
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
                raise members.unfit(f"user space has more than {limit >> 20} MiB")
            parts[LAYER], rows = _layer(members, placed, folder / LAYER)
    finally:
        payload.unlink(missing_ok=True)
    parts[FILES] = folder / FILES
    document = {"schema": 1, "version": source.version, "files": rows}
    parts[FILES].write_text(json.dumps(document, sort_keys=True, indent=1) + "\n")
    return parts


def _source_parts(members: Members, folder: Path) -> dict[str, Path]:
    """Write each folder with a flavour's source, prebuilt objects included."""
    parts = {}
    for top in SOURCES:
        paths = sorted(path for path in members.files if path.startswith(f"{top}/"))
        if not paths:
            continue
        parts[top] = folder / top
        with tarfile.open(parts[top], mode="w", format=tarfile.GNU_FORMAT) as out:
            for path in paths:
                _add(out, path, members)
    if not parts:
        raise members.unfit(f"it has no folder {' or '.join(SOURCES)}")
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
    """Return the places of user space, from the lists in the file."""
    text = members.text(MANIFEST, MAX_LIST)
    if text is None:
        raise members.unfit(f"it has no list of its files, {MANIFEST}")
    said = parse_file_list(members.text(FILE_LIST, MAX_LIST) or "")
    listed = parse_manifest(text, version=source.version)
    placed = place(listed, version=source.version, said=said, leave_out=source.leave_out)
    missing = [one.name for one in placed if one.name and one.name not in members.files]
    if missing:
        raise members.unfit("files that its list names are missing", list(map(str, missing)))
    if _LICENCE[0] in members.files:
        placed.append(Placed(_LICENCE[0], _LICENCE[1], "miscellaneous", ()))
    return placed


def _layer(
    members: Members, placed: list[Placed], target: Path
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
        raise members.unfit("some of its files are damaged", damaged)
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
