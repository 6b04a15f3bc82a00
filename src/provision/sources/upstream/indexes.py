"""Reads versions from indexes of files and packages. Pure."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from provision.distros.debian import upstream_version
from provision.sources.upstream.formats import VERSION, Release, bounded, unexpected

# Bytes of an unpacked index: the largest of NVIDIA's repositories has some 40 MB.
_MAX_INDEX = 256 << 20


# A comment, or the beginning of a link. The parser gets links only, one by one: over a page of
# unfinished elements, it takes time that grows with the square of the page's size.
_LINK = re.compile(r"<!--.*?(?:-->|\Z)|(<a\s[^<>]{0,4096}>)", re.DOTALL | re.IGNORECASE)


class _Links(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the target of a link."""
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


def http_index(content: bytes, *, url: str, pattern: str) -> tuple[Release, ...]:
    """Read a page that links to files; files that the pattern does not match are no versions."""
    page = _Links()
    for found in _LINK.finditer(content.decode("utf-8", "replace")):
        page.feed(found[1] or "")
    page.close()
    versions = []
    for target in page.targets:
        try:
            path = urlsplit(target).path
        except ValueError:
            continue
        name = unquote(path.rstrip("/").rpartition("/")[2])
        match = re.fullmatch(pattern, name)
        if match and VERSION.fullmatch(match[1] or ""):
            versions.append(match[1])
    return bounded([Release(version=version) for version in dict.fromkeys(versions)], url)


def deb_index(content: bytes, *, url: str, package: str) -> tuple[Release, ...]:
    """Read a ``Packages`` file, packed by gzip or not.

    Source: https://wiki.debian.org/DebianRepository/Format#A.22Packages.22_Indices
    """
    text = _unpacked(content, url)
    if text and b"Package: " not in text:
        raise unexpected(url, "no stanza begins with 'Package:'")
    versions: dict[str, None] = {}
    for stanza in re.split(rb"\n\s*\n", text):
        fields = dict(re.findall(rb"^(Package|Version): *(\S+)\s*$", stanza, re.MULTILINE))
        if fields.get(b"Package") == package.encode() and b"Version" in fields:
            versions[_upstream(fields[b"Version"].decode("ascii", "replace"), url)] = None
    return bounded([Release(version=version) for version in versions], url)


def rpm_index(content: bytes, *, url: str, package: str) -> tuple[Release, ...]:
    """Read a ``primary.xml`` of a repository of RPMs, packed by gzip or not.

    Source: https://createrepo.readthedocs.io/en/latest/ and
    http://linux.duke.edu/metadata/common, the namespace of its elements
    """
    versions: dict[str, None] = {}
    name: str | None = None
    for element in _elements(_unpacked(content, url), url):
        kind = element.tag.rpartition("}")[2]
        if kind == "name":
            name = element.text
        elif kind == "version" and name == package:
            versions[_upstream(element.get("ver", ""), url)] = None
        elif kind == "package":
            name = None
            element.clear()
    return bounded([Release(version=version) for version in versions], url)


def primary_of(content: bytes, *, url: str) -> str:
    """Return the path of the list of packages that a ``repomd.xml`` names."""
    for element in _elements(content, url):
        if element.tag.rpartition("}")[2] != "data" or element.get("type") != "primary":
            continue
        path = next((e.get("href", "") for e in element if e.tag.endswith("}location")), "")
        if re.fullmatch(r"repodata/[A-Za-z0-9][A-Za-z0-9._-]*\.xml(\.gz)?", path):
            return path
        raise unexpected(
            url, f"its list of packages lies at '{path[:100]}', not in repodata/ as .xml.gz"
        )
    raise unexpected(url, "it names no list of packages (type 'primary')")


def _elements(content: bytes, url: str) -> Iterable[ElementTree.Element]:
    """Yield the elements of an XML document as they end.

    Entities are refused: no repository declares any, and they make small files large.
    """
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise unexpected(url, "it declares entities or a document type")
    try:
        for _event, element in ElementTree.iterparse(io.BytesIO(content)):  # noqa: S314 - as above
            yield element
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        # The last two: it declares an encoding that is unknown, or that the parser does not read.
        raise unexpected(url, f"not XML: {error}") from error


def _unpacked(content: bytes, url: str) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            text = stream.read(_MAX_INDEX + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise unexpected(url, f"can't be unpacked: {error}") from error
    if len(text) > _MAX_INDEX:
        raise unexpected(url, f"larger than {_MAX_INDEX} bytes when it is unpacked")
    return text


def _upstream(version: str, url: str) -> str:
    try:
        upstream = upstream_version(version) if version else ""
    except ValueError:
        upstream = ""
    if not VERSION.fullmatch(upstream):
        raise unexpected(url, f"'{version[:64]}' is no version of a package")
    return upstream
