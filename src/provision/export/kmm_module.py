"""``Module`` and ``Secret`` for Kubernetes' Kernel Module Management.

Sources: config/crd/bases/kmm.sigs.x-k8s.io_modules.yaml and internal/webhook/module.go of
https://github.com/kubernetes-sigs/kernel-module-management, at commit de3f8c9.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.export.yaml_files import Value
from provision.kmod.loader import load_order
from provision.manifest import Manifest
from provision.pin.architectures import names_of
from provision.registry.names import KMM_SIGNED, HostTag, Reference

# KMM replaces it with the kernel's release, escaped as in a tag.
_KERNEL = "${KERNEL_FULL_VERSION}"
_ROOT = "/opt"
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# KMM adds the names of a Module and its namespace to a label, where a version orders its upgrades.
# 2.6.0: https://github.com/kubernetes-sigs/kernel-module-management/blob/v2.6.0/internal/webhook/module.go
# (maxCombinedLength). Later versions allow 41.
_LONGEST_NAMES = 40
# Syntax that Go does not have: https://github.com/google/re2/wiki/Syntax
_NOT_RE2 = re.compile(r"\(\?(=|!|<=|<!|P=|\()|\\[1-9]|[*+?}]\+")


@dataclass(frozen=True, slots=True)
class Signing:
    """The cluster's secrets that KMM signs modules with: their names."""

    key: str
    certificate: str


@dataclass(frozen=True, slots=True)
class KmmOptions:
    """The options of a driver in a cluster."""

    namespace: str = "default"
    # Labels of the nodes that get it, besides system and architecture.
    selector: Mapping[str, str] | None = None
    pull_secret: str | None = None
    # KMM signs the modules with these; None if they are signed or need not be.
    signing: Signing | None = None
    # Whether a label of each node selects its version.
    ordered_upgrade: bool = False
    # Parameters by module; KMM passes only those of the module that is loaded last.
    parameters: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterKernels:
    """Which kernels a cluster's nodes run."""

    # Releases, each with an image of its own.
    literals: tuple[str, ...] = ()
    # An expression for the releases of others, in RE2's syntax.
    regexp: str | None = None


def module_document(
    manifest: Manifest, repository: Reference, kernels: ClusterKernels, options: KmmOptions
) -> dict[str, Value]:
    """Return the ``Module`` of a driver."""
    driver = manifest.pin.driver.name
    _check_names(driver, options)
    architecture = names_of(manifest.pin.kernel.architecture).go
    selector = {"kubernetes.io/os": "linux", "kubernetes.io/arch": architecture}
    container = _container(manifest, repository, kernels, options)
    spec: dict[str, Value] = {"moduleLoader": {"container": container}}
    if options.pull_secret:
        spec["imageRepoSecret"] = {"name": options.pull_secret}
    spec["selector"] = {**selector, **(options.selector or {})}
    return {
        "apiVersion": "kmm.sigs.x-k8s.io/v1beta1",
        "kind": "Module",
        "metadata": {"name": driver, "namespace": options.namespace},
        "spec": spec,
    }


def _container(
    manifest: Manifest, repository: Reference, kernels: ClusterKernels, options: KmmOptions
) -> dict[str, Value]:
    """Return the module loader's container: what it loads, and from which images."""
    container: dict[str, Value] = {"imagePullPolicy": "IfNotPresent"}
    if options.ordered_upgrade:
        container["version"] = manifest.pin.driver.version
    if manifest.host.conflicts:
        container["inTreeModulesToRemove"] = list(manifest.host.conflicts)
    container["modprobe"] = _modprobe(manifest, options)
    mappings = [_mapping(image, options) for image in _images(manifest, repository, kernels)]
    if not mappings:
        raise UsageError(
            "There is no kernel to load modules into.",
            resolution="Name some: --kernel RELEASE, or --regexp EXPRESSION.",
        )
    container["kernelMappings"] = mappings
    return container


def secret_document(
    name: str, namespace: str, registry: str, login: str | None
) -> dict[str, Value]:
    """Return the ``Secret`` for pulling images, with a login as ``stored_login`` returns it."""
    if login is None:
        raise NotFoundError(
            f"There is no name and password for '{registry}' here, so there is nothing to put into"
            f" the secret '{name}'.",
            resolution=f"Log in first: docker login {registry} (or podman login). Or make the"
            f" secret yourself and leave out --with-credentials: kubectl create secret"
            f" docker-registry {name} --docker-server={registry} …",
        )
    text = json.dumps({"auths": {registry: {"auth": login}}})
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(text.encode()).decode()},
    }


def check_name(what: str, name: str) -> None:
    """Do nothing, unless Kubernetes would refuse a name of an object."""
    if not _DNS_LABEL.fullmatch(name):
        raise UsageError(
            f"The {what}, '{name}', can't be a name in Kubernetes.",
            resolution="It takes lower case letters, digits and '-', and 63 of them at most.",
        )


def _check_names(driver: str, options: KmmOptions) -> None:
    namespace = options.namespace
    check_name("name of the driver", driver)
    check_name("namespace", namespace)
    if options.ordered_upgrade and len(driver) + len(namespace) > _LONGEST_NAMES:
        raise UsageError(
            f"'{driver}' and the namespace '{namespace}' have more than {_LONGEST_NAMES}"
            " characters together, which KMM refuses for ordered upgrades.",
            resolution="Take a namespace with a shorter name: --namespace drivers",
        )


def _modprobe(manifest: Manifest, options: KmmOptions) -> dict[str, Value]:
    """Return the modules to load: each before those that depend on it, the named one last."""
    optional = manifest.host.optional
    names = [module.name for module in load_order(manifest) if module.name not in optional]
    if not names:
        raise ProvisionError(
            f"{manifest.pin.driver.name} has no module that has to be loaded: all are optional.",
            resolution="Write the Module yourself: docs/how-to/kubernetes.md has an example.",
        )
    found: dict[str, Value] = {"moduleName": names[-1], "dirName": _ROOT}
    if others := sorted(set(options.parameters) - {names[-1]}):
        raise UsageError(
            f"KMM passes parameters to {names[-1]} only, and provision.toml has options of"
            f" {', '.join(others)} too.",
            resolution="Put those onto the kernel's command line, as MODULE.NAME=VALUE, and take"
            " them out of the file that --root names.",
        )
    if parameters := options.parameters.get(names[-1]):
        found["parameters"] = list(parameters)
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


def _images(
    manifest: Manifest, repository: Reference, kernels: ClusterKernels
) -> list[tuple[str, str, str]]:
    """Return field, kernel and image of each mapping; the first that fits counts."""
    pin = manifest.pin
    distro = f"{pin.distro.id}:{pin.distro.version}"
    found = []
    for kernel in kernels.literals:
        tag = HostTag(pin.driver.version, pin.driver.flavour, kernel, distro)
        found.append(("literal", kernel, str(repository.with_tag(tag.text))))
    if kernels.regexp is not None:
        _check_regexp(kernels.regexp)
        # KMM's placeholder is not valid in a tag, so it is inserted afterwards.
        tag = HostTag(pin.driver.version, pin.driver.flavour, "0.KERNEL", distro)
        text = tag.text.replace("-0.KERNEL.", f"-{_KERNEL}.")
        found.append(("regexp", kernels.regexp, f"{repository.with_tag('')}:{text}"))
    return found


def _check_regexp(text: str) -> None:
    try:
        re.compile(text)
        wrong = "Go's expressions have no such part" if _NOT_RE2.search(text) else None
    except re.error as error:
        wrong = str(error)
    if wrong:
        raise UsageError(
            f"'{text}' is no expression that KMM takes: {wrong}.",
            resolution="Write it as https://github.com/google/re2/wiki/Syntax has it, such as"
            r" '^6\.1\.0-[0-9]+-amd64$'.",
        )


def _mapping(image: tuple[str, str, str], options: KmmOptions) -> dict[str, Value]:
    field, kernel, name = image
    if options.signing is None:
        return {field: kernel, "containerImage": name}
    return {
        field: kernel,
        "containerImage": f"{name}{KMM_SIGNED}",
        "sign": {
            "unsignedImage": name,
            "keySecret": {"name": options.signing.key},
            "certSecret": {"name": options.signing.certificate},
            # A shell expands it; the kernel's name there would be the escaped one.
            "filesToSign": [f"{_ROOT}/lib/modules/*/*.ko"],
        },
    }
