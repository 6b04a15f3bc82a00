"""Scripts of POSIX shell that run on a host without Python."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

# A file in the unpacked tree with the archive's checksum. It marks the tree as ours.
_STAMP = ".archive-sha256"
# Loads all libraries that the archive contains.
_WORKS = "import bz2, ctypes, lzma, sqlite3, ssl, venv, xml.parsers.expat, zlib"


@dataclass(frozen=True)
class There:
    """The Python on a host.

    Attributes:
        digest: Checksum of the archive that was unpacked; None: none of ours.
        works: Whether its Python starts.
    """

    digest: str | None
    works: bool


def look_script(prefix: str) -> str:
    """Return a script that prints 'digest=…' and, if the Python runs, 'works'."""
    return f"""
if [ -f {quote(prefix)}/{_STAMP} ]; then
    echo "digest=$(cat {quote(prefix)}/{_STAMP})"
fi
if {quote(prefix)}/bin/python3 -I -c {quote(_WORKS)} >/dev/null 2>&1; then
    echo works
fi
"""


def parse_look(printed: str) -> There:
    """Return what the script of look_script printed, as a value."""
    lines = printed.split()
    digests = [line.removeprefix("digest=") for line in lines if line.startswith("digest=")]
    return There(digests[0] if digests else None, "works" in lines)


def install_script(archive: str, digest: str, prefix: str) -> str:
    """Return a script that unpacks an archive that is on the host.

    It is unpacked beside its place, which it gets by a rename. It can be tried only there: what it
    loads, it looks for by whole paths. Where it does not run, the former gets its place back.
    """
    folder, name = prefix.rsplit("/", 1)
    return f"""
prefix={quote(prefix)}
draft={quote(f"{folder}/.{name}.draft")}
umask 022
echo {quote(f"{digest}  {archive}")} | sha256sum -c - >/dev/null ||
    {{ echo "the archive was damaged on its way" >&2; exit 1; }}
mkdir -p {quote(folder)}
# A run that was interrupted between two renames left the earlier Python there.
if [ -e "$draft/former" ] && [ ! -e "$prefix" ]; then
    mv "$draft/former" "$prefix"
fi
rm -rf "$draft"
mkdir -m 700 "$draft"
trap 'rm -rf "$draft"' EXIT
tar --no-same-owner -xzf {quote(archive)} -C "$draft"
new="$draft$prefix"
[ -x "$new/bin/python3" ] ||
    {{ echo "it was made for another --prefix than $prefix" >&2; exit 1; }}
echo {quote(digest)} >"$new/{_STAMP}"
sync
if [ -e "$prefix" ]; then
    mv "$prefix" "$draft/former"
fi
mv "$new" "$prefix"
if command -v restorecon >/dev/null; then
    restorecon -R "$prefix" || echo "restorecon failed" >&2
fi
if ! "$prefix/bin/python3" -I -c {quote(_WORKS)}; then
    mv "$prefix" "$draft/refused"
    if [ -e "$draft/former" ]; then
        mv "$draft/former" "$prefix"
    fi
    echo "it does not run on this $(uname -m)" >&2
    exit 1
fi
"""


def remove_script(prefix: str) -> str:
    """Return a script that removes the Python, and the folder above it if that is empty then."""
    folder, name = prefix.rsplit("/", 1)
    gone = quote(f"{folder}/.{name}.gone")
    return f"""
rm -rf {gone}
mv {quote(prefix)} {gone}
rm -rf {gone}
rmdir {quote(folder)} 2>/dev/null || true
"""
