"""Why a module was refused: the lines are those of Linux 6.1 and kmod 30."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.kmod.load import KernelLog, UnfitModuleError, explain

VERMAGIC = (
    "demo: version magic '6.1.0-50-amd64 SMP preempt mod_unload modversions ' should be"
    " '6.1.0-47-amd64 SMP preempt mod_unload modversions '"
)
CASES = [
    (
        "Key was rejected by service",
        "Loading of unsigned module is rejected",
        "modules signed with a key that it knows, and this one is not signed",
        "mokutil --import",
    ),
    (
        "Key was rejected by service",
        "Loading of module with unavailable key is rejected",
        "is signed with a key that it does not know",
        "secure-boot.md",
    ),
    ("Required key not available", "", "a key that it does not know", "mokutil --import"),
    (
        "Key was rejected by service",
        "Loading of module with unsupported crypto is rejected",
        "a digest that it does not have",
        'hash = "sha256"',
    ),
    ("Key was rejected by service", "", "does not verify with any of them", "provision verify"),
    ("Bad message", "", "has a signature that it can't read", "provision install --again"),
    (
        "Operation not permitted",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
        "the kernel is locked down",
        "mokutil --import",
    ),
    ("Operation not permitted", "", "does not permit it", "CAP_SYS_MODULE"),
    ("Permission denied", "", "SELinux", "modules_object_t"),
    (
        "Exec format error",
        VERMAGIC,
        "built for another kernel ('6.1.0-50-amd64 SMP preempt mod_unload modversions'",
        "provision apply",
    ),
    ("Exec format error", "", "its format is not this kernel's", "provision apply"),
    (
        "Invalid argument",
        "demo: disagrees about version of symbol module_layout",
        "the symbol 'module_layout' has another version",
        "provision apply",
    ),
    (
        "Unknown symbol in module, or unknown parameter (see dmesg)",
        "demo: Unknown symbol v4l2_device_register (err -2)",
        "(v4l2_device_register)",
        "provision verify",
    ),
    (
        "Invalid argument",
        "demo: `two' invalid for parameter `devices'",
        "its parameter 'devices'",
        "modinfo -p demo",
    ),
    ("No such device", "", "no hardware that it drives", "provision facts"),
    ("Cannot allocate memory", "", "Cannot allocate memory", "dmesg"),
]


@pytest.mark.parametrize(("said", "logged", "what", "todo"), CASES)
def test_a_refusal_is_explained(said: str, logged: str, what: str, todo: str) -> None:
    line = f"modprobe: ERROR: could not insert 'demo': {said}"
    error = explain("demo", "6.1.0-47-amd64", line, [logged] if logged else [])
    assert "The module 'demo' could not be loaded: " in error.message
    assert what in error.message
    assert todo in str(error.resolution)
    assert line in str(error.details)
    assert logged in str(error.details)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("No such device", NotFoundError),
        ("Exec format error", UnfitModuleError),
        ("Bad message", UnfitModuleError),
        ("Permission denied", ProvisionError),
    ],
)
def test_who_catches_a_refusal_knows_its_kind(said: str, kind: type[ProvisionError]) -> None:
    line = f"modprobe: ERROR: could not insert 'nvidia': {said}"
    assert type(explain("nvidia", "6.1", line, [])) is kind


def test_a_program_that_says_nothing_still_gets_an_error() -> None:
    assert "gave no reason" in explain("demo", "6.1", "", []).message


def test_the_log_is_read_from_the_moment_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "dev/kmsg"
    path.parent.mkdir()
    path.write_text("6,1,1,-;before\n")
    with KernelLog(tmp_path) as log:
        with path.open("a") as stream:
            stream.write("3,2,5,-;demo: first; with more\n SUBSYSTEM=pci\n DEVICE=+pci\n")
            stream.write("4,3,6,-;second\n")
        assert log.lines() == ["demo: first; with more", "second"]


def test_a_log_that_would_block_ends(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    writer = os.open(tmp_path / "dev/kmsg", os.O_RDWR)
    try:
        with KernelLog(tmp_path) as log:
            assert log.lines() == []
    finally:
        os.close(writer)


def test_a_host_without_a_log_has_no_lines(tmp_path: Path) -> None:
    with KernelLog(tmp_path) as log:
        assert log.lines() == []
