"""What the activation flags do in real containers, with vendor configs dropped in by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kit.files import write
from kit.hosts import Containers, Host

_DEFAULTS: dict[str, Any] = {"version": "1", "log_level": "LOG_INFO"}


def _vendor(host: Host, name: str, flag: str) -> None:
    """A vendor whose two features have one file each."""
    inventory = {}
    for feature in ("first", "second"):
        path = f"/opt/{name}/{feature}"
        write(host.root / path.lstrip("/"), f"{name} {feature}\n")
        inventory[feature] = {"miscellaneous": [path]}
    host.write_vendor(
        name,
        {
            **_DEFAULTS,
            "activation_flag": flag,
            "driver_feature": ["first"],
            "inventory": inventory,
        },
    )


@pytest.fixture
def two_vendors(host: Host) -> Host:
    """A host with the vendors `gpu` (OCI_GPU) and `nic` (OCI_NIC)."""
    _vendor(host, "gpu", "OCI_GPU")
    _vendor(host, "nic", "OCI_NIC")
    return host


_LIST = ("sh", "-c", "ls /opt/*/* 2>/dev/null; true")


@pytest.mark.usefixtures("two_vendors")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), []),
        (("OCI_GPU=none",), []),
        (("OCI_GPU=void",), []),
        (("NOT_OCI_GPU=all",), []),
        (("OTHER=OCI_GPU",), []),
        (("OCI_GPU=",), ["/opt/gpu/first"]),
        (("OCI_GPU=second",), ["/opt/gpu/second"]),
        (("OCI_GPU=all",), ["/opt/gpu/first", "/opt/gpu/second"]),
        (
            ("OCI_GPU=first,second", "OCI_NIC="),
            ["/opt/gpu/first", "/opt/gpu/second", "/opt/nic/first"],
        ),
    ],
)
def test_a_flags_value_says_what_a_container_gets(
    containers: Containers, flags: tuple[str, ...], expected: list[str]
) -> None:
    environment = tuple(f"--env={flag}" for flag in flags)
    assert containers.docker(*_LIST, flags=environment).stdout.split() == expected
    assert containers.in_podman(*_LIST, flags=environment).stdout.split() == expected


@pytest.mark.usefixtures("two_vendors")
def test_what_a_container_gets_is_read_only(containers: Containers) -> None:
    done = containers.docker(
        "sh", "-c", "echo x > /opt/gpu/first", flags=("--env=OCI_GPU=all",), check=False
    )
    assert done.returncode != 0
    assert "Read-only" in done.output


def test_an_unknown_feature_refuses_the_start_with_one_line(
    containers: Containers, two_vendors: Host
) -> None:
    config = two_vendors.config_dir / "gpu.json"
    for start in (containers.docker, containers.in_podman):
        done = start("true", flags=("--env=OCI_GPU=first,third",), check=False)
        assert done.returncode != 0
        lines = [line for line in done.output.splitlines() if "third" in line]
        assert lines, done.output
        assert "OCI_GPU" in lines[0]
        assert str(config) in lines[0]
