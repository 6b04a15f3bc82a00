"""``Module`` for Kubernetes' Kernel Module Management.

Sources: config/crd/bases/kmm.sigs.x-k8s.io_modules.yaml and internal/webhook/module.go of
https://github.com/kubernetes-sigs/kernel-module-management, at commit de3f8c9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType

from provision.errors import ProvisionError, UsageError
from provision.export import (
    ArtifactSource,
    Choice,
    check_driver,
    images_of,
    note_dra,
)
from provision.export.kubernetes import Document, beside_kmm, check_name, documents
from provision.kmod.loader import load_order, parameters_of
from provision.manifest import Manifest
from provision.pin import names_of
from provision.registry import KMM_SIGNED, HostTag, Reference

# KMM replaces it with the kernel's release, escaped as in a tag.
_KERNEL = "${KERNEL_FULL_VERSION}"
_ROOT = "/opt"
# KMM puts the names of a Module and its namespace into labels, and its webhook refuses every Module
# whose names are longer together. 2.6.0:
# https://github.com/kubernetes-sigs/kernel-module-management/blob/v2.6.0/internal/webhook/module.go
# (maxCombinedLength). Later versions allow 41.
_LONGEST_NAMES = 40
# Syntax that Go does not have: https://github.com/google/re2/wiki/Syntax
_NOT_RE2 = re.compile(r"\(\?(=|!|<=|<!|P=|\()|\\[1-9]|[*+?}]\+")


@dataclass(frozen=True, slots=True)
class KmmOptions:
    """The options of a driver in a cluster."""

    namespace: str = "default"
    # Labels of the nodes that get it, besides system and architecture.
    selector: Mapping[str, str] = field(default_factory=dict)
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

    Args:
        address: The cluster's registry; None: that of provision.toml.
        image: The image whose manifest is read; None: one of the registry's.
        agent: Image of the agent that gives nodes the user space; None: they get none.
        keys: The public keys that nodes trust, by file name.
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
        files["agent.yaml"] = documents(replace(beside, pull_secret=options.pull_secret))
    return files


def module_document(
    manifest: Manifest,
    repository: Reference,
    kernels: Sequence[str],
    options: KmmOptions,
    parameters: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Document:
    """Return the ``Module`` of a driver.

    Args:
        kernels: Releases, each with an image of its own.
        parameters: By module; KMM passes only those of the module that is loaded last.
    """
    driver = manifest.pin.driver.name
    check_name("name of the driver", driver)
    if len(driver) + len(options.namespace) > _LONGEST_NAMES:
        raise UsageError(
            f"'{driver}' and the namespace '{options.namespace}' have more than {_LONGEST_NAMES}"
            " characters together, which KMM refuses.",
            resolution="Take a namespace with a shorter name: --namespace drivers",
        )
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
        _check_regexp(options.regexp)
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
