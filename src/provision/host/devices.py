"""Facts about a host's accelerators: indices, UUIDs, PCI addresses, device nodes.

Written to ``/run/oci-decorator/devices/<vendor>.json``, where oci-decorator finds the node that
belongs to an index or a UUID. Those of NVIDIA's GPUs come from the driver's own nvidia-smi, in a
process of its own (docs/decisions/07-store-and-modules.md), else from the driver's files in /proc.

The files below another host's root are not the kernel's: they may have any content.

``docs/reference/device-facts.schema.json`` is made from these types.
"""

import json
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple
from xml.etree import ElementTree as ET

from pydantic import ConfigDict, Field, StringConstraints

from provision.documents import Frozen, load_json
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import glob_in_root, in_root, lock, remove_drafts, write_atomic
from provision.host.facts import pci_address, pci_order
from provision.host.kernels import has_this_boot
from provision.run import Completed, run
from provision.trust import open_regular

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


class DeviceFacts(Frozen):
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


# Seconds. A driver without the persistence daemon wakes one GPU after the other, each in a second
# or two; provision-boot.service has three minutes for everything.
LIMIT_S = 40.0
PROGRAM = "nvidia-smi"
LIBRARY = "libnvidia-ml.so.1"
_INSTALL = f"Install the driver's own {PROGRAM}; without it, facts are the kernel's alone."
_CHECK = f"See whether the driver works: {PROGRAM}"
_CAPABILITY = re.compile(r"^(GPU-\S+), *([0-9]+\.[0-9]+)$", re.MULTILINE | re.ASCII)
_LISTED = re.compile(
    r"^GPU .*\(UUID: (\S+)\)$|^ +MIG .* Device +([0-9]+): \(UUID: (\S+)\)$",
    re.MULTILINE | re.ASCII,
)
# The words of NVIDIA_REQUIRE_CUDA in NVIDIA's images, where they aren't those of nvidia-smi.
_BRANDS = {
    "nvidiavirtualapplications": "vapps",
    "nvidiavirtualpc": "vpc",
    "nvidiavirtualcomputeserver": "vcs",
    "nvidiartxvirtualworkstation": "vws",
    "nvidiacloudgaming": "cloudgaming",
}


class Smi(NamedTuple):
    """A driver's nvidia-smi, and ``libnvidia-ml.so.1``, which it loads by its name.

    NVIDIA's library may hang or crash, which ends this program only.
    """

    program: Path
    library: Path

    def facts(self, addresses: Sequence[str], *, limit: float = LIMIT_S) -> DeviceFacts:
        """Return what it says, without the nodes of parts of GPUs.

        Args:
            addresses: PCI addresses of the GPUs, in their order.
        """
        deadline = time.monotonic() + limit

        def say(*words: str) -> Completed:
            # A search path would give it a C library too, where a whole distro lies beside it.
            argv: list[str | Path] = ["env", f"LD_PRELOAD={self.library}", self.program, *words]
            left = max(deadline - time.monotonic(), 0.1)
            return run(argv, why="identify GPUs", check=False, timeout=left)

        whole = say("-q", "-x")
        reports: dict[int | None, str] = {}
        problems: list[str] = []
        if whole.returncode == 0:
            reports[None] = whole.stdout
        else:
            # One GPU that is lost fails the report of all.
            for place, address in enumerate(addresses):
                one = say("-q", "-x", "-i", address)
                if one.returncode == 0:
                    reports[place] = one.stdout
                else:
                    problems.append(f"GPU {place} is left out: {_reason(one)}")
        if not reports:
            raise ProvisionError(f"{PROGRAM} says nothing: {_reason(whole)}", resolution=_CHECK)
        return parse_reports(
            reports,
            capabilities=say("--query-gpu=uuid,compute_cap", "--format=csv,noheader").stdout,
            listing=say("-L").stdout if any("<mig_device>" in r for r in reports.values()) else "",
            problems=problems,
        )


def parse_reports(
    reports: Mapping[int | None, str],
    *,
    capabilities: str = "",
    listing: str = "",
    problems: Sequence[str] = (),
) -> DeviceFacts:
    """Return the facts in what nvidia-smi prints. Pure.

    A device without a number or address can't be chosen, and is left out with a note.

    Args:
        reports: Output of ``-q -x``, by the index of its GPU; None for all GPUs.
        capabilities: Output of ``--query-gpu=uuid,compute_cap``.
        listing: Output of ``-L``, which alone has the UUIDs of parts.
    """
    noted = list(problems)
    known = dict(_CAPABILITY.findall(capabilities))
    parts = _listed_parts(listing)
    devices = []
    versions: dict[str, str | None] = {}
    try:
        for place, text in reports.items():
            log = ET.fromstring(text)  # noqa: S314 - of a driver that runs in the kernel
            versions = {name: _value(log, f"{name}_version") for name in ("driver", "cuda")}
            gpus = enumerate(log.iter("gpu"), place or 0)
            devices += [_device(index, gpu, known, parts, noted) for index, gpu in gpus]
        return DeviceFacts(
            source="nvml",
            driver_version=versions["driver"],
            cuda_version=versions["cuda"],
            devices=tuple(device for device in devices if device is not None),
            problems=tuple(dict.fromkeys(noted)),
        )
    except (ET.ParseError, ValueError) as error:
        raise ProvisionError(
            f"The report of {PROGRAM} can't be read.", details=str(error), resolution=_CHECK
        ) from error


def _device(
    index: int,
    gpu: ET.Element,
    capabilities: Mapping[str, str],
    uuids: Mapping[tuple[str, int], str],
    problems: list[str],
) -> Device | None:
    about = f"GPU {index}"
    address = pci_address(gpu.get("id") or "")
    minor = minor_number(_value(gpu, "minor_number") or "")
    if minor is None or address is None:
        problems.append(f"{about} is left out: its node or its PCI address is not known")
        return None
    uuid = _value(gpu, "uuid")
    brand = re.sub(r"[^a-z0-9]", "", (_value(gpu, "product_brand") or "").lower())
    try:
        return Device(
            index=index,
            minor=minor,
            pci=address,
            uuid=uuid,
            name=_value(gpu, "product_name"),
            brand=_BRANDS.get(brand, brand) or None,
            arch=capabilities.get(uuid or ""),
            mig=_parts(gpu, about, uuids, problems),
        )
    except ValueError:
        problems.append(f"{about} is left out: {PROGRAM} says of it what can't be true")
        return None


def _parts(
    gpu: ET.Element, about: str, uuids: Mapping[tuple[str, int], str], problems: list[str]
) -> tuple[Mig, ...] | None:
    if _value(gpu, "mig_mode/current_mig") != "Enabled":
        return None
    parts = []
    for part in gpu.iter("mig_device"):
        numbers = [
            minor_number(_value(part, name) or "")
            for name in ("index", "gpu_instance_id", "compute_instance_id")
        ]
        index, instance, compute = numbers
        uuid = uuids.get((_value(gpu, "uuid") or "", -1 if index is None else index))
        if uuid is None or instance is None or compute is None:
            problems.append(f"{about}: MIG device {index} is left out: its instances or its UUID")
            continue
        parts.append(
            Mig(index=index, uuid=uuid, gpu_instance=instance, compute_instance=compute, nodes=())
        )
    return tuple(parts)


def _listed_parts(listing: str) -> dict[tuple[str, int], str]:
    """Return the UUIDs of parts, by the UUID of their GPU and their number on it."""
    found: dict[tuple[str, int], str] = {}
    gpu = ""
    for whole, index, part in _LISTED.findall(listing):
        if whole:
            gpu = whole
        else:
            found[gpu, int(index)] = part
    return found


def _value(node: ET.Element, path: str) -> str | None:
    text = (node.findtext(path) or "").strip()
    # What a GPU or this version of the driver does not know.
    return None if text in {"", "N/A", "None"} or text.startswith("[") else text


def _reason(done: Completed) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    text = "".join(c if c.isprintable() else " " for c in lines[-1]) if lines else ""
    return text.strip() or f"exit status {done.returncode}"


_DRIVER = PurePosixPath("proc/driver/nvidia")
_VERSION = re.compile(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", re.MULTILINE)
_LINE = re.compile(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NODE = re.compile(r"^DeviceFileMinor:[ \t]*(\d+)[ \t]*$", re.MULTILINE | re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-f-]{36}")


class Information(NamedTuple):
    """The facts of a GPU in /proc; None for unknown ones."""

    pci: str | None
    minor: int | None
    uuid: str | None
    name: str | None


def nvidia_facts(
    root: Path, stored: Sequence[Smi] = (), *, limit: float = LIMIT_S
) -> DeviceFacts | None:
    """Return the facts of NVIDIA's GPUs; None if their driver is not loaded.

    Args:
        stored: Those of drivers in the store.
    """
    version = loaded_version(root)
    if version is None:
        return None
    by_proc = _from_proc(root, version)
    if not has_this_boot(root):
        # This is a tree: this machine's programs do not know it, and its own must not run here.
        return by_proc
    try:
        smi = _smi(root, stored, version)
        facts = smi.facts([gpu.pci for gpu in by_proc.devices], limit=limit)
    except ProvisionError as error:
        problem = f"{error.message} Facts come from /proc/driver/nvidia, which has fewer."
        return by_proc.model_copy(update={"problems": (problem, *by_proc.problems)})
    if facts.driver_version is None:
        facts = facts.model_copy(update={"driver_version": version})
    return _with_nodes(root, facts)


def loaded_version(root: Path) -> str | None:
    """Return the version of the loaded driver; None if it is not loaded."""
    text = _read(root, _DRIVER / "version")
    return None if text is None else parse_version(text) or "unknown"


def parse_version(text: str) -> str | None:
    """Return the version in the text of /proc/driver/nvidia/version. Pure."""
    match = _VERSION.search(text)
    return match[1] if match else None


def parse_information(text: str) -> Information:
    """Return the facts in the text of /proc/driver/nvidia/gpus/ADDRESS/information. Pure.

    The driver prints question marks for the UUID of a GPU that no process has used yet.
    """
    fields = {match[1].strip(): match[2] for match in _LINE.finditer(text)}
    uuid = fields.get("GPU UUID", "").lower().replace("gpu-", "GPU-")
    model = "".join(c for c in fields.get("Model", "") if c.isprintable()).strip()
    return Information(
        pci=pci_address(fields.get("Bus Location", "")),
        minor=minor_number(fields.get("Device Minor", "")),
        uuid=uuid if _UUID.fullmatch(uuid) else None,
        name=model if model and model != "Unknown" else None,
    )


def _smi(root: Path, stored: Sequence[Smi], version: str) -> Smi:
    machine = platform.machine()
    # The driver of the distro, of a cloud, and of NVIDIA's GPU Operator.
    places = {
        "usr/bin": (
            f"usr/lib/{machine}-linux-gnu",
            f"usr/lib/{machine}-linux-gnu/nvidia/current",
            "usr/lib64",
            "usr/lib64/nvidia",
            "usr/lib",
        ),
        "usr/local/nvidia/bin": ("usr/local/nvidia/lib64", "usr/local/nvidia/lib"),
        "run/nvidia/driver/usr/bin": (
            f"run/nvidia/driver/usr/lib/{machine}-linux-gnu",
            "run/nvidia/driver/usr/lib64",
        ),
    }
    own = [
        Smi(in_root(root, f"{programs}/{PROGRAM}"), in_root(root, f"{folder}/{LIBRARY}"))
        for programs, folders in places.items()
        for folder in folders
    ]
    whole = [smi for smi in [*stored, *own] if smi.program.is_file() and smi.library.is_file()]
    exact = [smi for smi in whole if smi.library.resolve().name.endswith(f".so.{version}")]
    if not whole:
        raise ProvisionError(
            f"The driver has no {PROGRAM}, or not its library.", resolution=_INSTALL
        )
    return [*exact, *whole][0]


def _from_proc(root: Path, version: str) -> DeviceFacts:
    lines = []
    found = []
    for path in glob_in_root(root, f"{_DRIVER}/gpus/*/information"):
        information = parse_information(_read(root, path) or "")
        # The folder's name is the address too.
        address = information.pci or pci_address(path.parent.name)
        if address is None or information.minor is None:
            lines.append(f"The GPU of /{path} is left out: its minor number is not known")
        else:
            found.append((pci_order(address), address, information.minor, information))
    counts = Counter(row[2] for row in found)
    for minor in sorted(minor for minor, count in counts.items() if count > 1):
        where = ", ".join(sorted(row[1] for row in found if row[2] == minor))
        lines.append(f"The GPUs {where} are left out: each has the minor number {minor}")
    found = [row for row in found if counts[row[2]] == 1]
    devices = [
        Device(index=i, minor=minor, pci=address, uuid=known.uuid, name=known.name)
        for i, (_order, address, minor, known) in enumerate(sorted(found, key=lambda row: row[0]))
    ]
    return DeviceFacts(
        source="proc", driver_version=version, devices=tuple(devices), problems=tuple(lines)
    )


def _with_nodes(root: Path, facts: DeviceFacts) -> DeviceFacts:
    problems = list(facts.problems)
    devices = []
    for gpu in facts.devices:
        whole = []
        for part in gpu.mig or ():
            nodes = _nodes(root, gpu.minor, part)
            if nodes is None:
                problems.append(
                    f"MIG device {part.uuid} is left out: /{_DRIVER}/capabilities has no nodes"
                )
            else:
                whole.append(part.model_copy(update={"nodes": nodes}))
        mig = None if gpu.mig is None else tuple(whole)
        devices.append(gpu.model_copy(update={"mig": mig}))
    return facts.model_copy(update={"devices": tuple(devices), "problems": tuple(problems)})


def _nodes(root: Path, minor: int, part: Mig) -> tuple[str, ...] | None:
    """Return the nodes below /dev for the GPU instance and the compute instance.

    Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (Device Nodes and Capabilities)
    """
    instance = _DRIVER / f"capabilities/gpu{minor}/mig/gi{part.gpu_instance}"
    numbers = [
        parse_capability(_read(root, folder / "access") or "")
        for folder in (instance, instance / f"ci{part.compute_instance}")
    ]
    known = tuple(f"nvidia-caps/nvidia-cap{number}" for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


def parse_capability(text: str) -> int | None:
    """Return the minor number of a capability's node, from its file ``access``. Pure."""
    match = _NODE.search(text)
    return minor_number(match[1]) if match else None


def _read(root: Path, path: PurePosixPath) -> str | None:
    try:
        return kernel_text(in_root(root, path))
    except OSError:
        return None


FOLDER = PurePosixPath("run/oci-decorator/devices")
_LOCK = PurePosixPath("run/provision/devices.lock")
# Longer than its holder may wait for nvidia-smi, and for a process that can't be killed.
_WAIT_S = 90.0
_RENDER = re.compile(r"renderD([0-9]+)", re.ASCII)
_UNIQUE = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.ASCII)


class DrmVendor(NamedTuple):
    """A vendor of GPUs that the kernel's DRM drivers serve."""

    pci: str
    # The kernel's driver, which may have its own version.
    module: str


AMD = DrmVendor("0x1002", "amdgpu")
INTEL = DrmVendor("0x8086", "i915")


def drm_facts(root: Path, vendor: DrmVendor) -> DeviceFacts | None:
    """Return the facts of a vendor's GPUs; None if there are none.

    A node without a PCI device of its own (a partition of an AMD GPU) is left out.

    Source: https://docs.kernel.org/gpu/drm-uapi.html, https://docs.kernel.org/gpu/amdgpu/
    """
    found = []
    for path in glob_in_root(root, "sys/class/drm/renderD*"):
        node = _RENDER.fullmatch(path.name)
        folder = in_root(root, path / "device")
        address = pci_address(folder.name)
        minor = minor_number(node[1]) if node else None
        if minor is not None and address and _text(folder / "vendor") == vendor.pci:
            found.append((pci_order(address), address, minor, folder))
    if not found:
        return None
    devices = [
        Device(
            index=i,
            minor=minor,
            pci=address,
            uuid=parse_unique_id(_text(folder / "unique_id") or ""),
            name=_text(folder / "product_name") or None,
        )
        for i, (_order, address, minor, folder) in enumerate(sorted(found, key=lambda row: row[:3]))
    ]
    version = _text(in_root(root, PurePosixPath("sys/module", vendor.module, "version")))
    return DeviceFacts(source="sysfs", driver_version=version or None, devices=tuple(devices))


def parse_unique_id(text: str) -> str | None:
    """Return the UUID that ROCm gives to a GPU, from amdgpu's ``unique_id``. Pure.

    Source: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    match = _UNIQUE.fullmatch(text.strip().lower())
    if match is None or not int(match[1], 16):
        return None
    return f"GPU-{match[1]:0>16}"


def _text(path: Path) -> str | None:
    text = kernel_text(path)
    return None if text is None else "".join(c for c in text if c.isprintable()).strip()


# The vendors whose devices any host may have, however their drivers were installed.
_SOURCES: Mapping[str, Callable[[Path, Sequence[Smi]], DeviceFacts | None]] = {
    "nvidia": nvidia_facts,
    "amd": lambda root, _stored: drm_facts(root, AMD),
    "intel": lambda root, _stored: drm_facts(root, INTEL),
}
VENDORS = tuple(_SOURCES)


def facts_path(root: Path, vendor: str) -> Path:
    """Return the file with the facts of a vendor's devices."""
    if not vendor or "/" in vendor or vendor.startswith("."):
        raise UsageError(
            f"'{vendor}' is not a valid name of a vendor.",
            resolution="Name one of those that 'provision devices' lists.",
        )
    return in_root(root, FOLDER) / f"{vendor}.json"


@contextmanager
def recording(root: Path) -> Iterator[None]:
    """Keep other processes from collecting facts, so that older facts never replace newer ones.

    It is held for unloading a driver too: a process that identifies GPUs keeps the driver in use.
    """
    with lock(in_root(root, _LOCK), limit=_WAIT_S):
        yield


def write_facts(root: Path, vendor: str, facts: DeviceFacts) -> bool:
    """Write facts, which all users may read; return whether anything changed.

    The caller holds ``recording``.
    """
    path = facts_path(root, vendor)
    remove_drafts(path)
    return write_atomic(path, facts.text(), mode=0o644)


def remove_facts(root: Path, vendor: str) -> bool:
    """Remove the facts of devices whose driver is gone; return whether there were any.

    The caller holds ``recording``.
    """
    path = facts_path(root, vendor)
    remove_drafts(path)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def recorded(root: Path) -> list[str]:
    """Return the vendors with recorded facts."""
    return [path.stem for path in glob_in_root(root, f"{FOLDER}/*.json")]


class Recorded(NamedTuple):
    """The result of collecting the facts of a vendor's devices."""

    vendor: str
    facts: DeviceFacts | None
    changed: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not known."""
        return self.facts.problems if self.facts else ()


def record_facts(
    root: Path, vendor: str, *, source: str | None = None, stored: Sequence[Smi] = ()
) -> Recorded:
    """Collect the facts of a vendor's devices and write their file, or remove it."""
    with recording(root):
        facts = _SOURCES[source or vendor](root, stored)
        changed = remove_facts(root, vendor) if facts is None else write_facts(root, vendor, facts)
    return Recorded(vendor, facts, changed)


def read_facts_file(root: Path, vendor: str) -> DeviceFacts:
    """Return the recorded facts of a vendor's devices."""
    return load_json(facts_path(root, vendor), DeviceFacts)


def recorded_problems(root: Path, vendor: str) -> tuple[str, ...]:
    """Return what is not known of a vendor's devices; empty where they have no facts.

    A file that can't be read is a problem too.
    """
    try:
        return read_facts_file(root, vendor).problems
    except NotFoundError:
        return ()
    except (OSError, ProvisionError) as error:
        return (f"the facts of its devices can't be read: {error}",)
