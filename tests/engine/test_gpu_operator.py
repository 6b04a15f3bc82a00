"""What the validator of NVIDIA's GPU Operator says of a node with our driver.

It is built from the module that `tests/data/go` pins. The node has what `provision install` made of
NVIDIA's user space; its NVML, devices and modules are stand-ins, and so is the one answer of the
API server that the validator asks for. What is no module of Go was run by hand: support.md has it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest

from kit.files import write
from kit.fileserver import guard, serving
from kit.go_modules import go_programs
from kit.gpu_host import GpuHost
from kit.gpus import plain_gpus
from kit.hosts import DISTRO, NEW_KERNEL
from kit.probe import can_mount, need, need_programs
from kit.process import Completed
from kit.product import Provision

# Besides, the first time: the validator is compiled.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.minutes(5),
]

_OPERATOR = "gpu-operator"
_DRIVER = "run/nvidia/driver"
# What the operator calls a driver pod's DaemonSet.
_LABEL = "app.kubernetes.io/component=nvidia-driver"
_STATUS = "run/nvidia/validations/driver-ready"
_DEVICES = "Character devices:\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n511 nvidia-caps\n"
_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class Node:
    """A node with our driver, and programs that run in privileged containers on it."""

    machine: GpuHost
    # Of the API server.
    address: str
    programs: Path

    @property
    def root(self) -> Path:
        return self.machine.root

    def __call__(self, name: str, *words: str) -> Completed:
        """Run a program with what such a container has of its node."""
        host, _, port = self.address.removeprefix("https://").rpartition(":")
        variables = {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "NODE_NAME": "node",
            "OPERATOR_NAMESPACE": _OPERATOR,
        }
        driver = (self.root / "var/lib/provision/nvidia/current/driver").resolve()
        library = (driver / "usr/lib64/libnvidia-ml.so.1").resolve().relative_to(driver)
        folder = self.machine.folder
        shown = {
            "host": self.root,
            _DRIVER: driver,
            f"{_DRIVER}/{library}": (self.root / "srv/usr/lib/libnvidia-ml.so.1").resolve(),
            "proc/devices": folder / "devices",
            "sys/module": folder / "module",
        }
        given = [f"{key}={value}" for key, value in variables.items()]
        command = ["/usr/bin/env", *given, f"/kit/{name}", *words]
        return self.machine(self.programs, command, limit_s=60, shown=shown)

    def validate(self) -> Completed:
        """Run the validator of NVIDIA's operator."""
        (self.root / _STATUS).unlink(missing_ok=True)
        return self("validator", "--component", "driver")


class _Daemonsets(BaseHTTPRequestHandler):
    """An API server that is asked which DaemonSets the operator has."""

    items: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        """Answer as https://kubernetes.io/docs/reference/kubernetes-api/ says."""
        path, _, query = self.path.partition("?")
        assert path == f"/apis/apps/v1/namespaces/{_OPERATOR}/daemonsets"
        assert parse_qs(query)["labelSelector"] == [_LABEL]
        listed = {"kind": "DaemonSetList", "apiVersion": "apps/v1", "items": self.items}
        content = json.dumps(listed).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def node(
    provision: Provision,
    small_nvidia: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    need_programs("go", "gcc", "unshare")
    folder = tmp_path_factory.mktemp("node")
    facts = plain_gpus(1)
    machine = GpuHost(folder, facts, driver="srv", libraries="usr/lib", has_smi=False).make()
    for name in (_DRIVER, "run/nvidia/validations", "host", "host-dev-char"):
        (machine.root / name).mkdir(parents=True)
    # The validator's image has it.
    (machine.root / "usr/bin/bash").symlink_to("sh")
    guarded = guard(folder, "")
    write(machine.root / _ACCOUNT / "ca.crt", guarded.authority.read_bytes())
    write(machine.root / _ACCOUNT / "token", "x")
    write(folder / "devices", _DEVICES)
    write(folder / "module/nvidia/refcnt", "0\n")
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    image = provision.build(*target, "--catalogue", small_nvidia)["image"]
    provision("install", image, "--root", machine.root)
    module = "github.com/NVIDIA/gpu-operator/validator"
    programs = shutil.copytree(go_programs("gpu-operator", module, c="shared"), folder / "programs")
    with serving(_Daemonsets, guarded.tls()) as address:
        yield Node(machine, address, programs)


def test_the_validator_takes_our_driver(node: Node) -> None:
    done = node.validate()
    assert done.returncode == 0, done.output
    said = dict(line.split("=") for line in (node.root / _STATUS).read_text().splitlines())
    assert said["IS_HOST_DRIVER"] == "false"
    assert said["NVIDIA_DRIVER_ROOT"] == f"/{_DRIVER}"
    assert said["NVIDIA_DEV_ROOT"] == "/"


def test_the_validator_waits_for_no_driver_pod(node: Node) -> None:
    """It waits for a file then, which systemd writes by our unit with the root."""
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "x", "uid": "1"}
    metadata = {"name": "driver", "ownerReferences": [{**owner, "controller": True}]}
    _Daemonsets.items.append({"metadata": metadata})
    (unit,) = (node.root / "etc/systemd/system").glob("provision-nvidia-*.service")
    begins, ends = (
        re.findall(rf"(?m)^{key}=(.*)$", unit.read_text())[0] for key in ("ExecStart", "ExecStop")
    )
    try:
        assert node.validate().returncode != 0
        # systemd(7) reads a doubled percent sign as one, and a doubled backslash too.
        write(node.programs / "begin", f"#!/bin/sh\n{_shell(begins)}\n", 0o755)
        write(node.programs / "end", f"#!/bin/sh\n{_shell(ends)}\n", 0o755)
        assert node("begin").returncode == 0
        done = node.validate()
        assert done.returncode == 0, done.output
        assert node("end").returncode == 0
        assert node.validate().returncode != 0
    finally:
        _Daemonsets.items.clear()


def _shell(line: str) -> str:
    return line.replace("%%", "%").replace("\\\\", "\\")
