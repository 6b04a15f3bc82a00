"""Tables of a recipe that no source depends on: hardware, kernels, patches, what a host has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from provision.documents import Frozen
from provision.manifest import FeatureName
from provision.pin import Name
from provision.recipe.fields import PciId, SourcePath, Specifiers, Template, version_matches


class PciMatch(Frozen):
    """PCI devices that a driver is for: hexadecimal ids as ``lspci -n`` prints them.

    Attributes:
        vendor: Four hexadecimal digits, as ``lspci -n`` prints them.
        devices: Device ids. Without it: any.
        classes: Class and subclass, such as ``0300``. Without it: any.
    """

    vendor: PciId
    devices: tuple[PciId, ...] = ()
    classes: tuple[PciId, ...] = ()

    def matches(self, *, vendor: str, device: str, device_class: str) -> bool:
        """Return whether a device is meant; an empty list of ids stands for any."""
        return (
            vendor == self.vendor
            and (not self.devices or device in self.devices)
            and (not self.classes or device_class in self.classes)
        )


class Hardware(Frozen):
    """What a driver is for."""

    pci: tuple[PciMatch, ...] = ()


class KernelRange(Frozen):
    """Kernels that a driver is known to build on.

    Attributes:
        versions: Driver versions that the row is about, as [version
            specifiers](https://packaging.python.org/en/latest/specifications/version-specifiers/):
            ``"==535.*"``. Without it: all of them.
        kernels: Base versions of kernel releases (``6.1.0`` of ``6.1.0-47-amd64``):
            ``">=6.1,<6.13"``.
    """

    versions: Specifiers = ""
    kernels: Specifiers


class Patch(Frozen):
    """A file under ``patches/``, applied with ``patch -p1`` where all that it names matches.

    Attributes:
        file: ``NAME.patch`` in ``patches/``, for ``patch -p1`` in ``directory``.
        versions: Driver versions that need it. Without it: all of them.
        flavours: Flavours that need it. Without it: all of them.
        sources: Names of the sources that need it. Without it: all of them.
        reason: Why: which kernel change, which file.
    """

    # No longer than a tar file of the build context takes it, below patches/.
    file: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.patch$", max_length=90)
    ]
    versions: Specifiers = ""
    flavours: tuple[Name, ...] = ()
    sources: tuple[Name, ...] = ()
    reason: Annotated[str, StringConstraints(min_length=1)]

    def applies_to(self, *, version: str, flavour: str, source: str) -> bool:
        """Return whether a driver version and flavour from a source need this patch."""
        return (
            (not self.flavours or flavour in self.flavours)
            and (not self.sources or source in self.sources)
            and version_matches(version, self.versions)
        )


class InstalledFeature(Frozen):
    """What one feature consists of on a host that has the driver from elsewhere.

    Attributes:
        devices: Names or globs below ``/dev``.
        libraries: File names or globs; the links that lead to a file are found by themselves.
        binaries: File names or globs.
        miscellaneous: Paths or globs, relative to the host's root.
        bits: ``32`` for the libraries of 32-bit programs.
    """

    devices: tuple[str, ...] = ()
    libraries: tuple[Template, ...] = ()
    binaries: tuple[Template, ...] = ()
    miscellaneous: tuple[SourcePath, ...] = ()
    bits: Literal[32, 64] = 64


class Installed(Frozen):
    """How to recognise a driver that a host has from elsewhere: its distro, or its maker.

    Attributes:
        library: File name of a library that every installation has, with ``{version}``, which says
            what the version is.
        libraries: Folders for libraries, relative to the host's root; the first that has a file
            counts. ``{multiarch}`` stands for the machine's own and for its 32-bit sibling.
        binaries: Folders for programs.
        features: What there is to ask for.
    """

    library: Annotated[Template, StringConstraints(pattern=r"\{version\}")]
    libraries: tuple[SourcePath, ...] = Field(min_length=1)
    binaries: tuple[SourcePath, ...] = ("usr/bin", "usr/sbin")
    features: dict[FeatureName, InstalledFeature] = Field(min_length=1)
