"""Asks NVML about GPUs and prints one line of JSON; ``host.devices.nvidia`` runs this file.

It is a separate program, because NVML may hang or crash. It imports nothing of provision, and runs
with any Python that has NVIDIA's ``nvidia-ml-py``.

Its optional argument is the path of the library.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

Answer = dict[str, Any]


class Session:
    """A session with NVML, and the problems in it."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - a module without type hints
        self.nvml = nvml
        self.problems: list[str] = []
        # This GPU or this version of the driver has no answer, which is not a problem.
        self._unknown = {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
        self._absent = {nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT}

    def ask(self, about: str, function: str, *words: object) -> Any:  # noqa: ANN401
        """Return the result of a function; None if it fails, with a note if that is a problem."""
        try:
            return getattr(self.nvml, function)(*words)
        except self.nvml.NVMLError as error:
            if error.value not in self._unknown:
                self.problems.append(f"{about}: {function}: {error}")
            return None

    def part(self, gpu: object, index: int) -> object | None:
        """Return a part of a GPU; None if no part has that number."""
        try:
            handle: object = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except self.nvml.NVMLError as error:
            if error.value not in self._absent:
                self.problems.append(f"MIG device {index}: {error}")
            return None
        return handle


def main() -> int:
    """Ask, and print the answer."""
    try:
        # pynvml loads the library by its name, and so gets the one that is loaded here by its path.
        if len(sys.argv) > 1:
            ctypes.CDLL(sys.argv[1])
        import pynvml  # noqa: PLC0415 - it may be missing
    except ImportError as error:
        return _print({"error": f"the Python package nvidia-ml-py can't be used: {error}"})
    except OSError as error:
        return _print({"error": f"the library can't be loaded: {error}"})
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _print({"error": f"nvmlInit: {error}"})
    session = Session(pynvml)
    answer = _answer(session)
    return _print({**answer, "problems": session.problems})


def _print(answer: Answer) -> int:
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


def _answer(session: Session) -> Answer:
    count = session.ask("GPUs", "nvmlDeviceGetCount")
    if count is None:
        return {"error": session.problems[-1] if session.problems else "no GPUs can be listed"}
    return {
        "driver_version": session.ask("driver", "nvmlSystemGetDriverVersion"),
        "cuda_version": session.ask("CUDA", "nvmlSystemGetCudaDriverVersion"),
        "devices": [gpu for index in range(count) if (gpu := _gpu(session, index)) is not None],
    }


def _gpu(session: Session, index: int) -> Answer | None:
    about = f"GPU {index}"
    gpu = session.ask(about, "nvmlDeviceGetHandleByIndex", index)
    if gpu is None:
        return None
    pci = session.ask(about, "nvmlDeviceGetPciInfo", gpu)
    arch = session.ask(about, "nvmlDeviceGetCudaComputeCapability", gpu)
    return {
        "index": index,
        "minor": session.ask(about, "nvmlDeviceGetMinorNumber", gpu),
        "uuid": session.ask(about, "nvmlDeviceGetUUID", gpu),
        "pci": None if pci is None else _text(pci.busId),
        "name": session.ask(about, "nvmlDeviceGetName", gpu),
        "brand": session.ask(about, "nvmlDeviceGetBrand", gpu),
        "arch": None if arch is None else f"{arch[0]}.{arch[1]}",
        "mig": _parts(session, about, gpu),
    }


def _parts(session: Session, about: str, gpu: object) -> list[Answer] | None:
    mode = session.ask(about, "nvmlDeviceGetMigMode", gpu)
    if mode is None or mode[0] != session.nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    most = session.ask(about, "nvmlDeviceGetMaxMigDeviceCount", gpu) or 0
    found = ((index, session.part(gpu, index)) for index in range(most))
    return [
        _part(session, f"{about}, MIG device {i}", i, mig) for i, mig in found if mig is not None
    ]


def _part(session: Session, about: str, index: int, mig: object) -> Answer:
    def asked(function: str) -> object:
        return session.ask(about, function, mig)

    return {
        "index": index,
        "uuid": asked("nvmlDeviceGetUUID"),
        "gpu_instance": asked("nvmlDeviceGetGpuInstanceId"),
        "compute_instance": asked("nvmlDeviceGetComputeInstanceId"),
    }


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.exit(main())
