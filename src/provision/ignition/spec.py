"""The part of Ignition's configuration that is used here, as strict models.

Source: https://coreos.github.io/ignition/configuration-v3_3/
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self
from urllib.parse import quote

from pydantic import Field, StringConstraints, model_validator

from provision.documents import Frozen

HostPath = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._+-]+)+$")]
Mode = Annotated[int, Field(ge=0, le=0o7777)]
# What a machine can fetch without credentials of ours.
Source = Annotated[str, StringConstraints(pattern=r"^(data:,|https?://|tftp://|s3://|gs://)\S*$")]


class Verification(Frozen):
    """What a fetched file must be."""

    hash: Annotated[str, StringConstraints(pattern=r"^sha512-[0-9a-f]{128}$")]


class Contents(Frozen):
    """Where a file's content comes from; what is in the document itself needs no verification."""

    source: Source
    verification: Verification | None = None

    @model_validator(mode="after")
    def _verified_if_fetched(self) -> Self:
        if self.source.startswith("data:") == (self.verification is not None):
            raise ValueError("what is fetched, and nothing else, is verified")
        return self


class Owner(Frozen):
    """A user or a group, by its number."""

    id: int = 0


class Node(Frozen):
    """What files, folders and links have: a place and an owner, root unless said otherwise."""

    path: HostPath
    user: Owner = Owner()
    group: Owner = Owner()


class Directory(Node):
    """A folder."""

    mode: Mode


class File(Node):
    """A file; one that is there is replaced, so that Ignition can be run again after a failure."""

    mode: Mode
    contents: Contents
    overwrite: Literal[True] = True


class Link(Node):
    """A symbolic link."""

    target: str
    overwrite: Literal[True] = True


class Storage(Frozen):
    """All that is written."""

    directories: tuple[Directory, ...] = ()
    files: tuple[File, ...] = ()
    links: tuple[Link, ...] = ()

    @model_validator(mode="after")
    def _each_path_once(self) -> Self:
        paths = [node.path for node in (*self.directories, *self.files, *self.links)]
        if len(paths) != len(set(paths)):
            raise ValueError("a path may be there only once")
        return self


class Unit(Frozen):
    """A systemd unit."""

    name: str
    enabled: bool
    contents: str


class Systemd(Frozen):
    """All units."""

    units: tuple[Unit, ...] = ()


class Head(Frozen):
    """Which version of the format this is.

    3.3.0 is the newest that Ignition 2.14 reads, and every later one reads it too.
    """

    version: Literal["3.3.0"] = "3.3.0"


class IgnitionConfig(Frozen):
    """A configuration."""

    ignition: Head = Head()
    storage: Storage = Storage()
    systemd: Systemd = Systemd()

    def render(self) -> str:
        """Return it as Ignition reads it; the same configuration gives the same text."""
        return json.dumps(self.model_dump(exclude_none=True), indent=2) + "\n"


def inline(text: str) -> Contents:
    """Return a text as part of the document.

    Source: https://www.rfc-editor.org/rfc/rfc2397
    """
    return Contents(source=f"data:,{quote(text, safe='')}")


def fetched(url: str, sha512: str) -> Contents:
    """Return a file that the machine fetches, and what it must be."""
    return Contents(source=url, verification=Verification(hash=f"sha512-{sha512}"))
