"""The manifest of an artifact: what was really built, written by the build itself.

It lies at ``driver/manifest.json`` in a store entry (``/opt/driver/manifest.json`` in the image).
The vendor config and the ld.so.conf.d file are made from it, not from the recipe.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from provision.documents import Frozen
from provision.pin import Pin, Sha256

FileKind = Literal["library", "binary", "miscellaneous", "firmware"]


def _relative(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        raise ValueError(f"'{path}' must be a plain relative path without '..'")
    return path


def _absolute(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        raise ValueError(f"'{path}' must be a plain absolute path without '..'")
    return path


RelativePath = Annotated[str, AfterValidator(_relative)]
ContainerPath = Annotated[str, AfterValidator(_absolute)]
FeatureName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
# https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap08.html
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
LogLevel = Literal[
    "LOG_EMERG",
    "LOG_ALERT",
    "LOG_CRIT",
    "LOG_ERR",
    "LOG_WARNING",
    "LOG_NOTICE",
    "LOG_INFO",
    "LOG_DEBUG",
]


class Module(Frozen):
    """A kernel module; ``path`` is relative to the store entry, ``size`` in bytes."""

    name: str
    path: RelativePath
    sha256: Sha256
    size: int = Field(ge=0)
    vermagic: str
    version: str | None = None
    licence: str | None = None
    depends: tuple[str, ...] = ()


class DriverFile(Frozen):
    """A user-space file or link.

    Attributes:
        path: In the container; the file lies at ``driver/<path>`` in the store entry.
        kind: Which list of the vendor config it belongs to (firmware: none, it is the host's).
        features: The features that want it.
        sha256: Of the content; None for a link.
        size: Bytes; None for a link.
        mode: Permission bits, as octal text; None for a link.
        soname: ELF SONAME of a library; None if it has none.
        link: Target of a symbolic link, relative to its folder; None for a file.
    """

    path: ContainerPath
    kind: FileKind
    features: tuple[FeatureName, ...] = ()
    sha256: Sha256 | None = None
    size: int | None = Field(default=None, ge=0)
    mode: Annotated[str, StringConstraints(pattern=r"^[0-7]{4}$")] | None = None
    soname: str | None = None
    link: str | None = None


class ContainerFeature(Frozen):
    """Devices and folders of one feature; its files are in the manifest's list."""

    devices: tuple[str, ...] = ()
    directories: tuple[ContainerPath, ...] = ()


class Container(Frozen):
    """How a container asks for the driver: the head of the vendor config."""

    activation_flag: VariableName
    driver_feature: tuple[FeatureName, ...]
    log_level: LogLevel = "LOG_INFO"
    features: dict[FeatureName, ContainerFeature]


class Manifest(Frozen):
    """Everything that an artifact holds."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    pin: Pin
    pin_digest: str
    licences: tuple[str, ...] = ()
    modules: tuple[Module, ...]
    files: tuple[DriverFile, ...] = ()
    container: Container

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
