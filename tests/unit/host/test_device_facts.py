"""What is made of the texts of drivers and of nvidia-smi."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kit.gpus import report
from provision.errors import ProvisionError
from provision.host.devices import (
    DeviceFacts,
    Mig,
    parse_information,
    parse_reports,
    parse_unique_id,
    parse_version,
)
from provision.host.facts import pci_address, pci_order

REFERENCE = Path(__file__).parents[3] / "docs/reference"
_UUID, _PART = "GPU-1", "MIG-1"
_GPU: dict[str, Any] = {
    "pci": "00000000:01:00.0",
    "minor": 0,
    "uuid": _UUID,
    "name": "a GPU",
    "brand": "tesla",
    "mig": [{"index": 0, "gpu_instance": 1, "compute_instance": 0}],
}
_DEVICE = {"index": 0, "minor": 0, "pci": "0000:01:00.0"}


def _reports(*gpus: dict[str, Any], **members: object) -> dict[int | None, str]:
    head = {"driver_version": "535.1", "cuda_version": "12.2", **members}
    return {None: report({**head, "devices": list(gpus)})}


def test_the_schema_in_the_documentation_is_the_codes() -> None:
    schema = json.loads((REFERENCE / "device-facts.schema.json").read_text())
    assert schema == DeviceFacts.model_json_schema()
    assert schema["required"] == ["devices"]
    assert schema["$defs"]["Device"]["required"] == ["index", "minor", "pci"]


def test_the_reference_names_every_key() -> None:
    text = (REFERENCE / "cdi.md").read_text()
    schema = json.loads((REFERENCE / "device-facts.schema.json").read_text())
    for table in (schema, *schema["$defs"].values()):
        for name in table["properties"]:
            assert f"`{name}`" in text, name


def test_the_example_in_the_documentation_is_one() -> None:
    text = (REFERENCE / "cdi.md").read_text()
    example = text.partition("```json\n")[2].partition("```")[0]
    facts = DeviceFacts.model_validate_json(example)
    assert facts.text() == json.dumps(json.loads(example), indent=2) + "\n"
    assert [len(gpu.mig or ()) for gpu in facts.devices] == [0, 2]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"pci": "00000000:01:00.0G"}, "pci"),
        ({"pci": "0000:0A:00.0"}, "pci"),
        ({"index": -1}, "index"),
        ({"minor": "0"}, "minor"),
        ({"uuid": "GPU-1\n"}, "uuid"),
        ({"brand": "Tesla V"}, "brand"),
        ({"arch": "sm_80"}, "arch"),
        ({"colour": "red"}, "colour"),
        (
            {"mig": [{"uuid": "M", "gpu_instance": 1, "compute_instance": 0, "nodes": ["../sda"]}]},
            "nodes",
        ),
    ],
)
def test_what_no_file_may_say(change: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        DeviceFacts.model_validate_json(json.dumps({"devices": [{**_DEVICE, **change}]}))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:0A:00.0", "0000:0a:00.0"),
        ("0000:01:00.0", "0000:01:00.0"),
        (" 0002:C1:1F.7\n", "0002:c1:1f.7"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:01:00", None),
        ("0000:01:00.8", None),
        ("0000:01:20.0", None),
        ("", None),
        ("\u0661:01:00.0", None),
    ],
)
def test_pci_addresses(text: str, address: str | None) -> None:
    assert pci_address(text) == address


@given(
    st.tuples(
        st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7)
    )
)
def test_addresses_say_the_same_in_every_form(numbers: tuple[int, int, int, int]) -> None:
    domain, bus, device, function = numbers
    by_nvml = pci_address(f"{domain:08X}:{bus:02X}:{device:02X}.{function}")
    by_kernel = pci_address(f"{domain:04x}:{bus:02x}:{device:02x}.{function}")
    assert by_nvml is not None
    assert by_nvml == by_kernel == pci_address(by_nvml)
    assert pci_order(by_nvml) == numbers


def test_versions_of_both_kinds_of_modules() -> None:
    proprietary = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Mon Jul 14\n"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build\n"
    assert parse_version(proprietary) == "535.261.03"
    assert parse_version(opened + "GCC version:  gcc version 12.2.0 (Debian)\n") == "550.163.01"
    assert parse_version("GCC version:  gcc version 12.2.0 (Debian 12)\n") is None


def test_a_gpu_that_was_never_used_has_no_uuid() -> None:
    known = parse_information(
        "Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
        "Bus Location: \t 0000:07:00.0\nDevice Minor: \t 3\n"
    )
    assert (known.pci, known.minor, known.uuid) == ("0000:07:00.0", 3, None)
    assert known.name == "NVIDIA A100-SXM4-40GB"
    assert parse_information("Model: Unknown\nDevice Minor: x\n").minor is None


@given(st.integers(1, 2**64 - 1))
def test_unique_ids_of_amd(number: int) -> None:
    assert parse_unique_id(f"{number:016x}\n") == parse_unique_id(f"0x{number:x}")
    assert parse_unique_id(f"{number:016x}\n") == f"GPU-{number:016x}"


def test_a_gpu_without_a_unique_id() -> None:
    assert parse_unique_id("0000000000000000\n") is None
    assert parse_unique_id("") is None


def test_a_report_of_nvidia_smi() -> None:
    other = {**_GPU, "uuid": "GPU-2", "brand": "nvidia", "mig": []}
    facts = parse_reports(
        _reports(_GPU, other),
        capabilities=f"{_UUID}, 8.0\nGPU-2, [N/A]\n",
        listing=f"GPU 0: a GPU (UUID: {_UUID})\n"
        f"  MIG 3g.20gb     Device  0: (UUID: {_PART})\nGPU 1: a GPU (UUID: GPU-2)\n",
    )
    assert (facts.driver_version, facts.cuda_version) == ("535.1", "12.2")
    assert [(gpu.brand, gpu.arch) for gpu in facts.devices] == [("tesla", "8.0"), ("nvidia", None)]
    assert facts.devices[0].pci == "0000:01:00.0"
    assert facts.devices[0].mig == (
        Mig(index=0, uuid=_PART, gpu_instance=1, compute_instance=0, nodes=()),
    )
    assert facts.devices[1].mig is None
    assert facts.problems == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"minor": "N/A"}, "its node or its PCI address is not known"),
        ({"pci": "somewhere"}, "its node or its PCI address is not known"),
        ({"minor": -1}, "its node or its PCI address is not known"),
        ({"uuid": "GPU 1"}, "what can't be true"),
    ],
)
def test_a_gpu_that_can_not_be_chosen_is_left_out(change: dict[str, object], problem: str) -> None:
    plain = {**_GPU, "mig": []}
    facts = parse_reports(_reports({**plain, **change}, plain))
    assert [gpu.index for gpu in facts.devices] == [1]
    assert problem in facts.problems[0]
    assert facts.problems[0].startswith("GPU 0 is left out")


@pytest.mark.parametrize("part", [{}, {"gpu_instance": "N/A"}, {"index": "N/A"}])
def test_parts_that_are_not_known_are_left_out(part: dict[str, Any]) -> None:
    whole = _GPU["mig"][0]
    listed = "".join(f"  MIG 1g Device {n}: (UUID: MIG-{n})\n" for n in ([0, 1] if part else [1]))
    facts = parse_reports(
        _reports({**_GPU, "mig": [{**whole, **part}, {**whole, "index": 1}]}),
        listing=f"GPU 0: a GPU (UUID: {_UUID})\n{listed}",
    )
    (gpu,) = facts.devices
    assert [one.uuid for one in gpu.mig or ()] == ["MIG-1"]
    assert "is left out" in facts.problems[0]


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "Killed\n",
        "<a>",
        *_reports(driver_version="5\x00").values(),
        *_reports(cuda_version="new").values(),
    ],
)
def test_what_is_no_report(printed: str) -> None:
    with pytest.raises(ProvisionError):
        parse_reports({None: printed})


@given(st.text(), st.text(), st.text())
def test_whatever_is_printed_is_a_report_or_an_error(uuid: str, name: str, printed: str) -> None:
    try:
        facts = parse_reports(
            _reports({**_GPU, "uuid": uuid, "name": name}), capabilities=printed, listing=printed
        )
    except ProvisionError:
        return
    assert DeviceFacts.model_validate_json(facts.text()) == facts
