"""Facts about GPUs through the real nvidia-smi, from a stand-in for NVIDIA's library."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.files import write
from kit.gpus import FACTS, add_gpus, make_nvml, nvidia_smi
from provision.host.devices import Smi, nvidia_facts, record_facts

# NVIDIA's header is of a Go module, and the program of Debian's.
pytestmark = pytest.mark.tier(2)

_FILE = "run/oci-decorator/devices/nvidia.json"
_STORED = "usr/lib64"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host whose driver is loaded."""
    root = tmp_path / "host"
    add_gpus(root)
    for folder in ("usr/bin", "usr/local/nvidia/bin", "run/nvidia/driver/usr/bin"):
        write(root / folder / "nvidia-smi", nvidia_smi().read_bytes(), 0o755)
    return root


def _smi(library: Path) -> Smi:
    return Smi(nvidia_smi(), library)


def _facts(root: Path, *libraries: Path, limit: float = 20.0) -> dict[str, Any]:
    facts = nvidia_facts(root, [_smi(library) for library in libraries], limit=limit)
    assert facts is not None
    document: dict[str, Any] = json.loads(facts.text())
    return document


def _by_proc(document: dict[str, Any]) -> tuple[str, list[tuple[int, int, str]]]:
    devices = [(gpu["index"], gpu["minor"], gpu["uuid"]) for gpu in document["devices"]]
    return document["source"], devices


_FALLEN_BACK = ("proc", [(gpu["index"], gpu["minor"], gpu["uuid"]) for gpu in FACTS["devices"]])


def test_two_gpus_of_which_one_is_divided(host: Path) -> None:
    library = make_nvml(host / _STORED)
    collected = record_facts(host, "nvidia", stored=[_smi(library)])
    assert (collected.changed, collected.problems) == (True, ())
    path = host / _FILE
    assert json.loads(path.read_text()) == FACTS
    assert path.stat().st_mode & 0o777 == 0o644
    assert record_facts(host, "nvidia", stored=[_smi(library)]).changed is False


@pytest.mark.parametrize(
    "folder", ["usr/lib64", "usr/local/nvidia/lib64", "run/nvidia/driver/usr/lib64"]
)
def test_the_driver_may_lie_where_others_put_it(host: Path, folder: str) -> None:
    make_nvml(host / folder)
    assert _facts(host) == FACTS


def test_the_library_of_the_loaded_driver_is_taken(host: Path, tmp_path: Path) -> None:
    newer = make_nvml(tmp_path / "newer", "REFUSES=18", version="550.1")
    assert _facts(host, newer, make_nvml(tmp_path / "loaded")) == FACTS


@pytest.mark.parametrize("fault", ["REFUSES=18", "HANGS", "CRASHES", "text", "no program"])
def test_where_the_library_gives_nothing_the_driver_itself_is_asked(host: Path, fault: str) -> None:
    library = make_nvml(host / _STORED, *([fault] if fault.isupper() or "=" in fault else []))
    if fault == "text":
        library.write_text("not a library")
    if fault == "no program":
        (host / "usr/bin/nvidia-smi").unlink()
    begun = time.monotonic()
    document = _facts(host, limit=2.0 if fault == "HANGS" else 20.0)
    # On a busy machine; the library itself would hang for ever.
    assert time.monotonic() - begun < 60
    assert _by_proc(document) == _FALLEN_BACK
    assert len(document["problems"]) == 1


def test_without_the_library_the_driver_itself_is_asked(host: Path) -> None:
    if os.path.lexists("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"):
        pytest.skip("this machine has the library")
    document = _facts(host)
    assert _by_proc(document) == _FALLEN_BACK
    assert "cuda_version" not in document
    assert "/proc/driver/nvidia" in document["problems"][0]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_gpu_does_not_take_the_other_with_it(host: Path, lost: int) -> None:
    document = _facts(host, make_nvml(host / _STORED, f"LOST={lost}"))
    assert document["devices"] == [FACTS["devices"][1 - lost]]
    assert document["source"] == "nvml"
    (problem,) = document["problems"]
    assert problem.startswith(f"GPU {lost} is left out: ")
    assert "GPU is lost" in problem


def test_parts_whose_nodes_are_not_known_are_left_out(host: Path) -> None:
    (host / "proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access").unlink()
    document = _facts(host, make_nvml(host / _STORED))
    assert document["devices"][1]["mig"] == FACTS["devices"][1]["mig"][:1]
    assert "MIG-bbbbbbbb-0000-5000-8000-000000000002 is left out" in document["problems"][0]


def test_of_another_root_only_files_are_read(tmp_path: Path) -> None:
    """Its library is no program for this machine, whose NVML knows nothing of it."""
    add_gpus(tmp_path, is_running=False)
    document = _facts(tmp_path, make_nvml(tmp_path / _STORED, "HANGS"), limit=60.0)
    assert _by_proc(document) == _FALLEN_BACK
    assert "problems" not in document


def test_of_several_that_write_at_once_the_last_wrote_a_whole_file(host: Path) -> None:
    stored = [_smi(make_nvml(host / "one")), _smi(make_nvml(host / "two", "LOST=1"))]
    with ThreadPoolExecutor(4) as pool:
        again = [stored[number % 2] for number in range(8)]
        done = list(pool.map(lambda smi: record_facts(host, "nvidia", stored=[smi]), again))
    assert all(one.facts is not None for one in done)
    devices = json.loads((host / _FILE).read_text())["devices"]
    assert devices in (FACTS["devices"], FACTS["devices"][:1])
    assert [path.name for path in (host / _FILE).parent.iterdir()] == ["nvidia.json"]


def test_facts_go_with_the_driver(host: Path) -> None:
    library = make_nvml(host / _STORED)
    record_facts(host, "nvidia", stored=[_smi(library)])
    (host / "proc/driver/nvidia/version").unlink()
    gone = record_facts(host, "nvidia", stored=[_smi(library)])
    assert (gone.facts, gone.changed) == (None, True)
    assert not (host / _FILE).exists()
    assert record_facts(host, "nvidia", stored=[_smi(library)]).changed is False
