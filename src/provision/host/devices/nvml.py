"""Facts of NVIDIA's GPUs by NVML, NVIDIA's own library, through its Python package."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pydantic import Field

from provision.documents import Frozen, parse_json
from provision.errors import ConfigError, ProvisionError
from provision.host.devices.device_facts import Device, Facts, Mig
from provision.host.pci import pci_address
from provision.run import run

# Seconds. A driver without the persistence daemon wakes one GPU after the other, each in a second
# or two; provision-boot.service has three minutes for everything.
LIMIT_S = 40.0
_PROBE = Path(__file__).with_name("nvml_probe.py")
_WHY = "ask NVML about GPUs"
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
    """A part of a GPU as the probe prints it."""

    index: int
    uuid: str | None
    gpu_instance: int | None
    compute_instance: int | None


class Gpu(Frozen):
    """A GPU as the probe prints it."""

    index: int
    minor: int | None
    uuid: str | None
    pci: str | None
    name: str | None
    brand: int | None
    arch: str | None
    mig: tuple[Part, ...] | None


class Answer(Frozen):
    """What the probe prints."""

    error: str | None = None
    driver_version: str | None = None
    cuda_version: int | None = None
    devices: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = Field(default=())


def ask_nvml(library: Path | None, *, limit: float = LIMIT_S) -> Facts:
    """Return what NVML says; the nodes of parts of GPUs are not filled in.

    Args:
        library: ``libnvidia-ml.so.1``; None: the one that the loader finds.
        limit: Seconds after which it is given up.

    Raises:
        ProvisionError: It is missing, hangs, crashes or refuses; says why.
    """
    # Isolated: no variable of the caller and no folder of modules has a say in what root runs.
    argv: list[str | Path] = [sys.executable, "-I", _PROBE, *([library] if library else [])]
    done = run(argv, why=_WHY, check=False, timeout=limit)
    if done.returncode != 0:
        raise ProvisionError(
            f"NVML can't be asked: {_ending(done.returncode)}.", details=done.stderr.strip() or None
        )
    return parse_answer(done.stdout)


def parse_answer(printed: str) -> Facts:
    """Return the facts in what the probe printed. Pure.

    What has no number or address can't be chosen, and is left out with a note.

    Args:
        printed: Its last line is the answer; libraries may print lines before it.

    Raises:
        ProvisionError: It is an error, or no answer.
    """
    try:
        answer = parse_json(printed.strip().rpartition("\n")[2], Answer, name="NVML's answer")
    except ConfigError as error:
        raise ProvisionError("NVML's answer can't be read.", details=error.details) from error
    if answer.error is not None:
        raise ProvisionError(f"NVML can't be asked: {_line(answer.error)}.")
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
        raise ProvisionError("NVML's answer can't be used.", details=str(error)) from error


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
    """Return a foreign text as one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "no reason"
