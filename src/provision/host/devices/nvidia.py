"""Facts of NVIDIA's GPUs: by NVML where it can be asked, else from the driver's files in /proc.

NVML is NVIDIA's own library; ``nvml_probe.py`` asks it, in a process of its own.
"""

from __future__ import annotations

import platform
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import Field

from provision.documents import Frozen, parse_json
from provision.errors import ConfigError, ProvisionError
from provision.files import glob_in_root, in_root
from provision.host.devices.device_facts import Device, Facts, Mig, kernel_text, minor_number
from provision.host.facts import pci_address, pci_order
from provision.host.kernels import has_this_boot
from provision.run import run

# Seconds. A driver without the persistence daemon wakes one GPU after the other, each in a second
# or two; provision-boot.service has three minutes for everything.
LIMIT_S = 40.0
_PROBE = Path(__file__).with_name("nvml_probe.py")
_WHY = "ask NVML about GPUs"
_CHECK = "See whether the driver works: nvidia-smi"
# nvmlBrandType_t of nvml.h, as the words of NVIDIA_REQUIRE_CUDA in NVIDIA's images.
_BRANDS = (
    "unknown",
    "quadro",
    "tesla",
    "nvs",
    "grid",
    "geforce",
    "titan",
    "vapps",
    "vpc",
    "vcs",
    "vws",
    "cloudgaming",
    "quadrortx",
    "nvidiartx",
    "nvidia",
    "geforcertx",
    "titanrtx",
)


class Part(Frozen):
    """A part of a GPU, as the probe prints it."""

    index: int
    uuid: str | None
    gpu_instance: int | None
    compute_instance: int | None


class Gpu(Frozen):
    """A GPU, as the probe prints it."""

    index: int
    minor: int | None
    uuid: str | None
    pci: str | None
    name: str | None
    brand: int | None
    arch: str | None
    mig: tuple[Part, ...] | None


class Answer(Frozen):
    """The output of the probe."""

    error: str | None = None
    driver_version: str | None = None
    cuda_version: int | None = None
    devices: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = Field(default=())


def ask_nvml(library: Path | None, *, limit: float = LIMIT_S) -> Facts:
    """Return NVML's facts, without the nodes of parts of GPUs.

    Args:
        library: ``libnvidia-ml.so.1``; None for the one that the loader finds.
    """
    # -I: neither the caller's variables nor other folders of modules decide what root runs.
    argv: list[str | Path] = [sys.executable, "-I", _PROBE, *([library] if library else [])]
    done = run(argv, why=_WHY, check=False, timeout=limit)
    if done.returncode != 0:
        raise ProvisionError(
            f"NVML can't be asked: {_ending(done.returncode)}.",
            details=done.stderr.strip() or None,
            resolution=_CHECK,
        )
    return parse_answer(done.stdout)


def parse_answer(printed: str) -> Facts:
    """Return the facts in the output of the probe. Pure.

    A device without a number or address can't be chosen, and is left out with a note.

    Args:
        printed: The output; its last line is the answer, and libraries may print lines before it.
    """
    try:
        answer = parse_json(printed.strip().rpartition("\n")[2], Answer, name="NVML's answer")
    except ConfigError as error:
        raise ProvisionError(
            "NVML's answer can't be read.", details=error.details, resolution=_CHECK
        ) from error
    if answer.error is not None:
        raise ProvisionError(f"NVML can't be asked: {_line(answer.error)}.", resolution=_CHECK)
    problems = list(map(_line, answer.problems))
    devices = tuple(gpu for gpu in (_device(gpu, problems) for gpu in answer.devices) if gpu)
    with_problems = tuple(dict.fromkeys(problems))
    cuda = answer.cuda_version
    try:
        return Facts(
            source="nvml",
            driver_version=answer.driver_version or None,
            # Thousands are the major version, tens the minor: cuDriverGetVersion() of cuda.h.
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            devices=devices,
            problems=with_problems,
        )
    except ValueError as error:
        raise ProvisionError(
            "NVML's answer can't be used.", details=str(error), resolution=_CHECK
        ) from error


def _device(gpu: Gpu, problems: list[str]) -> Device | None:
    address = pci_address(gpu.pci or "")
    about = f"GPU {gpu.index}"
    if gpu.minor is None or address is None:
        problems.append(f"{about} is left out: its node or its PCI address is not known")
        return None
    known_brand = gpu.brand is not None and 0 <= gpu.brand < len(_BRANDS)
    try:
        parts = None if gpu.mig is None else [_part(part, about, problems) for part in gpu.mig]
        return Device(
            index=gpu.index,
            minor=gpu.minor,
            pci=address,
            uuid=gpu.uuid or None,
            name=gpu.name or None,
            brand=_BRANDS[gpu.brand] if known_brand and gpu.brand is not None else None,
            arch=gpu.arch,
            mig=None if parts is None else tuple(part for part in parts if part is not None),
        )
    except ValueError:
        problems.append(f"{about} is left out: NVML says of it what can't be true")
        return None


def _part(part: Part, about: str, problems: list[str]) -> Mig | None:
    if part.uuid is None or part.gpu_instance is None or part.compute_instance is None:
        problems.append(f"{about}: MIG device {part.index} is left out: its instances or its UUID")
        return None
    return Mig(
        index=part.index,
        uuid=part.uuid,
        gpu_instance=part.gpu_instance,
        compute_instance=part.compute_instance,
        nodes=(),
    )


def _ending(status: int) -> str:
    if status >= 0:
        return f"its process ended with exit status {status}"
    try:
        return f"its process crashed ({signal.Signals(-status).name})"
    except ValueError:
        return f"its process was ended by signal {-status}"


def _line(text: str) -> str:
    """Return an untrusted text as one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "no reason"


LIBRARY = "libnvidia-ml.so.1"
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


def nvidia_facts(
    root: Path, libraries: Sequence[Path] = (), *, limit: float = LIMIT_S
) -> Facts | None:
    """Return the facts of NVIDIA's GPUs; None if their driver is not loaded.

    Args:
        libraries: Paths of ``libnvidia-ml.so.1`` in the store.
    """
    version = loaded_version(root)
    if version is None:
        return None
    if not has_this_boot(root):
        # This is a tree: this machine's NVML does not know it, and its own must not run here.
        return _from_proc(root, version)
    try:
        facts = ask_nvml(_library(root, libraries, version), limit=limit)
    except ProvisionError as error:
        problem = f"{error.message} Facts come from /proc/driver/nvidia, which has fewer."
        return _from_proc(root, version, problem)
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


def _library(root: Path, stored: Iterable[Path], version: str) -> Path | None:
    machine = platform.machine()
    folders = (
        f"usr/lib/{machine}-linux-gnu",
        f"usr/lib/{machine}-linux-gnu/nvidia/current",
        "usr/lib64",
        "usr/lib64/nvidia",
        "usr/lib",
        "usr/local/nvidia/lib64",
        "usr/local/nvidia/lib",
        # Of a driver that NVIDIA's GPU Operator has installed.
        f"run/nvidia/driver/usr/lib/{machine}-linux-gnu",
        "run/nvidia/driver/usr/lib64",
    )
    own = [in_root(root, f"{folder}/{LIBRARY}") for folder in folders]
    found = [path for path in [*stored, *own] if path.is_file()]
    exact = [path for path in found if path.resolve().name.endswith(f".so.{version}")]
    return next(iter([*exact, *found]), None)


def _from_proc(root: Path, version: str, *problems: str) -> Facts:
    said = list(problems)
    found = []
    for path in glob_in_root(root, f"{_DRIVER}/gpus/*/information"):
        information = parse_information(_read(root, path) or "")
        # The folder's name is the address too.
        address = information.pci or pci_address(path.parent.name)
        if address is None or information.minor is None:
            said.append(f"The GPU of /{path} is left out: its minor number is not known")
        else:
            found.append((pci_order(address), address, information.minor, information))
    counts = Counter(row[2] for row in found)
    for minor in sorted(minor for minor, count in counts.items() if count > 1):
        where = ", ".join(sorted(row[1] for row in found if row[2] == minor))
        said.append(f"The GPUs {where} are left out: each has the minor number {minor}")
    found = [row for row in found if counts[row[2]] == 1]
    devices = [
        Device(index=i, minor=minor, pci=address, uuid=known.uuid, name=known.name)
        for i, (_order, address, minor, known) in enumerate(sorted(found, key=lambda row: row[0]))
    ]
    return Facts(
        source="proc", driver_version=version, devices=tuple(devices), problems=tuple(said)
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
