"""Tables of a recipe that no source depends on: hardware, kernels, patches, what a host has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from provision.catalogue.fields import PciId, SourcePath, Specifiers, Template, version_matches
from provision.documents import Frozen
from provision.manifest import FeatureName
from provision.pin import Name


class PciMatch(Frozen):
    """PCI devices that a driver is for: hexadecimal ids as ``lspci -n`` prints them."""

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
        versions: Driver versions that this row is about; any, if it is empty.
        kernels: Base versions of kernel releases (the ``6.1.0`` of ``6.1.0-47-amd64``).
    """

    versions: Specifiers = ""
    kernels: Specifiers


class Patch(Frozen):
    """A file under ``patches/``, applied with ``patch -p1`` where all that it names matches."""

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
        devices: As in ``container.features``.
        libraries: File names, in the folders for libraries; may be globs.
        binaries: File names, in the folders for programs; may be globs.
        miscellaneous: Paths, relative to the host's root; may be globs.
        bits: Which libraries count: 64, or 32 for those of the architecture's smaller sibling.
    """

    devices: tuple[str, ...] = ()
    libraries: tuple[Template, ...] = ()
    binaries: tuple[Template, ...] = ()
    miscellaneous: tuple[SourcePath, ...] = ()
    bits: Literal[32, 64] = 64


class Installed(Frozen):
    """How to recognise a driver that a host has from elsewhere: its distro, or its maker.

    Attributes:
        library: File name of a library that every installation has; with ``{version}``, which says
            what the version is.
        libraries: Folders for libraries, relative to the host's root; the first that has a file
            counts.
        binaries: Folders for programs.
        features: What there is to ask for.
    """

    library: Annotated[Template, StringConstraints(pattern=r"\{version\}")]
    libraries: tuple[SourcePath, ...] = Field(min_length=1)
    binaries: tuple[SourcePath, ...] = ("usr/bin", "usr/sbin")
    features: dict[FeatureName, InstalledFeature] = Field(min_length=1)
