"""Packages of Debian's kind, by hand after deb(5); dpkg-deb writes those of the engine tests."""

from pathlib import Path


def package(path: Path, *members: tuple[str, bytes]) -> Path:
    """Write an archive of ar, as packages of Debian's kind are."""
    with path.open("wb") as out:
        out.write(b"!<arch>\n")
        for name, content in members:
            out.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            out.write(content + b"\n" * (len(content) % 2))
    return path


def deb(folder: Path, data: bytes, name: str = "data.tar.xz") -> Path:
    """Write a package with these files; its control files have an odd size."""
    members = (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (name, data))
    return package(folder / "a.deb", *members)
