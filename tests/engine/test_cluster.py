"""A cluster of one node, with kubelet and containerd 2: who gets which devices, and what stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
import yaml

from kit.agent_host import AgentHost
from kit.cache import REPOSITORY
from kit.cluster import NODE, Cluster, pod_of
from kit.cri import messages_and_services
from kit.driver_pod import MODPROBE, RMMOD
from kit.engine import Engine
from kit.files import write
from kit.fileserver import served
from kit.gpus import FACTS
from kit.hosts import DISTRO, OLD_KERNEL, Host
from kit.made_up import MADE_UP, made_up_source, write_made_up
from kit.nvidia_host import add_driver
from kit.probe import need, need_programs
from kit.process import wait_for
from kit.product import DECORATOR, Provision
from kit.registry import RegistryServer
from kit.released import agent_image
from kit.standins import ALLOWED, OPEN_NODES

# The first time, half of it to compile Kubernetes and containerd.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(14)]

_INTERFACE = (
    "k8s.io/kubelet",
    "v0.37.2",
    "h1:AaRApKAcqmMD4pxmsxdghJHbTNfOxYOIlPCARw8+01A=",
    "pkg/apis/deviceplugin/v1beta1/api.proto",
)
_TIMEOUT_S = 60


@dataclass
class DevicePlugin:
    """Hands units out, by kubelet's own interface: each is a CDI device."""

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
        """Serve, and wait until kubelet knows it."""
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


_AGENT_PODS = "/api/v1/namespaces/provision/pods"
_CDI = f"run/cdi/oci-decorator-{MADE_UP}.json"
_VERSIONS = ("1.2", "1.3")
_RESOURCE = "kit.test/hello"
# Nodes of GPUs that a container has, and what becomes of an attempt to open each.
_NODES = """
for node in $(find /dev -type c -name '*nvidia*' | sort); do
    echo "$node $( (: < "$node") 2>&1 | sed 's/.*: //')"
done
"""
# The first GPU and the control nodes, and neither the other GPU nor its parts.
_ONE = "".join(
    f"/dev/{name} {ALLOWED}\n"
    for name in ("nvidia-uvm", f"nvidia{FACTS['devices'][0]['minor']}", "nvidiactl")
)
# The tool of the made-up driver says its version.
_REPORT = f"hello-tool; set -- /dev/hello0; {OPEN_NODES}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A registry with two versions of a driver for the node's kernel."""

    # Of the registry, with the prefix.
    address: str
    # The agent's image, as the node has it.
    agent: str
    # The key, and the catalogue.
    folder: Path

    def documents(self, version: str) -> list[dict[str, Any]]:
        """What `provision export daemonset` writes for nodes that are to have this version."""
        config = self.folder / "provision.toml"
        config.write_text(
            f'catalogue = ["/srv/drivers"]\n[drivers.{MADE_UP}]\nversion = "{version}"\n'
            f'[registry]\naddress = "{self.address}"\nplain_http = true\n'
            '[trust]\nkeys = "/etc/provision/trust.d"\n[policy]\nbuild = "never"\n'
        )
        words = ("--image", self.agent, "--config", config, "--interval", "30")
        printed = Provision("unix:///nowhere")(
            "export", "daemonset", *words, "--key", self.folder / "fleet.pub"
        ).stdout
        return list(yaml.safe_load_all(printed))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose node has NVIDIA's driver and our runtime as by packages."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    need_programs("docker-registry")
    with Cluster() as cluster:
        add_driver(Host(cluster.root, cluster.root / "etc/oci-decorator/config.toml"))
        programs = cluster.root / "usr/bin"
        shutil.copy2(DECORATOR, programs / "oci-decorator")
        (programs / "oci-decorator-runtime").symlink_to("oci-decorator")
        cluster.run("oci-decorator", "cdi", "generate", "--output-dir", "/run/cdi")
        yield cluster


@pytest.fixture(scope="module")
def fleet(
    cluster: Cluster, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two versions of the made-up driver, signed, where the node's pods reach them."""
    agent = agent_image(engine, tmp_path_factory.mktemp("agent"))
    cluster.load(agent)
    tag = engine.docker("load", "--quiet", "--input", agent).stdout.split()[-1]
    folder = tmp_path_factory.mktemp("fleet")
    provision = Provision(engine.host)
    password = folder / "password"
    password.write_text("of a test\n")
    provision("registry", "key", "--output", folder / "fleet", "--password-file", password)
    sources = {version: made_up_source(folder / "files", version) for version in _VERSIONS}
    (folder / "registry").mkdir()
    # Engines push to a registry without TLS only by the loopback interface.
    with (
        served(folder / "files") as url,
        closing(RegistryServer(folder / "registry")) as registry,
    ):
        write_made_up(folder / "drivers", sources, url, has_nodes=True)
        builder = AgentHost.make(folder / "builder", running=OLD_KERNEL)
        address = f"{registry.address}/drivers"
        builder.configure(f'[registry]\naddress = "{address}"\nplain_http = true\n')
        for version in _VERSIONS:
            provision.build(
                *(MADE_UP, "--version", version, "--kernel", OLD_KERNEL, "--distro", DISTRO),
                *("--catalogue", folder / "drivers", "--root", builder.root, "--sign"),
                *("--push", f"{address}/{MADE_UP}:{version}-only-{OLD_KERNEL}.debian12"),
                *("--key", folder / "fleet.key", "--password-file", password),
            )
    with closing(RegistryServer(folder / "registry", host=cluster.host)) as registry:
        yield Fleet(f"{registry.address}/drivers", f"docker.io/{tag}", folder)


@pytest.fixture(scope="module")
def node(cluster: Cluster, fleet: Fleet) -> AgentHost:
    """The node, after the DaemonSet has given it the driver's first version."""
    host = AgentHost(cluster.root)
    host.add_kernel(OLD_KERNEL)
    shutil.copytree(fleet.folder / "drivers", host.root / "srv/drivers")
    os.mknod(host.root / "dev/hello0", 0o666 | stat.S_IFCHR, os.makedev(120, 0))
    (host.root / "dev/hello0").chmod(0o666)
    for document in fleet.documents("1.2"):
        cluster.server.apply(document)
    cluster.wait_for("the node's driver", (host.root / _CDI).exists)
    return host


def _asking(resource: str) -> dict[str, Any]:
    return {"limits": {resource: "1"}}


def _wait_for_units(cluster: Cluster, resource: str) -> None:
    def units() -> int:
        return int(cluster.get(NODE)["status"]["allocatable"].get(resource, 0))

    cluster.wait_for("the number of units", lambda: units() == 1)


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_a_pod_gets_the_unit_that_a_device_plugin_hands_out(
    cluster: Cluster, strategy: str
) -> None:
    resource = f"kit.test/{strategy}"
    units = {gpu["uuid"]: f"nvidia.com/gpu={gpu['uuid']}" for gpu in FACTS["devices"][:1]}
    with DevicePlugin(cluster.sockets, resource, units, strategy):
        _wait_for_units(cluster, resource)
        assert cluster.run_pod(pod_of("one", _NODES, resources=_asking(resource))) == _ONE


def test_a_pod_that_asks_for_nothing_gets_nothing(cluster: Cluster) -> None:
    assert cluster.run_pod(pod_of("none", f"{_NODES}\necho end")) == "end\n"


def test_the_daemonset_gives_a_node_its_driver(cluster: Cluster, node: AgentHost) -> None:
    assert _version(node) == "1.2"
    assert "/dev/hello0" in (node.root / _CDI).read_text()
    (pod,) = cluster.get(f"{_AGENT_PODS}?labelSelector=app.kubernetes.io/name=provision-agent")[
        "items"
    ]
    log = cluster.server.request("GET", f"{_AGENT_PODS}/{pod['metadata']['name']}/log").text
    # The node has this machine's kernel, and is not its root.
    assert "modules are not loaded" in log


@pytest.mark.usefixtures("node")
def test_a_pod_gets_the_driver_by_the_runtime_class(cluster: Cluster) -> None:
    """A file in the folder that its configuration, of the newest version, imports."""
    cluster.run("oci-decorator", "configure", "containerd")
    cluster.restart_containerd()
    pod = pod_of("asking", _REPORT, env=[{"name": "OCI_HELLO", "value": "all"}])
    pod["spec"]["runtimeClassName"] = "oci-decorator"
    assert cluster.run_pod(pod) == f"hello 1.2\n/dev/hello0: {ALLOWED}\n"
    pod = pod_of("plain", "ls /dev /usr/bin")
    pod["spec"]["runtimeClassName"] = "oci-decorator"
    assert "hello" not in cluster.run_pod(pod)


def test_pods_go_on_when_the_node_changes(cluster: Cluster, node: AgentHost, fleet: Fleet) -> None:
    """Restarts of kubelet and containerd, and another version of the driver."""
    units = {"only": f"oci-decorator/{MADE_UP}=all"}
    with DevicePlugin(cluster.sockets, _RESOURCE, units):
        _wait_for_units(cluster, _RESOURCE)
        long = cluster.start_pod(pod_of("long", "sleep infinity", resources=_asking(_RESOURCE)))
    before = cluster.container(long)
    cluster.restart_containerd()
    cluster.restart_kubelet()
    for document in fleet.documents("1.3"):
        cluster.server.apply(document)
    cluster.wait_for("the node's driver", lambda: _version(node) == "1.3")
    assert cluster.exec(long, "sh", "-c", _REPORT) == f"hello 1.2\n/dev/hello0: {ALLOWED}\n"
    assert cluster.container(long) == before
    cluster.remove(long)
    with DevicePlugin(cluster.sockets, _RESOURCE, units):
        _wait_for_units(cluster, _RESOURCE)
        pod = pod_of("new", _REPORT, resources=_asking(_RESOURCE))
        assert cluster.run_pod(pod) == f"hello 1.3\n/dev/hello0: {ALLOWED}\n"


def test_a_node_has_its_driver_again_after_a_reboot(cluster: Cluster, node: AgentHost) -> None:
    """A reboot empties /dev and /run; the loader makes the node before containers start."""
    pod = pod_of("kept", f"{_REPORT}; sleep infinity", env=[{"name": "OCI_HELLO", "value": "all"}])
    pod["spec"] |= {"runtimeClassName": "oci-decorator", "restartPolicy": "Always"}
    kept = cluster.start_pod(pod)
    before = cluster.container(kept)
    for name, text in {"modprobe": MODPROBE, "rmmod": RMMOD}.items():
        program = node.root / "usr/sbin" / name
        program.unlink(missing_ok=True)
        write(program, text.replace("/host", ""), 0o755)
    cluster.reboot(("sh", "-c", _boot_step()))
    assert (cluster.root / "sys/module/hello/srcversion").read_text().strip()
    cluster.wait_for(
        "the pod", lambda: cluster.container(kept) != before and _is_running(cluster, kept)
    )
    log = cluster.server.request("GET", f"{kept}/log").text
    assert log == f"hello 1.3\n/dev/hello0: {ALLOWED}\n"
    # By the agent in its pod, again.
    cluster.wait_for("the specification", (cluster.root / _CDI).exists)
    units = {"only": f"oci-decorator/{MADE_UP}=all"}
    with DevicePlugin(cluster.sockets, _RESOURCE, units):
        _wait_for_units(cluster, _RESOURCE)
        assert cluster.run_pod(pod_of("new", _REPORT, resources=_asking(_RESOURCE))) == log


def _boot_step() -> str:
    """What provision-boot.service runs first: each driver's own loader."""
    unit = (REPOSITORY / "templates/systemd/provision-boot.service.j2").read_text()
    (line,) = re.findall(r"(?m)^ExecStart=-/bin/sh -c '(.+)'$", unit)
    return str(line).replace("%v", OLD_KERNEL).replace("$$", "$")


def _is_running(cluster: Cluster, path: str) -> bool:
    return any(
        "running" in one["state"] for one in cluster.get(path)["status"]["containerStatuses"]
    )


def _version(node: AgentHost) -> str:
    tool = node.store(MADE_UP) / "current/driver/usr/bin/hello-tool"
    return tool.read_text().split()[-1]
