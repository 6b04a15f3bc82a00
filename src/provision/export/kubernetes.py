"""Objects of Kubernetes: KMM's ``Module``, driver pods, and the agent as a DaemonSet.

Sources: https://kubernetes.io/docs/reference/kubernetes-api/ for the fields of each kind. Of
driver pods: api/nvidia/v1alpha1/nvidiadriver_types.go, deployments/gpu-operator/values.yaml and
manifests/state-driver of https://github.com/NVIDIA/gpu-operator, at commit a22dbf671; the image's
side is templates/loader/pod.sh. Of KMM: config/crd/bases/kmm.sigs.x-k8s.io_modules.yaml and
internal/webhook/module.go of https://github.com/kubernetes-sigs/kernel-module-management, at commit
de3f8c9.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from provision.catalogue import Catalogue
from provision.config import Config, catalogue_folders
from provision.documents import load_toml
from provision.errors import NotFoundError, ProvisionError, UsageError, redact
from provision.export import (
    ArtifactSource,
    Choice,
    check_driver,
    images_of,
    note_dra,
)
from provision.files import write_atomic
from provision.kmod.loader import load_order, parameters_of
from provision.manifest import DriverPod, ForeignRoot, Manifest
from provision.pin import DriverPin, names_of
from provision.registry import KMM_SIGNED, HostTag, Reference, operator_tags
from provision.registry.signatures import load_keys

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value] | None"
Document: TypeAlias = dict[str, Value]

# Characters that YAML escapes and JSON does not: https://yaml.org/spec/1.2.2/ section 5.1.
_UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def privileged_namespace(name: str) -> Document:
    """Return a namespace whose pods may load modules; other levels of pod security forbid it."""
    labels: Document = {"pod-security.kubernetes.io/enforce": "privileged"}
    metadata: Document = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def node_pod(
    container: Document,
    volumes: Sequence[Document],
    *,
    selector: Mapping[str, str],
    grace_s: int,
    pull_secret: str | None,
) -> Document:
    """Return the specification of a pod that serves a node with the labels of ``selector``."""
    spec: Document = {
        # It never talks to the API server.
        "automountServiceAccountToken": False,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux", **selector},
        # A node without its driver often is tainted for that very reason.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container],
        "volumes": volumes,
    }
    if pull_secret:
        spec["imagePullSecrets"] = [{"name": pull_secret}]
    return spec


def daemonset(
    name: str, namespace: str, pod: Document, strategy: Document, **labels: str
) -> Document:
    """Return a DaemonSet; ``labels`` are further ones of ``app.kubernetes.io``."""
    own: Document = {"app.kubernetes.io/name": name}
    every = own | {f"app.kubernetes.io/{key}": value for key, value in labels.items()}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": every},
        "spec": {
            "selector": {"matchLabels": own},
            "updateStrategy": strategy,
            "template": {"metadata": {"labels": every}, "spec": pod},
        },
    }


def to_yaml(*documents: Document) -> str:
    """Return documents as one stream of YAML, each of them as JSON."""
    # kubectl reads a file that begins with a brace as JSON alone.
    texts = (json.dumps(one, indent=2, ensure_ascii=False) for one in documents)
    stream = "".join(f"---\n{text}\n" for text in texts)
    return _UNPRINTED.sub(lambda one: f"\\u{ord(one[0]):04x}", stream)


def check_output(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"'{folder}' is not empty, so nothing is written into it.",
            resolution=f"Name a new folder, or empty this one: rm -r '{folder}'",
        )


def write_files(folder: Path, files: Mapping[str, Sequence[Document]]) -> None:
    """Write the documents of each file into a folder; only its owner reads a ``Secret``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in files.items():
        is_secret = any(one["kind"] == "Secret" for one in documents if "kind" in one)
        write_atomic(folder / name, to_yaml(*documents), mode=0o600 if is_secret else 0o644)


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


class Agent(NamedTuple):
    """The agent's options in a cluster."""

    image: str
    config: str
    keys: Mapping[str, str] = {}
    namespace: str = "provision"
    # Labels of the nodes that run it, besides the system.
    selector: Mapping[str, str] = {}
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

    KMM labels the nodes on which it has loaded those of its ``Module`` in a namespace; there the
    agent finds nothing to load.
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


# https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/features.html
_KERNEL_LABEL = "feature.node.kubernetes.io/kernel-version.full"


class PodOptions(NamedTuple):
    """The options of a driver pod in a cluster."""

    namespace: str = "provision"
    selector: Mapping[str, str] = {}
    pull_secret: str | None = None


def pod_of(driver: str, root: ForeignRoot | None) -> tuple[ForeignRoot, DriverPod]:
    """Return what a recipe says of a driver pod."""
    if root is None or root.pod is None:
        raise NotFoundError(
            f"There is no driver pod of {driver}: its recipe has no [host.root.pod].",
            resolution=f"Take another way: provision export kmm {driver}; or 'provision export"
            " daemonset'.",
        )
    return root, root.pod


def pod_files(
    source: ArtifactSource,
    driver: str,
    choice: Choice,
    options: PodOptions,
    *,
    address: str | None = None,
    plain: bool = False,
) -> dict[str, list[Document]]:
    """Return what runs the images of a driver as driver pods: documents by name of their file.

    In a ``plain`` cluster, which has no operator, each kernel needs a DaemonSet.
    """
    recipe = source.settings.catalogue.entry(driver).recipe
    root, _ = pod_of(driver, recipe.host.root)
    repository = source.repository(driver, address)
    found = images_of(source, driver, repository, choice, is_one_distro=plain)
    for tag in found:
        image = str(repository.with_tag(tag.text))
        source.manifest(image).require("driver-pod", image)
    note_dra(source.settings.catalogue, driver, found[-1].version)
    if plain:
        images = {tag.kernel: repository.with_tag(tag.text) for tag in found}
        return {"daemonsets.yaml": daemonset_documents(driver, root, images, options)}
    version = found[-1].version
    if found[-1].flavour != recipe.default_flavour:
        version = f"{version}-{found[-1].flavour}"
    return operator_documents(driver, repository, version, options)


def operator_documents(
    driver: str, repository: Reference, version: str, options: PodOptions
) -> dict[str, list[Document]]:
    """Return the operator's Helm values, and the object that names the driver, by file name.

    The operator runs a pod for each kernel and distro of the nodes, and finds the images by their
    tags, in which ``version`` is.
    """
    folder, _, image = repository.name.rpartition("/")
    spec: Document = {
        "driverType": "gpu",
        "usePrecompiled": True,
        "repository": folder,
        "image": image,
        "version": version,
        "imagePullPolicy": "IfNotPresent",
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [options.pull_secret]
    if options.selector:
        spec["nodeSelector"] = dict(options.selector)
    values: Document = {
        "driver": {
            "enabled": True,
            "nvidiaDriverCRD": {"enabled": True, "deployDefaultCR": False},
        }
    }
    named: Document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "NVIDIADriver",
        "metadata": {"name": f"provision-{driver}"},
        "spec": spec,
    }
    return {"values.yaml": [values], "driver.yaml": [named]}


def daemonset_documents(
    driver: str,
    root: ForeignRoot,
    images: Mapping[str, Reference],
    options: PodOptions,
) -> list[Document]:
    """Return a DaemonSet for each kernel, for clusters without an operator."""
    return [
        privileged_namespace(options.namespace),
        *(
            _daemonset(driver, root, kernel, str(image), options)
            for kernel, image in images.items()
        ),
    ]


def _daemonset(
    driver: str, root: ForeignRoot, kernel: str, image: str, options: PodOptions
) -> Document:
    _, driver_pod = pod_of(driver, root)
    # The folder of the host that pod and operands share.
    folder = root.path.rpartition("/")[0]
    ready = f'[ "$(cat {folder}/validations/.driver-daemons-status)" = Ready ]'
    digest = hashlib.sha256(image.encode()).hexdigest()
    container: Document = {
        "name": "driver",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [driver_pod.command],
        "args": ["init"],
        "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}],
        "readinessProbe": {"exec": {"command": ["sh", "-c", ready]}, "periodSeconds": 10},
        # The root that it mounts has to reach the node.
        "securityContext": {"privileged": True, "seLinuxOptions": {"level": "s0"}},
        "volumeMounts": [{"name": "run", "mountPath": folder, "mountPropagation": "Bidirectional"}],
    }
    # The kernel's release as Node Feature Discovery writes it in a label.
    label = operator_tags("0", kernel, "x")[0].removeprefix("0-").removesuffix("-x")
    pod = node_pod(
        container,
        [{"name": "run", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}],
        selector={_KERNEL_LABEL: label, **options.selector},
        # Unloading waits for hardware.
        grace_s=120,
        pull_secret=options.pull_secret,
    )
    # The loader reads the host's /proc, and loads modules of the kernel's own from its root.
    pod["hostPID"] = True
    # A name of a label's value, for each kernel another.
    name = f"{driver}-driver-{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"
    # A driver is replaced when its node is free, and only the admin knows when that is.
    strategy: Document = {"type": "OnDelete"}
    return daemonset(name, options.namespace, pod, strategy, component=f"{driver}-driver")


# KMM replaces it with the kernel's release, escaped as in a tag.
_KERNEL = "${KERNEL_FULL_VERSION}"
_ROOT = "/opt"


class KmmOptions(NamedTuple):
    """The options of a driver in a cluster."""

    namespace: str = "default"
    # Labels of the nodes that get it, besides system and architecture.
    selector: Mapping[str, str] = {}
    pull_secret: str | None = None
    # The cluster's secrets that KMM signs modules with; None: they are signed or need not be.
    sign_key: str | None = None
    sign_certificate: str | None = None
    # Whether a label of each node selects its version.
    ordered_upgrade: bool = False
    # Image and name of a driver for dynamic resource allocation. KMM 2.6.0 does not know it yet.
    dra: str | None = None
    dra_driver: str | None = None
    # An expression for the releases of further kernels, in RE2's syntax.
    regexp: str | None = None


def kmm_files(
    source: ArtifactSource,
    driver: str,
    choice: Choice,
    options: KmmOptions,
    *,
    address: str | None = None,
    image: str | None = None,
    agent: str | None = None,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[Document]]:
    """Return what a cluster with KMM needs for a driver: documents by the name of their file.

    ``image`` is the one whose manifest is read, else one of the registry's; ``agent`` that of the
    agent which gives nodes the user space, else they get none.
    """
    repository = source.repository(driver, address)
    kernels = choice.kernels
    if image is None:
        tags = images_of(source, driver, repository, choice)
        image = str(repository.with_tag(tags[-1].text))
        if kernels or options.regexp is None:
            kernels = tuple(source.release(repository, tag) for tag in tags)
    manifest = source.manifest(image)
    check_driver(manifest, driver, image)
    manifest.require("kmm", image)
    note_dra(source.settings.catalogue, driver, manifest.pin.driver.version)
    if not kernels and options.regexp is None:
        kernels = (manifest.pin.kernel.release,)
    configured = source.settings.config.drivers.get(driver)
    parameters = parameters_of(manifest, configured.options if configured else {})
    module = module_document(manifest, repository, kernels, options, parameters)
    files = {"module.yaml": [module]}
    if agent is not None:
        beside = beside_kmm(agent, keys, repository, manifest.pin.driver, options.namespace)
        files["agent.yaml"] = documents(beside._replace(pull_secret=options.pull_secret))
    return files


def module_document(
    manifest: Manifest,
    repository: Reference,
    kernels: Sequence[str],
    options: KmmOptions,
    parameters: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Document:
    """Return the ``Module`` of a driver, with an image for each of the kernels.

    Of the parameters by module, KMM passes only those of the module that is loaded last.
    """
    driver = manifest.pin.driver.name
    architecture = names_of(manifest.pin.kernel.architecture).go
    selector = {"kubernetes.io/os": "linux", "kubernetes.io/arch": architecture}
    container: Document = {"imagePullPolicy": "IfNotPresent"}
    if options.ordered_upgrade:
        container["version"] = manifest.pin.driver.version
    if manifest.host.conflicts:
        container["inTreeModulesToRemove"] = list(manifest.host.conflicts)
    container["modprobe"] = _modprobe(manifest, parameters)
    container["kernelMappings"] = _mappings(manifest, repository, kernels, options)
    spec: Document = {"moduleLoader": {"container": container}}
    if options.dra:
        spec["dra"] = {"driverName": options.dra_driver, "container": {"image": options.dra}}
    if options.pull_secret:
        spec["imageRepoSecret"] = {"name": options.pull_secret}
    spec["selector"] = {**selector, **options.selector}
    return {
        "apiVersion": "kmm.sigs.x-k8s.io/v1beta1",
        "kind": "Module",
        "metadata": {"name": driver, "namespace": options.namespace},
        "spec": spec,
    }


def _modprobe(manifest: Manifest, parameters: Mapping[str, Sequence[str]]) -> Document:
    """Return the modules to load: each before those that depend on it, the named one last."""
    optional = manifest.host.optional
    names = [module.name for module in load_order(manifest) if module.name not in optional]
    if not names:
        raise ProvisionError(
            f"{manifest.pin.driver.name} has no module that has to be loaded: all are optional.",
            resolution="Write the Module yourself: docs/how-to/kubernetes.md has an example.",
        )
    found: Document = {"moduleName": names[-1], "dirName": _ROOT}
    if others := sorted(set(parameters) - {names[-1]}):
        raise UsageError(
            f"KMM passes parameters to {names[-1]} only, and provision.toml has options of"
            f" {', '.join(others)} too.",
            resolution="Put those onto the kernel's command line, as MODULE.NAME=VALUE, and take"
            " them out of the file that --root names.",
        )
    if own := parameters.get(names[-1]):
        found["parameters"] = list(own)
    if firmware := _firmware(manifest):
        found["firmwarePath"] = firmware
    if len(names) > 1:
        found["modulesLoadingOrder"] = names[::-1]
    return found


def _firmware(manifest: Manifest) -> str | None:
    """Return the folder of an image whose content belongs in a host's firmware folder."""
    for file in manifest.files:
        path = PurePosixPath(file.path)
        if file.kind == "firmware" and "firmware" in path.parts:
            above = path.parts[: path.parts.index("firmware") + 1]
            return f"{_ROOT}/driver{PurePosixPath(*above)}"
    return None


def _mappings(
    manifest: Manifest, repository: Reference, kernels: Sequence[str], options: KmmOptions
) -> list[Document]:
    """Return the image for each kernel; the first mapping that fits counts."""
    pin = manifest.pin

    def tag(kernel: str) -> str:
        return HostTag(pin.driver.version, pin.driver.flavour, kernel, pin.distro.name).text

    found = [
        _mapping("literal", one, str(repository.with_tag(tag(one))), options) for one in kernels
    ]
    if options.regexp is not None:
        # KMM's placeholder is not valid in a tag, so it is inserted afterwards.
        text = tag("0.KERNEL").replace("-0.KERNEL.", f"-{_KERNEL}.")
        image = f"{repository.with_tag('')}:{text}"
        found.append(_mapping("regexp", options.regexp, image, options))
    if not found:
        raise UsageError(
            "There is no kernel to load modules into.",
            resolution="Name some: --kernel RELEASE, or --regexp EXPRESSION.",
        )
    return found


def _mapping(field: str, kernel: str, image: str, options: KmmOptions) -> Document:
    if options.sign_key is None:
        return {field: kernel, "containerImage": image}
    return {
        field: kernel,
        "containerImage": f"{image}{KMM_SIGNED}",
        "sign": {
            "unsignedImage": image,
            "keySecret": {"name": options.sign_key},
            "certSecret": {"name": options.sign_certificate},
            # A shell expands it; the kernel's name there would be the escaped one.
            "filesToSign": [f"{_ROOT}/lib/modules/*/*.ko"],
        },
    }
