"""A device plugin of the smallest kind, by kubelet's own interface: each unit is a CDI device."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from kit.cri import messages_and_services
from kit.process import wait_for

_INTERFACE = (
    "k8s.io/kubelet",
    "v0.37.2",
    "h1:AaRApKAcqmMD4pxmsxdghJHbTNfOxYOIlPCARw8+01A=",
    "pkg/apis/deviceplugin/v1beta1/api.proto",
)
_TIMEOUT_S = 60


@dataclass
class DevicePlugin:
    """Counts units and hands them out; `with DevicePlugin(...):` for as long as it runs."""

    # Kubelet's folder of sockets.
    sockets: Path
    # What pods ask for, such as `example.com/unit`.
    resource: str
    # The CDI device of each unit, by the unit's name.
    units: Mapping[str, str]
    # How it names devices, in NVIDIA's words: in kubelet's own field (`cdi-cri`), or by annotations
    # of the container (`cdi-annotations`).
    strategy: str = "cdi-cri"

    def __enter__(self) -> Self:
        """Serve, and wait until kubelet knows it.

        Raises:
            TimeoutError: it does not take the units.
        """
        messages, services = messages_and_services(*_INTERFACE)
        self._ends = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor())
        services.add_DevicePluginServicer_to_server(self, self._server)
        socket = self.sockets / f"{self.resource.replace('/', '_')}.sock"
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()
        with grpc.insecure_channel(f"unix://{self.sockets}/kubelet.sock") as channel:
            request = messages.RegisterRequest(
                version="v1beta1", endpoint=socket.name, resource_name=self.resource
            )
            services.RegistrationStub(channel).Register(
                request, timeout=_TIMEOUT_S, wait_for_ready=True
            )
        what = f"kubelet to know the units of {self.resource}"
        wait_for(what, lambda: self._known() == set(self.units), within_s=_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ends.set()
        self._server.stop(grace=None).wait()

    def _known(self) -> set[str]:
        """The units of which kubelet has written down that it knows them."""
        written = self.sockets / "kubelet_internal_checkpoint"
        if not written.exists():
            return set()
        registered = json.loads(written.read_text())["Data"]["RegisteredDevices"]
        return set((registered or {}).get(self.resource) or [])

    # What kubelet calls, by its interface's names.

    def GetDevicePluginOptions(self, _request: object, _context: object) -> Any:  # noqa: ANN401, N802
        """It wants no further calls."""
        messages, _ = messages_and_services(*_INTERFACE)
        return messages.DevicePluginOptions()

    def ListAndWatch(self, _request: object, _context: object) -> Iterator[Any]:  # noqa: N802
        """All units, which are healthy until the end."""
        messages, _ = messages_and_services(*_INTERFACE)
        devices = [messages.Device(ID=unit, health="Healthy") for unit in self.units]
        yield messages.ListAndWatchResponse(devices=devices)
        self._ends.wait()

    def Allocate(self, request: Any, _context: object) -> Any:  # noqa: ANN401, N802
        """The devices of the units that kubelet has chosen."""
        messages, _ = messages_and_services(*_INTERFACE)
        answers = []
        for container in request.container_requests:
            names = [self.units[unit] for unit in container.devices_ids]
            if self.strategy == "cdi-annotations":
                given: dict[str, Any] = {"annotations": {"cdi.k8s.io/kit": ",".join(names)}}
            else:
                given = {"cdi_devices": [{"name": name} for name in names]}
            answers.append(messages.ContainerAllocateResponse(**given))
        return messages.AllocateResponse(container_responses=answers)

    def GetPreferredAllocation(self, _request: object, _context: object) -> Any:  # noqa: ANN401, N802
        """Never called, by its options."""
        raise NotImplementedError

    PreStartContainer = GetPreferredAllocation
