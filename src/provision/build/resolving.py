"""Decides the Pin of a request, whether the kernel's headers are packages or a tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from provision.build.decision import decide_in_image
from provision.build.distro_base import ensure_distro_base
from provision.build.driver_request import (
    DriverRequest,
    TreeChoice,
    choose_tree,
    own_kernel,
    packaged_distro,
)
from provision.build.package_pins import (
    Resolved,
    request_of,
    resolve_packaged,
    resolve_solved,
)
from provision.build.solving import base_request
from provision.build.templates import load_tree_templates
from provision.build.trees import Tree, have_cos_tree, have_tree
from provision.build.vendor_versions import vendor_sums
from provision.build.version_choice import BuildTarget, KernelTree
from provision.build.workspace import Settings
from provision.catalogue import Entry
from provision.distros.kernel_tree import (
    Toolchain,
    build_packages,
    compiler_beside,
    compiler_package,
)
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError
from provision.host.facts import read_facts
from provision.pin import DistroPin, TreePin
from provision.progress import Progress, silent
from provision.shipped import templates_dir


def resolve_pin(
    settings: Settings,
    engine: Callable[[], Engine],
    request: DriverRequest,
    *,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build.

    Args:
        engine: Connects to the engine; called last, and not at all where the base image is named
            by its digest.
    """
    kernel = request.kernel or own_kernel(settings, read_facts(settings.root))
    choice = choose_tree(settings, kernel, request.distro)
    if choice is None:
        packaged = replace(
            request, kernel=kernel, distro=packaged_distro(settings, request.distro, kernel)
        )
        return resolve_packaged(settings, engine, packaged, progress=progress)
    request = replace(request, kernel=kernel)
    entry = settings.catalogue.entry(request.driver)
    files = fetch_tree(settings, choice, kernel, update=request.refresh, progress=progress)
    target = _target(entry, choice, files, kernel)
    if choice.toolchain is None:
        resolved = _in_image(settings, engine, request, (target, choice.image), progress)
    else:
        resolved = resolve_solved(settings, engine, request, target, progress=progress)
    return replace(
        resolved, attached={f"kernel/{name}": path for name, path in files.files.items()}
    )


def _target(entry: Entry, choice: TreeChoice, files: Tree, kernel: str) -> BuildTarget:
    toolchain = _toolchain(choice, files, kernel)
    pin = files.pin.model_copy(update={"toolchain": choice.toolchain, "llvm": toolchain.llvm})
    tree = KernelTree(pin, choice.distro, toolchain)
    templates = load_tree_templates(templates_dir(), choice.toolchain)
    return BuildTarget(entry, choice.toolchain or choice.distro, templates, tree)


def _toolchain(choice: TreeChoice, tree: Tree, kernel: str) -> Toolchain:
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
    request: DriverRequest,
    place: tuple[BuildTarget, str | None],
    progress: Progress,
) -> Resolved:
    """Decide every input of a build on a base image that has everything.

    ``place`` is the target, and the base image that is used unless another is named.
    Other arguments and errors as ``resolve_pin``.
    """
    target, image = place
    distro = target.distro
    kernel_request = request_of(settings, request, distro, progress=progress)
    sums = vendor_sums(settings, again=request.refresh, progress=progress)
    decision = decide_in_image(kernel_request, target, published_sum=sums)
    own = settings.config.distro(distro.id).base_images.get(distro.version)
    # Not the distro's usual image: that has no compiler, and no kernel.
    reference = request.base or own or image
    if reference is None:
        raise no_image(distro)
    asked = base_request(settings, distro, reference=reference)
    if reference == image:
        asked = replace(asked, can_be_made=True, is_published=False)
    base = ensure_distro_base(settings, engine, asked, progress=progress)
    network = request.network or settings.config.engine.network
    return Resolved(decision(base), target.entry, target.templates, network=network)


def fetch_tree(
    settings: Settings,
    choice: TreeChoice,
    kernel: str,
    *,
    update: bool = False,
    progress: Progress = silent,
) -> Tree:
    """Return a tree with its files in the package store."""
    if choice.tree is None:
        architecture = settings.architecture
        return have_cos_tree(
            settings, choice.build_id, architecture, update=update, progress=progress
        )
    if choice.tree.kind == "image":
        return Tree(TreePin(kind="image"))
    return have_tree(settings, choice.tree, kernel, update=update, progress=progress)


def no_image(distro: DistroPin) -> NotFoundError:
    """Return the error for a distro without an image that has everything to build for it."""
    return NotFoundError(
        f"There is no image that has everything to build for {distro.id} {distro.version}.",
        resolution='Name the distro whose packages compile: toolchain = "debian:12" of'
        " [[trees]] in /etc/provision/provision.toml; or an image, with --base or there: [distros."
        f'{distro.id}] base_images = {{ "{distro.version}" = "NAME:TAG" }}.',
    )
