"""Small archives that look like those that machines get, and a wish that can be fulfilled."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

from provision.export.ignition.served_folder import Options

_X86_64 = 62
BUNDLE = "provision-0123456789ab.tar"
_URL = "https://files.example/provision"


def elf(machine: int = _X86_64) -> bytes:
    """The head of a program, as far as it is looked at."""
    return struct.pack("<4sBBBx8xHH", b"\x7fELF", 2, 1, 1, 2, machine)


def python_members(*, minor: int = 11, glibc: str = "2.36") -> dict[str, bytes]:
    """What makes an archive one of a Python."""
    return {
        f"opt/provision/python/bin/python3.{minor}": elf(),
        "opt/provision/python/bin/python3": b"",
        "opt/provision/python/lib/libc.so.6": (
            f"GNU C Library (Debian GLIBC) stable release version {glibc}.\n".encode()
        ),
    }


def write_archive(path: Path, members: dict[str, bytes]) -> Path:
    """Write a tar archive, compressed if its name says so; empty members become links.

    The same members give the same bytes: tarfile's own "w:gz" writes the time into the header.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if not data:
                info.type, info.linkname = tarfile.SYMTYPE, "python3.11"
            archive.addfile(info, io.BytesIO(data))
    written = content.getvalue()
    path.write_bytes(gzip.compress(written, mtime=0) if path.suffix == ".gz" else written)
    return path


def write_python(folder: Path) -> Path:
    """An archive of a Python 3.11."""
    return write_archive(folder / "python.tar.gz", python_members())


def write_bundle(folder: Path) -> Path:
    """An archive of wheels."""
    wheels = {"pip-25.0-py3-none-any.whl": b"1", "provision-0.1-py3-none-any.whl": b"2"}
    return write_archive(folder / BUNDLE, wheels)


def write_hook(folder: Path, machine: int = _X86_64) -> Path:
    """A program."""
    path = folder / "oci-decorator"
    path.write_bytes(elf(machine))
    return path


def write_toml(folder: Path, text: str = "[drivers.nvidia]\n") -> Path:
    """A provision.toml."""
    path = folder / "provision.toml"
    path.write_text(text)
    return path


def make_options(folder: Path, **changes: object) -> Options:
    """A wish with all files in a folder."""
    values: dict[str, object] = {
        "config": write_toml(folder),
        "url": _URL,
        "variant": "fcos",
        "python": write_python(folder),
        "hook": write_hook(folder),
        "engines": (),
        "docker_config": None,
        "docker_default": False,
        "bundle": write_bundle(folder),
        "source": folder,
        "wheelhouse": None,
        "expect": (),
    }
    return Options(**{**values, **changes})  # type: ignore[arg-type]
