"""Types of the names, versions, checksums, addresses and paths in Pins and other documents."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from provision.errors import redact

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
ImageDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
# On a host or in a container.
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00\n]*$")]
# Goes into file names, image tags and RUN lines: no blanks, quotes or slashes.
KernelRelease = Annotated[
    str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9._+~-]*$", max_length=64)
]
Version = Annotated[
    str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9.+~_-]*$", max_length=64)
]
# As uname -m prints it.
Architecture = Literal["x86_64", "aarch64", "ppc64le", "s390x", "riscv64"]
# Debian policy 5.6.12, and epoch:version-release of RPM; the epoch's colon included.
PackageVersion = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9.+:~^_-]*$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]+$")]


_URL = r"^https?://[^\s\"'\\$`]+$"


def _address(text: object) -> object:
    if not isinstance(text, str):
        return text
    if not re.search(_URL, text):
        raise ValueError(
            f"'{redact(text)}' is no address such as https://vendor.example/file: it begins with"
            " http:// or https://, and has no blanks, quotes, '\\', '$' or '`'"
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"'{redact(text)}' is no address: {error}") from error
    if not host or port == 0:
        raise ValueError(f"'{redact(text)}' names no host such as https://vendor.example/file")
    return text


def is_address(text: str) -> bool:
    """Return whether a text is what ``Url`` takes; package managers know other schemes too."""
    try:
        return _address(text) == text
    except ValueError:
        return False


# Goes into a RUN line: nothing that a shell reads.
Url = Annotated[str, StringConstraints(pattern=_URL), BeforeValidator(_address)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
# Name and tag, as a Dockerfile's FROM takes it.
ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*$")]


def _inside(path: str) -> str:
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError(f"'{path}' is no path below a folder")
    return path


# Below a repository's folder.
Location = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+~^:%@=,._/-]*$"),
    AfterValidator(_inside),
]
