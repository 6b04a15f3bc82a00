"""Checksums that vendors publish beside their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch import get_small
from provision.sources.upstream.formats import redistributed_sums

# A list of sums of some thousand files.
_MAX_SUMS = 4 << 20
# As sha256sum(1) prints it, in text and binary mode; or only the sum.
_LINE = re.compile(r"([0-9A-Fa-f]{64})(?:\s+\*?(\S.*))?")
# As BSD's programs and 'sha256sum --tag' print it.
_TAGGED = re.compile(r"SHA256 \((.+)\) = ([0-9A-Fa-f]{64})")
_BY_HAND = (
    "If the file is elsewhere, or has no published sum, add a release with its 'url' and 'sha256'"
    " to driver.toml; 'sha256sum FILE' prints it."
)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def published_sum(url: str, checksums: str) -> str:
    """Return the sha256 of a file as its vendor publishes it.

    Who may write there is what HTTPS says, so plain HTTP is refused, but on this machine itself.

    Args:
        url: Address of the file.
        checksums: Address of the sums: lines of ``sha256sum``, or a ``redistrib_VERSION.json``.

    Returns:
        64 hexadecimal digits, in lower case.

    Raises:
        UsageError: The address of the sums is not one of HTTPS.
        NotFoundError: There are no such sums, or none of this file.
        UnreachableError: The server can't be reached, or kept failing.
        ProvisionError: What answers are no sums, or two different ones of this file.
    """
    parts = urlsplit(checksums)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise UsageError(
            f"'{checksums}' can't vouch for a checksum: it is not https.",
            resolution="Name an address that begins with https:// as 'checksums', or give the"
            " file's 'sha256' itself.",
        )
    try:
        content = get_small(checksums, limit=_MAX_SUMS)
    except NotFoundError as error:
        raise NotFoundError(
            f"The vendor publishes no checksum of '{url}' at '{checksums}'.",
            resolution=f"Check the version. {_BY_HAND}",
            details=error.message,
        ) from error
    if content.lstrip()[:1] == b"{":
        found = redistributed_sums(content, url=checksums).get(url)
        sums = set() if found is None else {found}
    else:
        sums = _sums_of(content.decode("utf-8", "replace"), url, checksums)
    if not sums:
        raise NotFoundError(
            f"'{checksums}' has no sha256 of '{url}'.",
            resolution=f"See which files it names: curl -sSL {checksums}. {_BY_HAND}",
        )
    if len(sums) > 1:
        raise ProvisionError(
            f"'{checksums}' has different sums of '{url}'.",
            resolution="Try again later: it may be in the middle of an update.",
            details="\n".join(sorted(sums)),
        )
    return sums.pop()


def parse_sums(text: str) -> Mapping[str, set[str]]:
    """Return the sums of a list by file name without folder; a sum without a name stands under "".

    Lines that are no sums are left out: some vendors sign their lists in the clear.
    """
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if tagged := _TAGGED.fullmatch(line.strip()):
            name, digest = tagged[1], tagged[2]
        elif plain := _LINE.fullmatch(line.strip()):
            name, digest = plain[2] or "", plain[1]
        else:
            continue
        found.setdefault(name.rpartition("/")[2], set()).add(digest.lower())
    return found


def _sums_of(text: str, url: str, checksums: str) -> set[str]:
    sums = parse_sums(text)
    if not sums:
        raise ProvisionError(
            f"'{checksums}' holds no sha256.",
            resolution=f"Something else answered in its place: curl -sSL {checksums}",
            details=text.strip().splitlines()[0][:200] if text.strip() else "it is empty",
        )
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    # A sum without a name is that of the file that the list is named after.
    is_of_one_file = urlsplit(checksums).path.rpartition("/")[2].startswith(name)
    return sums.get(name) or (sums.get("", set()) if is_of_one_file else set())
