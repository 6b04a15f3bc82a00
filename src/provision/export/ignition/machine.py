"""The Ignition configuration of a machine, as strict models. Pure.

Source: https://coreos.github.io/ignition/configuration-v3_3/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self
from urllib.parse import quote

from pydantic import Field, StringConstraints, model_validator

from provision.documents import Frozen
from provision.export.ignition.engine_files import (
    BIN,
    PROGRAM,
    PROVISION_TOML,
    RUNTIME,
    VENDORS,
    managed_records,
    render,
)
from provision.export.ignition.engine_files import FOLDER as RECORDS

HostPath = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._+-]+)+$")]
Mode = Annotated[int, Field(ge=0, le=0o7777)]
# Addresses that a machine can fetch without credentials.
Source = Annotated[str, StringConstraints(pattern=r"^(data:,|https?://|tftp://|s3://|gs://)\S*$")]
Variant = Literal["fcos", "flatcar"]
# Butane's name for the distro, and the version of its format that makes Ignition's 3.3.0.
# Source: https://coreos.github.io/butane/specs/
BUTANE: Mapping[Variant, str] = {"fcos": "1.4.0", "flatcar": "1.0.0"}
_FOLDER = "/opt/provision"
_STAGED = f"{_FOLDER}/first-boot"
_UNIT = "provision-first-boot.service"


class Verification(Frozen):
    """The checksum of a fetched file."""

    hash: Annotated[str, StringConstraints(pattern=r"^sha512-[0-9a-f]{128}$")]


class Contents(Frozen):
    """The origin of a file's content; inline content needs no verification."""

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
    """The common members of files, folders and links: a path and an owner, root by default."""

    path: HostPath
    user: Owner = Owner()
    group: Owner = Owner()


class Directory(Node):
    """A folder."""

    mode: Mode


class File(Node):
    """A file; an existing one is replaced, so that Ignition can run again after a failure."""

    mode: Mode
    contents: Contents
    overwrite: Literal[True] = True


class Link(Node):
    """A symbolic link."""

    target: str
    overwrite: Literal[True] = True


class Storage(Frozen):
    """All files, folders and links."""

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
    """The version of the format: 3.3.0 is the newest that Ignition 2.14 reads."""

    version: Literal["3.3.0"] = "3.3.0"


class IgnitionConfig(Frozen):
    """A configuration."""

    ignition: Head = Head()
    storage: Storage = Storage()
    systemd: Systemd = Systemd()

    def render(self) -> str:
        """Return the JSON text; the same configuration gives the same text."""
        return json.dumps(self.model_dump(exclude_none=True), indent=2) + "\n"


def inline(text: str) -> Contents:
    """Return a text as inline content.

    Source: https://www.rfc-editor.org/rfc/rfc2397
    """
    return Contents(source=f"data:,{quote(text, safe='')}")


def fetched(url: str, sha512: str) -> Contents:
    """Return the content of a file that the machine fetches and verifies."""
    return Contents(source=url, verification=Verification(hash=f"sha512-{sha512}"))


@dataclass(frozen=True, slots=True)
class Machine:
    """The contents of a machine.

    Attributes:
        provision_toml: The text of its provision.toml.
        environment: Name of its virtual environment.
        python: The archive of its Python.
        bundle: The archive of wheels.
        hook: The program oci-decorator; None: its containers get no drivers.
        texts: Further files, by path.
        daemon_json: Docker's original daemon.json; None where the host has no such file.
    """

    provision_toml: str
    environment: str
    python: Contents
    bundle: Contents
    hook: Contents | None = None
    texts: Mapping[str, str] | None = None
    daemon_json: str | None = None


def configuration(machine: Machine) -> IgnitionConfig:
    """Return the configuration of a machine."""
    texts = {**(machine.texts or {}), PROVISION_TOML: machine.provision_toml}
    kept = managed_records(texts, daemon_json=machine.daemon_json)
    files = {
        f"{_FOLDER}/provision.tar": (0o644, machine.bundle),
        f"{_STAGED}/python.tar.gz": (0o644, machine.python),
        f"{_STAGED}/first-boot.sh": (0o755, inline(render("first-boot.sh"))),
        **{path: (0o644, inline(text)) for path, text in texts.items()},
        **{path: (0o600, inline(text)) for path, text in kept.items()},
    }
    folders = {_FOLDER, _STAGED, BIN, "/etc/provision", RECORDS}
    links: tuple[Link, ...] = ()
    if machine.hook is not None:
        files[PROGRAM] = (0o755, machine.hook)
        folders |= {"/etc/oci-decorator", VENDORS}
        links = (Link(path=RUNTIME, target="oci-decorator"),)
    unit = render(f"{_UNIT}.j2", staged=_STAGED, environment=machine.environment)
    return IgnitionConfig(
        storage=Storage(
            directories=tuple(Directory(path=path, mode=0o755) for path in sorted(folders)),
            files=tuple(
                File(path=path, mode=mode, contents=contents)
                for path, (mode, contents) in sorted(files.items())
            ),
            links=links,
        ),
        systemd=Systemd(units=(Unit(name=_UNIT, enabled=True, contents=unit),)),
    )


def butane(variant: Variant, *, source: str, sha512: str) -> str:
    """Return a Butane file that merges a configuration."""
    return render(
        "provision.bu.j2",
        variant=variant,
        version=BUTANE[variant],
        source=source,
        hash=f"sha512-{sha512}",
    )
