"""Facts of NVIDIA's GPUs: by the driver's own nvidia-smi, else from the driver's files in /proc."""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree as ET

from provision.errors import ProvisionError
from provision.files import glob_in_root, in_root
from provision.host.devices.device_facts import Device, Facts, Mig, kernel_text, minor_number
from provision.host.facts import pci_address, pci_order
from provision.host.kernels import has_this_boot
from provision.run import Completed, run

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


@dataclass(frozen=True, slots=True)
class Smi:
    """A driver's nvidia-smi, and ``libnvidia-ml.so.1``, which it loads by its name.

    NVIDIA's library may hang or crash, which ends this program only.
    """

    program: Path
    library: Path

    def facts(self, addresses: Sequence[str], *, limit: float = LIMIT_S) -> Facts:
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
) -> Facts:
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
        return Facts(
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
    """Return the last line of a program that failed, as printable text."""
    lines = (done.stdout + done.stderr).strip().splitlines()
    text = "".join(c if c.isprintable() else " " for c in lines[-1]) if lines else ""
    return text.strip() or f"exit status {done.returncode}"


_DRIVER = PurePosixPath("proc/driver/nvidia")
_VERSION = re.compile(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", re.MULTILINE)
_LINE = re.compile(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NODE = re.compile(r"^DeviceFileMinor:[ \t]*(\d+)[ \t]*$", re.MULTILINE | re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-f-]{36}")


@dataclass(frozen=True, slots=True)
class Information:
    """The facts of a GPU in /proc; None for unknown ones."""

    pci: str | None
    minor: int | None
    uuid: str | None
    name: str | None


def nvidia_facts(root: Path, stored: Sequence[Smi] = (), *, limit: float = LIMIT_S) -> Facts | None:
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


def _from_proc(root: Path, version: str) -> Facts:
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
    return Facts(
        source="proc", driver_version=version, devices=tuple(devices), problems=tuple(lines)
    )


def _with_nodes(root: Path, facts: Facts) -> Facts:
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
