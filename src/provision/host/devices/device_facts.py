"""Facts about devices, as they are written for oci-decorator.

The files below another host's root are not the kernel's: they may have any content.

``docs/reference/device-facts.schema.json`` is made from these types.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from provision.documents import Frozen
from provision.files import open_regular

# Sixteen pages: sysfs shows one, and NVIDIA's driver a few lines.
LARGEST = 64 << 10
# Linux keeps twenty bits for the minor number of a node: MINORBITS in linux/kdev_t.h.
LARGEST_MINOR = (1 << 20) - 1
_NUMBER = re.compile(r"[0-9]{1,7}", re.ASCII)
Number = Annotated[int, Field(ge=0)]
Text = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]
# As sysfs names devices, in lower case: a domain has four digits, or more where it needs them.
PciAddress = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$")
]
Uuid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9/-]*$", max_length=96)]
# A name below /dev.
NodePath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")
]
Dotted = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$")]
# One word in lower case, as in NVIDIA_REQUIRE_CUDA: brand=tesla.
Brand = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+$")]


def kernel_text(path: Path) -> str | None:
    """Return a file's text; None if it can't be read, or can't be a file of the kernel.

    The kernel's are regular files (a FIFO would block its reader) of ``LARGEST`` bytes at most.
    """
    try:
        with open_regular(path) as stream:
            content = stream.read(LARGEST + 1)
    except OSError:
        return None
    return None if len(content) > LARGEST else content.decode(errors="replace")


def minor_number(text: str) -> int | None:
    """Return the minor number of a node in a text; None if it has no valid one. Pure."""
    match = _NUMBER.fullmatch(text.strip())
    number = None if match is None else int(match[0])
    return None if number is None or number > LARGEST_MINOR else number


class Mig(Frozen):
    """A part of a GPU that is used like a GPU: NVIDIA's Multi-Instance GPU.

    Attributes:
        index: Its number on its GPU, as in ``nvidia-smi -L``.
        uuid: Its UUID.
        gpu_instance: Number of the GPU instance.
        compute_instance: Number of the compute instance in it.
        nodes: Nodes below /dev that give access to both, besides the GPU's own.
    """

    index: Number | None = None
    uuid: Uuid
    gpu_instance: Number
    compute_instance: Number
    nodes: tuple[NodePath, ...]


class Device(Frozen):
    """A device.

    Attributes:
        index: Its number in the order of PCI addresses.
        minor: Number in the name of its node: of ``nvidia0``, ``renderD128``.
        pci: Its PCI address.
        uuid: Its UUID; left out if it is not known.
        name: The vendor's name of the product, for people.
        brand: The product line, as requirements of images name it.
        arch: The compute capability.
        mig: Its parts; left out if it is not divided.
    """

    index: Number
    minor: Number
    pci: PciAddress
    uuid: Uuid | None = None
    name: Text | None = None
    brand: Brand | None = None
    arch: Dotted | None = None
    mig: tuple[Mig, ...] | None = None


class Facts(Frozen):
    """What is known of a vendor's devices.

    Attributes:
        schema_version: Of this format.
        source: Where they come from: NVIDIA's library, the driver's files in /proc, or sysfs.
        driver_version: Version of the loaded driver.
        cuda_version: The newest version of CUDA that it can run.
        devices: In the order of their indices.
        problems: What is not known, for people.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    source: Literal["nvml", "proc", "sysfs"] | None = None
    driver_version: Text | None = None
    cuda_version: Dotted | None = None
    devices: tuple[Device, ...]
    problems: tuple[Text, ...] = ()

    model_config = ConfigDict(
        populate_by_name=True,
        serialize_by_alias=True,
        title="Facts about devices",
    )

    def text(self) -> str:
        """Return the file's text; unknown members are left out."""
        document = self.model_dump(mode="json", exclude_none=True)
        if not self.problems:
            del document["problems"]
        return json.dumps(document, indent=2) + "\n"
