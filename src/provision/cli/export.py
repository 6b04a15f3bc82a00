"""``export``: a driver, or what hosts need first, in a form that another system loads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import click

from provision.build.request import DriverRequest
from provision.cli import options
from provision.cli.job import job, trust_options
from provision.cli.options import argument, command, option
from provision.cli.output import emit, fields, progress, size_of
from provision.errors import UsageError
from provision.export import ArtifactSource, Choice
from provision.export.coreos import (
    Hosts,
    Options,
    Variant,
    configuration,
    export_sysext,
    need_mksquashfs,
)
from provision.export.kubernetes import (
    Agent,
    Document,
    KmmOptions,
    PodOptions,
    check_output,
    documents,
    kmm_files,
    pod_files,
    read_config,
    read_keys,
    to_yaml,
    write_files,
)
from provision.files import sha256_file, write_atomic
from provision.registry.find import TrustOverride


@click.group("export", cls=options.Group)
def export() -> None:
    """Write a driver, or what hosts need first, in a form that another system loads."""


def _pairs(texts: tuple[str, ...]) -> Mapping[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(
                f"'{text}' is not a Kubernetes label with a value.",
                resolution="Write it as LABEL=VALUE:"
                " --selector feature.node.kubernetes.io/pci-10de.present=true",
            )
        pairs[key] = value
    return pairs


def _new_folder(folder: Path | None) -> Path | None:
    if folder is not None:
        check_output(folder)
    return folder


_selectors = option(
    "--selector LABEL=VALUE",
    "Label that nodes must have; may be given more than once.",
    _pairs,
    multiple=True,
)
_output = option(
    "--output DIR", "New folder to write into.  [standard output]", _new_folder, type=options.FOLDER
)
_pull_secret = option("--pull-secret NAME", "Secret for pulling images.")


# What selects images of a repository.
_choice = options.group(
    Choice,
    version=option("--version VERSION", "Version of the driver.  [the newest]"),
    flavour=options.flavour,
    distro=options.distro,
    kernels=option(
        "--kernel RELEASE",
        "Kernel of the nodes; may be given more than once.",
        lambda all_: tuple(dict.fromkeys(all_)),
        multiple=True,
    ),
)
_keys = option(
    "--key FILE",
    "Public key that nodes trust; may be given more than once.",
    read_keys,
    type=options.FILE,
    multiple=True,
)


@command("kmm", export)
def kmm(
    *,
    driver: str = argument("DRIVER"),
    image: str | None = option(
        "--image IMAGE", "Image whose manifest is read.  [one of the registry's]"
    ),
    address: str | None = options.registry,
    choice: Choice = _choice,
    module: KmmOptions = options.group(
        KmmOptions,
        regexp=option(
            "--regexp EXPRESSION",
            "Regular expression in Go's syntax for the releases of other kernels.",
        ),
        namespace=option("--namespace NAME", "Namespace of the objects.", default="default"),
        selector=_selectors,
        pull_secret=_pull_secret,
        sign_key=option("--sign-key NAME", "Secret with the key; KMM then signs the modules."),
        sign_certificate=option(
            "--sign-certificate NAME", "Secret with the certificate of that key."
        ),
        ordered_upgrade=option(
            "--ordered-upgrade", "Load the driver only on nodes whose label names its version."
        ),
        dra=option(
            "--dra IMAGE",
            "Image of a DRA driver, which KMM runs on these nodes; for KMM after 2.6.0.",
        ),
        dra_driver=option("--dra-driver NAME", "Name by which that driver registers."),
    ),
    agent: str | None = option(
        "--agent IMAGE",
        "Also write a DaemonSet of the agent, which gives these nodes the user space.",
    ),
    keys: Mapping[str, str] = _keys,
    trust: TrustOverride = trust_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
    output: Path | None = _output,
) -> None:
    """Write the Module with which Kubernetes' Kernel Module Management loads DRIVER.

    By default, the Module covers all kernels that the registry has images for. The names and the
    order of the kernel modules come from the manifest of one of the images.
    """
    for one, other, why, example in (
        (
            module.sign_key,
            module.sign_certificate,
            "--sign-key and --sign-certificate go together: give both.",
            "--sign-key KEY.pem --sign-certificate CERTIFICATE.pem",
        ),
        (
            module.dra,
            module.dra_driver,
            "--dra and --dra-driver go together: give both.",
            "--dra registry.example/dra:1 --dra-driver gpu.nvidia.com",
        ),
        (
            agent,
            keys or None,
            "--agent and --key go together: nodes install what one of the keys has signed.",
            "--agent registry.example/agent:1 --key site.pub",
        ),
    ):
        options.refuse((one is None) != (other is None), why, f"Give both: {example}")
    with job(root, catalogues) as settings:
        files = kmm_files(
            ArtifactSource(settings, trust),
            driver,
            choice,
            module,
            address=address,
            image=image,
            agent=agent,
            keys=keys,
        )
    _emit_files({"driver": driver}, files, output)


def _emit_files(
    subject: Mapping[str, str], files: Mapping[str, Sequence[Document]], output: Path | None
) -> None:
    if output is not None:
        write_files(output, files)
    found = [document for documents in files.values() for document in documents]
    emit(
        {
            **subject,
            "documents": found,
            "files": [output / name for name in files] if output else [],
        },
        lambda one: one["files"] or [to_yaml(*found).removesuffix("\n")],
        is_input=output is None,
    )


@command("driver-pod", export)
def driver_pod(
    *,
    driver: str = argument("DRIVER"),
    address: str | None = options.registry,
    choice: Choice = _choice,
    plain: bool = option(
        "--plain", "Write DaemonSets for a cluster without NVIDIA's GPU Operator."
    ),
    pod: PodOptions = options.group(
        PodOptions,
        namespace=option("--namespace NAME", "Namespace of the objects.", default="provision"),
        selector=_selectors,
        pull_secret=_pull_secret,
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
    output: Path | None = _output,
) -> None:
    """Write what runs the images of DRIVER as driver pods of NVIDIA's GPU Operator.

    These are values for the operator's Helm chart, and an NVIDIADriver. The operator selects the
    image for each node's kernel. With --plain, these are a Namespace, and a DaemonSet for each
    kernel: those of --kernel, or all of the registry's.
    """
    options.refuse(
        choice.kernels and not plain,
        "--kernel works with --plain only: the operator looks at its nodes' kernels itself.",
        "Leave it out, or add --plain.",
    )
    with job(root, catalogues) as settings:
        source = ArtifactSource(settings, TrustOverride())
        files = pod_files(source, driver, choice, pod, address=address, plain=plain)
    _emit_files({"driver": driver}, files, output)


@command("daemonset", export)
def daemonset(
    *,
    image: str = option("--image IMAGE", "Image of the agent.", required=True),
    config: Path = option(
        "--config FILE", "provision.toml for the nodes.", type=options.FILE, required=True
    ),
    keys: Mapping[str, str] = _keys,
    namespace: str = option("--namespace NAME", "Namespace of the objects.", default="provision"),
    selectors: Mapping[str, str] = _selectors,
    pull_secret: str | None = option(
        "--pull-secret NAME", "Secret for pulling the agent's image and the drivers."
    ),
    interval: int = option(
        "--interval SECONDS",
        "Time between two runs on a node.",
        type=click.IntRange(min=30),
        default=3600,
    ),
    output: Path | None = _output,
) -> None:
    """Write the objects that run the agent on the nodes of a cluster without KMM.

    These are a Namespace, a ConfigMap (a Secret, if provision.toml has a password), a DaemonSet and
    a RuntimeClass.
    """
    with progress():
        text = read_config(config, has_keys=bool(keys))
    agent = Agent(
        image=image,
        config=text,
        keys=keys,
        namespace=namespace,
        selector=selectors,
        pull_secret=pull_secret,
        interval=interval,
    )
    _emit_files({"image": image}, {"agent.yaml": documents(agent)}, output)


@command("sysext", export)
def sysext(
    *,
    driver: str = argument("DRIVER"),
    choice: Choice = _choice,
    images: tuple[str, ...] = option(
        "--image IMAGE",
        "Artifact image, in place of --kernel; may be given more than once.",
        multiple=True,
    ),
    hosts: Hosts = options.group(
        Hosts,
        id=option(
            "--id ID", "ID in os-release of the systems that it merges with.", default="_any"
        ),
        version_id=option("--version-id ID", "VERSION_ID in os-release of these systems.  [any]"),
    ),
    trust: TrustOverride = trust_options,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
    output: Path = option(
        "--output DIR", "New folder for the image.", _new_folder, type=options.FOLDER, required=True
    ),
) -> None:
    """Make a system extension of DRIVER for hosts without an agent: provision-DRIVER.raw.

    The extension contains the artifacts for one or more kernels, and a unit that loads the modules
    for the running kernel. The artifacts come from the registry, the store or the named images.
    Nothing is built.
    """
    options.refuse(
        bool(choice.kernels) == bool(images),
        "Name the artifacts for the extension: either kernels or images.",
        f"provision export sysext {driver} --kernel RELEASE --output DIR",
    )
    need_mksquashfs()
    requests = [
        DriverRequest(
            driver,
            kernel=kernel,
            distro=choice.distro,
            version=choice.version,
            flavour=choice.flavour,
        )
        for kernel in choice.kernels
    ]
    with job(root, catalogues) as settings:
        source = ArtifactSource(settings, trust)
        target, parts = export_sysext(source, requests or images, hosts, driver, output)
    pin = parts[0].pin
    emit(
        {
            "driver": pin.driver.name,
            "version": pin.driver.version,
            "kernels": [part.pin.kernel.release for part in parts],
            "file": target,
            "size": target.stat().st_size,
            "sha256": sha256_file(target),
        },
        fields(
            {
                "extension": "file",
                "driver": lambda one: f"{one['driver']} {one['version']}",
                "kernels": "kernels",
                "size": size_of("size"),
                "sha256": "sha256",
            }
        ),
    )


@command("ignition", export)
def ignition(
    *,
    machine: Options = options.group(
        Options,
        config=option(
            "--config", "provision.toml of the machine.", type=options.FILE, required=True
        ),
        image=option("--image IMAGE@DIGEST", "Image of the agent, by its digest.", required=True),
        variant=option(
            "--variant",
            "Distro of the machine.",
            type=click.Choice(get_args(Variant)),
            default="fcos",
        ),
        expect=option(
            "--expect PATH",
            "File that provision.toml names and that your own configuration writes; may be"
            " given more than once.",
            multiple=True,
        ),
        keys=_keys,
    ),
    output: Path | None = option(
        "--output FILE", "File to write.  [standard output]", type=options.OUTPUT
    ),
) -> None:
    """Write what gives Fedora CoreOS or Flatcar its drivers at the first boot, for Ignition.

    The machine takes the agent with its own Python out of the image. Merge the file into your own
    configuration.
    """
    document = configuration(machine)
    text = json.dumps(document, indent=2)
    if output is not None:
        write_atomic(output, f"{text}\n")
    emit(
        {"output": output, "variant": machine.variant, "config": document},
        str(output) if output else text,
    )
