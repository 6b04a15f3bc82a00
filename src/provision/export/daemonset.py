"""The agent as a DaemonSet, for clusters without Kernel Module Management."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from provision.catalogue import Catalogue
from provision.config import Config, catalogue_folders
from provision.documents import load_toml
from provision.errors import NotFoundError, UsageError, redact
from provision.export.artifact_source import note_dra
from provision.export.kubernetes import (
    Document,
    check_name,
    daemonset,
    node_pod,
    privileged_namespace,
)
from provision.pin import DriverPin
from provision.registry.keys import load_keys
from provision.registry.names import Reference

NAME = "provision-agent"
HANDLER = "oci-decorator"
_TRUST = "/etc/provision/trust.d"
# The capabilities that a run needs, each with its purpose; all others are dropped.
_CAPABILITIES = (
    "SYS_MODULE",  # modules are loaded and unloaded
    "MKNOD",  # device nodes that a driver does not make itself
    "SYS_PTRACE",  # who uses a module: /proc/PID/fd of others
    "SYSLOG",  # why the kernel refused a module: /dev/kmsg
    "DAC_OVERRIDE",  # files of the host that are not root's to write
    "CHOWN",  # owners of files that are replaced stay
    "FOWNER",  # and their modes
    "SYS_CHROOT",  # the host's own paths, when specifications for containers are written
)
# https://kubernetes.io/docs/concepts/configuration/configmap/#configmap-object
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# What no name of an image has is left out; the registry decides about the rest.
_IMAGE = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._/:@\[\]-]*")


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent's options in a cluster."""

    image: str
    config: str
    keys: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "provision"
    # Labels of the nodes that run it, besides the system.
    selector: Mapping[str, str] = field(default_factory=dict)
    # In its namespace: the kubelet pulls its image with it, and the agent the drivers.
    pull_secret: str | None = None
    # Seconds between two looks at a node.
    interval: int = 3600


def beside_kmm(
    image: str,
    keys: Mapping[str, str],
    repository: Reference,
    pin: DriverPin,
    namespace: str,
) -> Agent:
    """Return an agent that gives nodes the user space of a driver whose modules KMM loads.

    KMM labels the nodes on which it has loaded them; there the agent finds nothing to load.

    Args:
        namespace: The namespace of KMM's ``Module``.
    """
    # JSON's text is TOML's, too.
    address, version, flavour = map(
        json.dumps, (repository.name.rpartition("/")[0], pin.version, pin.flavour)
    )
    config = f"""\
[registry]
address = {address}
[trust]
keys = "{_TRUST}"
[policy]
build = "never"
# Kernel Module Management unloads.
unload = "never"
[drivers.{pin.name}]
version = {version}
flavour = {flavour}
"""
    selector = {f"kmm.node.kubernetes.io/{namespace}.{pin.name}.ready": ""}
    return Agent(image, config, keys, selector=selector)


def read_config(path: Path, *, has_keys: bool) -> str:
    """Return the text of a provision.toml once it is known to suit an agent in a pod."""
    config = load_toml(path, Config)
    if config.policy.build != "never":
        raise UsageError(
            f"'{path}' lets nodes build ([policy] build = \"{config.policy.build}\"), and the agent"
            " in a pod has no container engine.",
            resolution='Write [policy] build = "never" into it, and build and push elsewhere:'
            " provision build DRIVER --push REGISTRY --sign",
        )
    if config.registry.address is None:
        raise UsageError(
            f"'{path}' names no registry, so nodes have nothing to install.",
            resolution='Write [registry] address = "registry.example/drivers" into it.',
        )
    trust = config.trust
    if not (has_keys or trust.keys or trust.insecure or trust.registries or trust.drivers):
        raise UsageError(
            f"'{path}' names no trusted key, so nodes would refuse every image.",
            resolution=f'Write [trust] keys = "{_TRUST}" into it, and give the public key: --key'
            " site.pub",
        )
    if has_keys and trust.keys != _TRUST:
        raise UsageError(
            f"'{path}' does not trust the keys that are given.",
            resolution=f'Write [trust] keys = "{_TRUST}" into it, where the agent puts them.',
        )
    catalogue = Catalogue(catalogue_folders(config.catalogue))
    for name, driver in config.drivers.items():
        # Which version another word stands for is only seen on a node.
        if driver.version[0].isdigit():
            note_dra(catalogue, name, driver.version)
    return path.read_text()


def read_keys(paths: tuple[Path, ...]) -> dict[str, str]:
    """Return public keys by file name.

    The text is written from the parsed key, so that nothing else in the file, such as a private
    key, gets into a cluster.
    """
    found: dict[str, str] = {}
    for path in paths:
        if not path.is_file():
            raise NotFoundError(f"There is no file '{path}'.", resolution="Name a public key.")
        name = f"{path.stem}.pub"
        if name in found or not _KEY_NAME.fullmatch(name):
            raise UsageError(
                f"'{path}' is a second key of that name, or has a name that Kubernetes refuses.",
                resolution="Give the file another name, of letters, digits, '-', '_' and '.' only.",
            )
        (key,) = load_keys(path)
        pem = key.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        found[name] = pem.decode()
    return found


def documents(agent: Agent) -> list[Document]:
    """Return everything that a cluster needs, in the order in which it is applied."""
    for part in (agent.pull_secret or "x").split("."):
        check_name("part of the secret's name", part)
    if not _IMAGE.fullmatch(agent.image):
        raise UsageError(
            f"'{agent.image}' is not the name of an image.",
            resolution="Name the agent's image as nodes pull it: registry.example/agent:1",
        )
    labels: Document = {"app.kubernetes.io/name": NAME}
    files = {"provision.toml": agent.config, **agent.keys}
    # Many may read a ConfigMap, such as all that only look at a cluster.
    is_secret = redact(agent.config) != agent.config
    config: Document = {
        "apiVersion": "v1",
        "kind": "Secret" if is_secret else "ConfigMap",
        "metadata": {"name": NAME, "namespace": agent.namespace, "labels": labels},
        "stringData" if is_secret else "data": files,
    }
    mounted: Document = (
        {"secret": {"secretName": NAME}} if is_secret else {"configMap": {"name": NAME}}
    )
    volumes: list[Document] = [
        {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
        {"name": "config", **mounted},
        {"name": "cache", "emptyDir": {}},
    ]
    if agent.pull_secret:
        items: list[Document] = [{"key": ".dockerconfigjson", "path": "config.json"}]
        secret: Document = {"secretName": agent.pull_secret, "items": items, "defaultMode": 0o400}
        volumes.append({"name": "login", "secret": secret})
    pod = node_pod(
        _container(agent),
        volumes,
        selector=agent.selector,
        grace_s=60,
        pull_secret=agent.pull_secret,
    )
    # Two nodes at once are enough to see that a new agent works.
    strategy: Document = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
    runtime: Document = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": HANDLER},
        "handler": HANDLER,
    }
    if agent.selector:
        runtime["scheduling"] = {"nodeSelector": dict(agent.selector)}
    return [
        privileged_namespace(agent.namespace),
        config,
        daemonset(NAME, agent.namespace, pod, strategy),
        runtime,
    ]


def _container(agent: Agent) -> Document:
    login: list[Document] = []
    mount: list[Document] = []
    if agent.pull_secret:
        login.append({"name": "DOCKER_CONFIG", "value": "/login"})
        mount.append({"name": "login", "mountPath": "/login", "readOnly": True})
    return {
        "name": "agent",
        "image": agent.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "INTERVAL", "value": str(agent.interval)},
            {"name": "XDG_CACHE_HOME", "value": "/cache"},
            {"name": "TMPDIR", "value": "/cache"},
            *login,
        ],
        "readinessProbe": {
            "exec": {"command": ["provision", "status", "--check", "--root", "/host"]},
            "periodSeconds": 60,
            "timeoutSeconds": 30,
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "runAsUser": 0,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": list(_CAPABILITIES)},
            # Where SELinux confines containers, only this type may load modules.
            "seLinuxOptions": {"type": "spc_t"},
            # AppArmor's profiles for containers hide the host's root and the users of modules.
            "appArmorProfile": {"type": "Unconfined"},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"},
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "cache", "mountPath": "/cache"},
            *mount,
        ],
    }
