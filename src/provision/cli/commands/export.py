"""``provision export``: kmm, daemonset, sysext."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.export_sysext import kernels, sysext, version
from provision.cli.job import Job, job, trusting
from provision.cli.options import print_json
from provision.errors import UsageError
from provision.export.artifact_source import ArtifactSource, Choice, check_driver, choose
from provision.export.daemonset import Agent, documents, read_config, read_keys
from provision.export.kmm_module import (
    ClusterKernels,
    KmmOptions,
    Signing,
    module_document,
    secret_document,
)
from provision.export.yaml_files import Value, check_output, to_yaml, write_files
from provision.kmod.load import parameters_of
from provision.manifest import Manifest
from provision.registry.registries import Consent, registry_login

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_LABEL = re.compile(rf"([a-z0-9.-]{{1,253}}/)?(?!$){_LABEL_VALUE.pattern}")
_FOLDER = click.Path(file_okay=False, path_type=Path)
_AGENT, _MODULE, _SECRET = "agent.yaml", "module.yaml", "secret.yaml"


@click.group("export")
def command() -> None:
    """Write a driver in a form that another system loads."""


_selector = click.option(
    "--selector",
    "selectors",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Label that nodes must have; may be given more than once.",
)
_output = click.option(
    "--output", type=_FOLDER, metavar="DIR", help="New folder to write into.  [standard output]"
)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The options of ``kmm`` about the cluster."""

    namespace: str
    selectors: tuple[str, ...]
    pull_secret: str | None
    with_credentials: bool
    sign_key: str | None
    sign_certificate: str | None
    ordered_upgrade: bool

    def options(self, parameters: Mapping[str, Sequence[str]]) -> KmmOptions:
        """Return them as the export takes them.

        Raises:
            UsageError: They contradict each other.
        """
        if self.with_credentials and self.pull_secret is None:
            raise UsageError(
                "--with-credentials needs the name of a secret.",
                resolution="Name the secret: --pull-secret NAME",
            )
        if (self.sign_key is None) != (self.sign_certificate is None):
            raise UsageError(
                "--sign-key and --sign-certificate go together: give both.",
                resolution="Give both: --sign-key KEY.pem --sign-certificate CERTIFICATE.pem",
            )
        signing = None
        if self.sign_key is not None and self.sign_certificate is not None:
            signing = Signing(self.sign_key, self.sign_certificate)
        return KmmOptions(
            namespace=self.namespace,
            selector=_pairs(self.selectors),
            pull_secret=self.pull_secret,
            signing=signing,
            ordered_upgrade=self.ordered_upgrade,
            parameters=parameters,
        )


_cluster = options.option_group(
    "cluster",
    _Cluster,
    click.option(
        "--namespace",
        default="default",
        show_default=True,
        metavar="NAME",
        help="Namespace of the objects.",
    ),
    _selector,
    click.option("--pull-secret", metavar="NAME", help="Secret for pulling images."),
    click.option(
        "--with-credentials",
        is_flag=True,
        help="Also write that secret, from this machine's credentials for the registry.",
    ),
    click.option(
        "--sign-key", metavar="NAME", help="Secret with the key; KMM then signs the modules."
    ),
    click.option(
        "--sign-certificate", metavar="NAME", help="Secret with the certificate of that key."
    ),
    click.option(
        "--ordered-upgrade",
        is_flag=True,
        help="Load the driver only on nodes whose label names its version.",
    ),
)


@dataclass(frozen=True, slots=True)
class _Images:
    """The options of ``kmm`` about images and kernels."""

    image: str | None
    address: str | None
    version: str | None
    flavour: str | None
    distro: str | None
    kernels: tuple[str, ...]
    regexp: str | None

    def choice(self) -> Choice:
        """Return the choice of a registry's images."""
        kernels = ClusterKernels(tuple(dict.fromkeys(self.kernels)), self.regexp)
        return Choice(self.version, self.flavour, self.distro, kernels)


_images = options.option_group(
    "images",
    _Images,
    click.option(
        "--image", metavar="IMAGE", help="Image whose manifest is read.  [one of the registry's]"
    ),
    click.option(
        "--registry",
        "address",
        metavar="HOST[:PORT][/PREFIX]",
        help="Registry that the cluster pulls from.  [[registry] address of provision.toml]",
    ),
    version,
    options.flavour,
    options.distro,
    kernels,
    click.option(
        "--regexp",
        metavar="EXPRESSION",
        help="Regular expression in Go's syntax for the releases of other kernels.",
    ),
)


@command.command("kmm")
@click.argument("driver")
@_images
@_cluster
@trusting
@options.catalogue
@options.root
@_output
@options.as_json
def kmm(
    *,
    driver: str,
    images: _Images,
    cluster: _Cluster,
    consent: Consent,
    catalogues: tuple[Path, ...],
    root: Path,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the Module with which Kubernetes' Kernel Module Management loads DRIVER.

    By default, the Module covers all kernels that the registry has images for. The names and the
    order of the kernel modules come from the manifest of one of the images.
    """
    if output is not None:
        check_output(output)
    cluster.options({})
    with job(root, catalogues) as work:
        source = ArtifactSource(work.settings, lambda: work.engine, consent, work.progress)
        repository = source.repository(driver, images.address)
        image, cluster_kernels = images.image, images.choice().kernels
        if image is None:
            chosen = choose(source, driver, repository, images.choice())
            image, cluster_kernels = chosen.image, chosen.kernels
        manifest = source.manifest(image)
        check_driver(manifest, driver, image)
        if cluster_kernels == ClusterKernels():
            cluster_kernels = ClusterKernels((manifest.pin.kernel.release,))
        kmm_options = cluster.options(_parameters(work, manifest))
        found = {_MODULE: module_document(manifest, repository, cluster_kernels, kmm_options)}
        if cluster.with_credentials and cluster.pull_secret is not None:
            found[_SECRET] = secret_document(
                cluster.pull_secret,
                cluster.namespace,
                repository.registry,
                registry_login(work.settings, repository),
            )
    _write_documents(driver, found, output, as_json=as_json)


def _parameters(work: Job, manifest: Manifest) -> Mapping[str, Sequence[str]]:
    """Return the parameters that provision.toml has for the driver's modules."""
    configured = work.settings.config.drivers.get(manifest.pin.driver.name)
    return parameters_of(manifest, configured.options if configured else {})


def _pairs(texts: tuple[str, ...]) -> Mapping[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not _LABEL.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise UsageError(
                f"'{text}' is not a Kubernetes label with a value.",
                resolution="Write it as LABEL=VALUE:"
                " --selector feature.node.kubernetes.io/pci-10de.present=true",
            )
        pairs[key] = value
    return pairs


def _write_documents(
    driver: str,
    documents: Mapping[str, Mapping[str, Value]],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write YAML to a folder or to standard output, or all of it as one JSON document."""
    if output is not None:
        texts = {name: to_yaml(document) for name, document in documents.items()}
        write_files(output, texts, secret=_SECRET)
    if as_json:
        said: dict[str, Any] = {"driver": driver, "documents": list(documents.values())}
        print_json({**said, "files": [str(output / name) for name in documents] if output else []})
    elif output is None:
        click.echo(to_yaml(*documents.values()), nl=False)
    else:
        for name in documents:
            click.echo(output / name)


@dataclass(frozen=True, slots=True)
class _Agent:
    """The options of ``daemonset``."""

    image: str
    config: Path
    keys: tuple[Path, ...]
    namespace: str
    selectors: tuple[str, ...]
    pull_secret: str | None
    interval: int

    def agent(self) -> Agent:
        """Return the agent's options; errors as ``read_config`` and ``read_keys``."""
        keys = read_keys(self.keys)
        return Agent(
            image=self.image,
            config=read_config(self.config, has_keys=bool(keys)),
            keys=keys,
            namespace=self.namespace,
            selector=_pairs(self.selectors),
            pull_secret=self.pull_secret,
            interval=self.interval,
        )


_FILE = click.Path(dir_okay=False, path_type=Path)
_agent = options.option_group(
    "agent",
    _Agent,
    click.option("--image", required=True, metavar="IMAGE", help="Image of the agent."),
    click.option(
        "--config", type=_FILE, required=True, metavar="FILE", help="provision.toml for the nodes."
    ),
    click.option(
        "--key",
        "keys",
        type=_FILE,
        multiple=True,
        metavar="FILE",
        help="Public key that nodes trust; may be given more than once.",
    ),
    click.option(
        "--namespace",
        default="provision",
        show_default=True,
        metavar="NAME",
        help="Namespace of the objects.",
    ),
    _selector,
    click.option("--pull-secret", metavar="NAME", help="Secret for pulling the agent's image."),
    click.option(
        "--interval",
        type=click.IntRange(min=30),
        default=3600,
        show_default=True,
        metavar="SECONDS",
        help="Time between two runs on a node.",
    ),
)


@command.command("daemonset")
@_agent
@_output
@options.as_json
def daemonset(*, agent: _Agent, output: Path | None, as_json: bool) -> None:
    """Write the objects that run the agent on the nodes of a cluster without KMM.

    These are a Namespace, a ServiceAccount with its role, a ConfigMap, a DaemonSet and a
    RuntimeClass.
    """
    if output is not None:
        check_output(output)
    made = documents(agent.agent())
    if output is not None:
        write_files(output, {_AGENT: to_yaml(*made)})
    if as_json:
        files = [str(output / _AGENT)] if output else []
        print_json({"image": agent.image, "documents": made, "files": files})
    else:
        click.echo(output / _AGENT if output else to_yaml(*made), nl=bool(output))


command.add_command(sysext)
