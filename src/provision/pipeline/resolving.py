"""From a request to a Pin, whether the kernel's headers are packages or a tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from provision.build.base_image import find_base, named_base
from provision.build.compatibility import BuildTarget, KernelTree
from provision.build.decision import decide_in_image
from provision.build.templates import load_tree_templates
from provision.catalogue import Entry, templates_dir
from provision.distros.kernel_tree import (
    Toolchain,
    build_packages,
    compiler_beside,
    compiler_package,
)
from provision.engine.docker_api import Engine
from provision.host.facts import read_facts
from provision.pipeline.driver_request import DriverRequest, own_kernel, packaged_distro
from provision.pipeline.package_pins import (
    Resolved,
    request_of,
    resolve_packaged,
    resolve_solved,
)
from provision.pipeline.runfiles import vendor_sums
from provision.pipeline.solving import base_request
from provision.pipeline.tree_choice import TreeChoice, choose_tree, fetch_tree, no_image
from provision.pipeline.trees import Tree
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent


def resolve_pin(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: DriverRequest,
    *,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build.

    Args:
        settings: The host.
        engine: Connects to the engine; called last, and not at all where the base image is named
            by its digest.
        wanted: What is asked for.
        progress: Receives what goes on.

    Raises:
        NotFoundError: Driver, version, flavour, kernel, distro, headers, kernel tree, base image
            or the certificate for signatures are unknown.
        ProvisionError: The archive, a download or the engine failed.
    """
    kernel = wanted.kernel or own_kernel(settings, read_facts(settings.root))
    choice = choose_tree(settings, kernel, wanted.distro)
    if choice is None:
        packaged = replace(
            wanted, kernel=kernel, distro=packaged_distro(settings, wanted.distro, kernel)
        )
        return resolve_packaged(settings, engine, packaged, progress=progress)
    wanted = replace(wanted, kernel=kernel)
    entry = settings.catalogue.entry(wanted.driver)
    files = fetch_tree(settings, choice, kernel, update=wanted.update, progress=progress)
    target = _target(entry, choice, files, kernel)
    if choice.toolchain is None:
        resolved = _in_image(settings, engine, wanted, (target, choice.image), progress)
    else:
        resolved = resolve_solved(settings, engine, wanted, target, progress=progress)
    return replace(
        resolved, attached={f"kernel/{name}": path for name, path in files.files.items()}
    )


def _target(entry: Entry, choice: TreeChoice, files: Tree, kernel: str) -> BuildTarget:
    """Return what is built, where a tree stands in for packages with headers.

    Raises:
        NotFoundError: The configuration doesn't say what compiled the kernel.
    """
    toolchain = _toolchain(choice, files, kernel)
    pin = files.pin.model_copy(update={"toolchain": choice.toolchain, "llvm": toolchain.llvm})
    tree = KernelTree(pin, choice.distro, toolchain)
    templates = load_tree_templates(templates_dir(), choice.toolchain)
    return BuildTarget(entry, choice.toolchain or choice.distro, templates, tree)


def _toolchain(choice: TreeChoice, tree: Tree, kernel: str) -> Toolchain:
    """Return what compiles in a tree.

    Raises:
        NotFoundError: The configuration doesn't say what compiled the kernel.
    """
    if choice.toolchain is None:
        return compiler_beside(tree.config)
    config = tree.config or {}
    # A compiler that comes as a file is no package.
    has_file = tree.pin.compiler is not None
    found = compiler_beside(tree.config) if has_file else compiler_package(config, kernel)
    packages = (*found.packages, *build_packages(tree.pin.kind, config))
    return replace(found, packages=packages)


def _in_image(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: DriverRequest,
    place: tuple[BuildTarget, str | None],
    progress: Progress,
) -> Resolved:
    """Decide every input of a build on a base image that has everything.

    ``place`` is the target, and the base image unless provision.toml or the caller names another.
    Other arguments and errors as ``resolve_pin``.
    """
    target, image = place
    distro = target.distro
    request = request_of(settings, wanted, distro, progress=progress)
    sums = vendor_sums(settings, again=wanted.update, progress=progress)
    decision = decide_in_image(request, target, published_sum=sums)
    own = settings.config.distro(distro.id).base_images.get(distro.version)
    # Not the distro's usual image: that has no compiler, and no kernel.
    reference = wanted.base or own or image
    if reference is None:
        raise no_image(distro)
    asked = base_request(settings, distro, reference=reference)
    if reference == image:
        asked = replace(asked, can_be_made=True, is_published=False)
    base = named_base(asked) or find_base(engine(), asked, progress=progress)
    network = wanted.network or settings.config.engine.network
    return Resolved(decision(base), target.entry, target.templates, network=network)
