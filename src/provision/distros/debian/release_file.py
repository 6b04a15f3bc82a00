"""The Release file of a suite, and the compressed index files that it lists."""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from provision.errors import ProvisionError

_FIELD = re.compile(r"^([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)$", re.MULTILINE)
_SECTION = re.compile(r"^SHA256:[ \t]*\n((?: .*\n?)*)", re.MULTILINE)
# In order of preference.
_ENDINGS = (".xz", ".gz", "")
_PUBLISHED = "The archive published it like that: try again later, or use another mirror."


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A Packages or Sources file.

    Attributes:
        path: Relative to the suite's folder.
        sha256: Of the file.
        size: Of the file, in bytes.
        unpacked_size: Bytes of its text; None: the Release file doesn't say.
    """

    path: str
    sha256: str
    size: int
    unpacked_size: int | None


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A Release file whose signature was good.

    Attributes:
        fields: Its one-line fields.
        checksums: Its section of sha256 sums, as it stands there.
    """

    fields: Mapping[str, str]
    checksums: str

    @property
    def origin(self) -> str:
        """Who publishes the archive."""
        return self.fields.get("Origin", "")

    @property
    def names(self) -> tuple[str, ...]:
        """What it calls itself: its codename and its suite.

        Where a suite's name begins with the codename, as Ubuntu's ``noble-updates`` does, all
        suites of a release have one codename, and only the suite says which one it is.
        """
        codename, suite = (self.fields.get(name, "").strip() for name in ("Codename", "Suite"))
        if codename and suite.startswith(f"{codename}-"):
            return (suite,)
        return tuple(dict.fromkeys(name for name in (codename, suite) if name))

    @property
    def components(self) -> frozenset[str]:
        """The archive's sections (``updates/main`` of a security archive is ``main``)."""
        words = self.fields.get("Components", "").split()
        return frozenset(word.rpartition("/")[2] for word in words)

    @property
    def architectures(self) -> frozenset[str]:
        """The architectures that it has indexes of."""
        return frozenset(self.fields.get("Architectures", "").split())

    @property
    def date(self) -> datetime | None:
        """When it was made; None: it doesn't say."""
        return _date(self.fields.get("Date"))

    @property
    def valid_until(self) -> datetime | None:
        """When it ceases to be valid; None: never."""
        return _date(self.fields.get("Valid-Until"))

    @property
    def has_by_hash(self) -> bool:
        """Whether indexes can be had by their checksum, so that an update can't tear them."""
        return self.fields.get("Acquire-By-Hash") == "yes"

    @property
    def is_automatic(self) -> bool:
        """Whether its packages are installed without being asked for; backports are not."""
        return self.fields.get("NotAutomatic") != "yes"

    def architectures_to_read(self, architecture: str) -> list[str]:
        """Return the architectures whose indexes hold what an architecture can install.

        Source: https://wiki.debian.org/DebianRepository/Format, "No-Support-for-Architecture-all".
        """
        apart = "Packages" not in self.fields.get("No-Support-for-Architecture-all", "").split()
        return [architecture, "all"] if "all" in self.architectures and apart else [architecture]

    def packages_file(self, component: str, architecture: str) -> IndexFile | None:
        """Return the best Packages file of a section; None if it has none."""
        return self._best(f"{component}/binary-{architecture}/Packages")

    def sources_file(self, component: str) -> IndexFile | None:
        """Return the best Sources file of a section; None if it has none."""
        return self._best(f"{component}/source/Sources")

    def _best(self, stem: str) -> IndexFile | None:
        plain = self._listed(stem)
        for ending in _ENDINGS:
            if found := self._listed(stem + ending):
                return IndexFile(stem + ending, *found, plain[1] if plain else None)
        return None

    def _listed(self, path: str) -> tuple[str, int] | None:
        """Return a file's sha256 and size."""
        pattern = rf"^ ([0-9a-f]{{64}})[ \t]+([0-9]{{1,15}})[ \t]+{re.escape(path)}$"
        match = re.search(pattern, self.checksums, re.MULTILINE)
        return (match[1], int(match[2])) if match else None


def parse_release(payload: bytes, *, name: str) -> ReleaseFile:
    """Read a Release file.

    Args:
        payload: What was signed.
        name: What error messages call it.

    Raises:
        ProvisionError: It has no sha256 sums, or a date that is not valid.
    """
    text = payload.decode(errors="replace")
    section = _SECTION.search(text)
    if section is None:
        raise ProvisionError(
            f"'{name}' is no archive's index: it lists no sha256 sums.", resolution=_PUBLISHED
        )
    fields = dict(_FIELD.findall(text))
    for key in ("Date", "Valid-Until"):
        if key in fields and _date(fields[key]) is None:
            raise ProvisionError(
                f"'{name}' is no archive's index: its {key} is '{fields[key]}', which is no date.",
                resolution=_PUBLISHED,
            )
    return ReleaseFile(fields, section[1])


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


# Bytes of one file; the largest that are known have some 20 MB packed and 100 MB unpacked.
MAX_PACKED = 256 << 20
MAX_TEXT = 512 << 20
_CHUNK = 4 << 20
_CUT = "it ends too early"


def read_packed(path: Path, index: IndexFile) -> bytes:
    """Return the text of a Packages or Sources file; arguments and errors as ``read_chunks``."""
    return b"".join(read_chunks(path, index))


def read_chunks(path: Path, index: IndexFile) -> Iterator[bytes]:
    """Yield the text of a Packages or Sources file, never more than it may have.

    While the caller works on a chunk, the next one is unpacked in a thread: Python's lock is free
    meanwhile.

    Args:
        path: The file, as it was downloaded.
        index: What the Release file says about it.

    Raises:
        ProvisionError: It is damaged, or larger than the Release file says.
        OSError: It can't be read.
    """
    limit = min(MAX_TEXT if index.unpacked_size is None else index.unpacked_size, MAX_TEXT)
    chunks = _unpacked(path.read_bytes(), Path(index.path).suffix, min(_CHUNK, limit + 1))
    length = 0
    with ThreadPoolExecutor(1) as pool:
        try:
            following = pool.submit(next, chunks, None)
            while (chunk := following.result()) is not None:
                length += len(chunk)
                if length > limit:
                    raise _published(index, f"is larger than {limit} bytes when it is unpacked")
                following = pool.submit(next, chunks, None)
                yield chunk
        except (lzma.LZMAError, zlib.error, EOFError) as error:
            raise _published(index, f"can't be unpacked: {error}") from error


def _published(index: IndexFile, what: str) -> ProvisionError:
    return ProvisionError(
        f"The package index '{index.path}' {what}.",
        resolution=_PUBLISHED,
    )


def _unpacked(data: bytes, suffix: str, size: int) -> Iterator[bytes]:
    """Yield the content of a file in pieces of ``size`` bytes at most.

    Such files may be made of several, one after the other, with zeros between them.

    Raises:
        lzma.LZMAError: It is damaged.
        zlib.error: It is damaged.
        EOFError: It ends too early.
    """
    unpack = _UNPACK.get(suffix)
    if unpack is None:
        yield from (data[at : at + size] for at in range(0, len(data), size))
        return
    # At least one: an empty file is damaged.
    data = yield from unpack(data, size)
    while data := data.lstrip(b"\0"):
        data = yield from unpack(data, size)


def _unxz(data: bytes, size: int) -> Generator[bytes, None, bytes]:
    """Yield the content of the first of the files in ``data``; returns what follows it."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    while not decoder.eof:
        if not data and decoder.needs_input:
            raise EOFError(_CUT)
        yield decoder.decompress(data, size)
        data = b""
    return decoder.unused_data


def _gunzip(data: bytes, size: int) -> Generator[bytes, None, bytes]:
    """Do the same with gzip: https://docs.python.org/3/library/zlib.html#zlib.decompressobj."""
    decoder = zlib.decompressobj(wbits=31)
    while not decoder.eof:
        if not data:
            raise EOFError(_CUT)
        yield decoder.decompress(data, size)
        data = decoder.unconsumed_tail
    return decoder.unused_data


_UNPACK = {".xz": _unxz, ".gz": _gunzip}
