"""Facts about devices of trees that stand for hosts, and where they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import make_artifact, make_pin, write, write_manifest
from kit.gpus import report
from kit.host_tree import HostTree
from provision.build.workspace import load_settings
from provision.config import Config
from provision.errors import InUseError, ProvisionError, UsageError
from provision.host import devices
from provision.host.devices import (
    AMD,
    DeviceFacts,
    drm_facts,
    minor_number,
    read_facts_file,
    record_facts,
    recorded,
    recorded_problems,
    recording,
    write_facts,
)
from provision.kmod.load import load_driver, refresh, unload_driver
from provision.manifest import DriverFile, Manifest
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]
FOLDER = "run/oci-decorator/devices"
_A, _B = "GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"


def _nvidia(root: Path, version: str = "535.261.03") -> None:
    """Two GPUs, whose minor numbers run against the order of their addresses."""
    folder = root / "proc/driver/nvidia"
    write(folder / "version", f"NVRM version: NVIDIA UNIX Module  {version}  Mon\n".encode())
    for pci, minor, uuid in (("0000:C1:00.0", 0, _B), ("0000:0a:00.0", 1, _A)):
        text = f"GPU UUID: {uuid}\nBus Location: {pci}\nDevice Minor: {minor}\n"
        write(folder / f"gpus/{pci.lower()}/information", text.encode())


def _drm(root: Path, address: str, minor: int, vendor: str, **files: str) -> None:
    device = root / f"sys/devices/pci0000:00/{address}"
    for name, text in {"vendor": vendor, **files}.items():
        write(device / name, f"{text}\n".encode())
    node = root / f"sys/class/drm/renderD{minor}"
    write(root / f"sys/devices/pci0000:00/{address}/drm/renderD{minor}/dev", b"226:1\n")
    node.parent.mkdir(parents=True, exist_ok=True)
    node.symlink_to(f"../../devices/pci0000:00/{address}/drm/renderD{minor}")
    (device / f"drm/renderD{minor}/device").symlink_to("../..")


def _store(root: Path, *, interfaces: tuple[str, ...] | None = ("nvidia",)) -> Manifest:
    """A driver in the store, in use."""
    pin = make_pin(driver="gpu")
    entry = root / "var/lib/provision/gpu" / pin.short_digest
    manifest = make_artifact(entry, pin=pin)
    container = manifest.container.model_copy(update={"interfaces": interfaces})
    library = "/usr/lib64/nvidia/libnvidia-ml.so.1"
    files = (
        DriverFile(path=library, kind="library", link="libnvidia-ml.so.535"),
        DriverFile(path="/usr/bin/nvidia-smi", kind="binary"),
    )
    manifest = manifest.model_copy(update={"container": container, "files": files})
    write_manifest(entry, manifest)
    write(entry / f"driver{library}", b"library")
    gpu = {"pci": "0000:0a:00.0", "minor": 0, "uuid": _A, "name": "a GPU", "brand": "tesla"}
    text = report({"driver_version": "N/A", "cuda_version": "12.2", "devices": [gpu]})
    write(entry / "driver/usr/bin/nvidia-smi", f"#!/bin/sh\ncat <<END\n{text}END\n".encode(), 0o755)
    entry.with_name("current").symlink_to(entry.name)
    return manifest


def test_indices_are_in_the_order_of_addresses(tmp_path: Path) -> None:
    _nvidia(tmp_path)
    collected = record_facts(tmp_path, "nvidia")
    assert collected.facts is not None
    assert [(d.index, d.minor, d.pci, d.uuid) for d in collected.facts.devices] == [
        (0, 1, "0000:0a:00.0", _A),
        (1, 0, "0000:c1:00.0", _B),
    ]
    assert collected.problems == ()
    assert read_facts_file(tmp_path, "nvidia") == collected.facts


def test_a_gpu_without_a_minor_number_is_left_out(tmp_path: Path) -> None:
    _nvidia(tmp_path)
    write(tmp_path / "proc/driver/nvidia/gpus/0000:0a:00.0/information", b"Model: x\n")
    collected = record_facts(tmp_path, "nvidia")
    assert collected.facts is not None
    assert [d.pci for d in collected.facts.devices] == ["0000:c1:00.0"]
    assert "0000:0a:00.0/information is left out" in collected.problems[0]
    assert recorded_problems(tmp_path, "nvidia") == collected.problems


def test_amd_and_intel(tmp_path: Path) -> None:
    _drm(tmp_path, "0000:83:00.0", 129, "0x1002", unique_id="1f2e3d4c5b6a7988")
    _drm(tmp_path, "0000:03:00.0", 130, "0x1002", unique_id="0", product_name="Instinct MI210")
    _drm(tmp_path, "0000:00:02.0", 128, "0x8086")
    # It is no PCI device of its own.
    _drm(tmp_path, "amdgpu_xcp_0", 131, "0x1002")
    write(tmp_path / "sys/module/amdgpu/version", b"6.10.5\n")
    found = {one.vendor: one.facts for one in refresh(tmp_path)}
    assert found.keys() == {"amd", "intel"}
    amd, intel = found["amd"], found["intel"]
    assert amd is not None
    assert intel is not None
    assert amd.driver_version == "6.10.5"
    assert [(d.index, d.minor, d.pci, d.uuid, d.name) for d in amd.devices] == [
        (0, 130, "0000:03:00.0", None, "Instinct MI210"),
        (1, 129, "0000:83:00.0", "GPU-1f2e3d4c5b6a7988", None),
    ]
    assert [(d.index, d.minor, d.pci) for d in intel.devices] == [(0, 128, "0000:00:02.0")]
    assert recorded(tmp_path) == ["amd", "intel"]


def test_a_vendor_file_has_facts_under_its_own_name(tmp_path: Path) -> None:
    _drm(tmp_path, "0000:83:00.0", 129, "0x1002")
    for name in ("oci-amd", "oci-intel", "oci-onload", "mine"):
        write(tmp_path / f"etc/oci-decorator/oci-decorator.d/{name}.json", b"{}")
    found = {one.vendor: one.facts for one in refresh(tmp_path)}
    assert found.keys() == {"amd", "oci-amd"}
    assert found["amd"] == found["oci-amd"]
    assert [one.vendor for one in refresh(tmp_path, "oci-amd")] == ["oci-amd"]


def test_a_driver_of_the_store_has_facts_under_its_name(host_tree: HostTree) -> None:
    _nvidia(host_tree.root)
    _store(host_tree.root)
    (gpu,) = refresh(host_tree.root)
    assert gpu.vendor == "gpu"
    assert gpu.facts is not None
    assert gpu.facts.source == "nvml"
    assert gpu.facts.driver_version == "535.261.03"
    assert [device.uuid for device in gpu.facts.devices] == [_A]


def test_loading_writes_facts_and_unloading_removes_them(host_tree: HostTree) -> None:
    # Of a machine that does not run, no library is asked.
    host_tree.write("proc/sys/kernel/random/boot_id", "another\n")
    _store(host_tree.root)
    _nvidia(host_tree.root)
    settings = load_settings(host_tree.root)
    moved = load_driver(settings.root, settings.config, "gpu")
    assert (moved.modules, moved.problems) == (("demo",), ())
    document = json.loads((host_tree.root / FOLDER / "gpu.json").read_text())
    assert [device["minor"] for device in document["devices"]] == [1, 0]
    unload_driver(settings.root, settings.config, "gpu")
    assert recorded(host_tree.root) == []


def test_a_driver_without_the_interface_has_no_facts(host_tree: HostTree) -> None:
    _store(host_tree.root, interfaces=None)
    _nvidia(host_tree.root)
    assert load_driver(host_tree.root, Config(), "gpu").problems == ()
    assert recorded(host_tree.root) == []
    # It is another's then: NVIDIA's own, from elsewhere.
    assert [one.vendor for one in refresh(host_tree.root)] == ["nvidia"]


def test_facts_that_can_not_be_written_fail_no_load(call: Call, host_tree: HostTree) -> None:
    _store(host_tree.root)
    _nvidia(host_tree.root)
    write(host_tree.root / FOLDER, b"a file where the folder should be")
    outcome = call("load", "gpu", "--root", host_tree.root, "--json")
    assert outcome.code == 0
    assert "demo" in host_tree.loaded()
    assert "could not be written" in outcome.document["drivers"][0]["problems"][0]


def test_who_unloads_waits_for_who_collects(
    host_tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(host_tree.root)
    load_driver(host_tree.root, Config(), "gpu")
    monkeypatch.setattr("provision.host.devices._WAIT_S", 0.1)
    with recording(host_tree.root), pytest.raises(InUseError, match=r"devices\.lock"):
        unload_driver(host_tree.root, Config(), "gpu")
    assert "demo" in host_tree.loaded()


def test_no_link_leads_out_of_a_root(tmp_path: Path, plain_path: Path) -> None:
    root = tmp_path / "host"
    _nvidia(root)
    (root / "run").symlink_to(plain_path / "elsewhere")
    record_facts(root, "nvidia")
    assert not (plain_path / "elsewhere").exists()
    assert recorded(root) == ["nvidia"]


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b"])
def test_names_that_no_vendor_file_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        write_facts(tmp_path, name, DeviceFacts(devices=()))


def test_a_damaged_file_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    write(tmp_path / FOLDER / "gpu.json", b"{")
    assert "can't be read" in recorded_problems(tmp_path, "gpu")[0]
    with pytest.raises(ProvisionError):
        read_facts_file(tmp_path, "gpu")


def test_the_command_shows_what_is_known(call: Call, tmp_path: Path) -> None:
    part = {"uuid": "MIG-1", "gpu_instance": 1, "compute_instance": 0, "nodes": ["nvidia-caps/c3"]}
    device = {"index": 0, "minor": 2, "pci": "0000:01:00.0", "uuid": _A, "mig": [part]}
    document = {"schema": 1, "driver_version": "535", "cuda_version": "12.2", "devices": [device]}
    write(tmp_path / FOLDER / "nvidia.json", json.dumps(document).encode())
    shown = call("devices", "--root", tmp_path)
    assert shown.code == 0
    assert "nvidia: driver 535, CUDA 12.2" in shown.out
    row, part_row = (
        line.split() for line in shown.out.splitlines() if " 0" in line and "0:" in line
    )
    assert row[:5] == ["nvidia", "0", "2", "0000:01:00.0", _A]
    assert part_row[1] == "0:0"
    assert "MIG-1" in part_row
    for words in ([], ["nvidia"]):
        listed = call("devices", *words, "--root", tmp_path, "--json").document
        assert (listed["devices"], listed["exit_code"]) == ({"nvidia": document}, 0)


def test_the_command_looks_again(call: Call, tmp_path: Path) -> None:
    nothing = call("devices", "--root", tmp_path)
    assert nothing.code == 3
    _nvidia(tmp_path)
    again = call("devices", "--rescan", "--root", tmp_path, "--json").document
    assert again["changed"] == ["nvidia"]
    assert len(again["devices"]["nvidia"]["devices"]) == 2
    assert (
        call("devices", "--rescan", "nvidia", "--root", tmp_path, "--json").document["changed"]
        == []
    )
    (tmp_path / "proc/driver/nvidia/version").unlink()
    gone = call("devices", "--rescan", "--root", tmp_path, "--json").document
    assert (gone["devices"], gone["changed"]) == ({}, ["nvidia"])


def test_a_damaged_file_says_how_to_have_a_new_one(call: Call, tmp_path: Path) -> None:
    write(tmp_path / FOLDER / "nvidia.json", b'{"devices": 3}')
    outcome = call("devices", "--root", tmp_path)
    assert outcome.code == 2
    assert "What to do: Write the file again: provision devices --rescan" in outcome.err


def test_what_is_no_text_of_the_kernel_is_left_out(tmp_path: Path) -> None:
    """A FIFO would hold a reader up, and a file without end fills the memory."""
    _nvidia(tmp_path)
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    first, second = sorted(gpus.glob("*/information"))
    first.unlink()
    os.mkfifo(first)
    with second.open("ab") as stream:
        stream.truncate(1 << 40)
    facts = devices.nvidia_facts(tmp_path)
    assert facts is not None
    assert facts.devices == ()
    assert len(facts.problems) == 2
    version = tmp_path / "proc/driver/nvidia/version"
    version.unlink()
    os.mkfifo(version)
    assert devices.nvidia_facts(tmp_path) is None


def test_sysfs_is_read_as_carefully(tmp_path: Path) -> None:
    _drm(tmp_path, "0000:03:00.0", 128, "0x1002")
    _drm(tmp_path, "0000:04:00.0", 129, "0x1002")
    vendor = tmp_path / "sys/devices/pci0000:00/0000:03:00.0/vendor"
    vendor.unlink()
    os.mkfifo(vendor)
    facts = drm_facts(tmp_path, AMD)
    assert facts is not None
    assert [device.minor for device in facts.devices] == [129]


def test_two_gpus_of_one_minor_number_are_left_out_by_name(tmp_path: Path) -> None:
    _nvidia(tmp_path)
    text = b"Bus Location: 0000:d1:00.0\nDevice Minor: 1\n"
    write(tmp_path / "proc/driver/nvidia/gpus/0000:d1:00.0/information", text)
    facts = devices.nvidia_facts(tmp_path)
    assert facts is not None
    assert [device.minor for device in facts.devices] == [0]
    [problem] = facts.problems
    assert "0000:0a:00.0, 0000:d1:00.0" in problem
    assert "minor number 1" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        (" 255\n", 255),
        ("1048575", 1048575),
        ("1048576", None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("\u0663", None),
        ("0x10", None),
    ],
)
def test_minor_numbers(text: str, expected: int | None) -> None:
    assert minor_number(text) == expected
    line = f"Bus Location: 0000:01:00.0\nDevice Minor: {text}\n"
    assert devices.parse_information(line).minor == expected
    assert devices.parse_capability(f"DeviceFileMinor: {text.strip()}\n") == expected
