"""From what is wanted to a Pin, whatever the kernel's headers are: packages, or a tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from provision.archive import ArchiveIndex
from provision.catalogue import Entry, templates_dir
from provision.distros.tree import (
    build_packages,
    compiler_beside,
    compiler_package,
    fedora_of_kernel,
)
from provision.host import read_facts
from provision.image.base import BaseRequest, find_base, named_base
from provision.image.engine import Engine
from provision.pin import BasePin, Pin
from provision.pipeline.resolution import (
    Resolved,
    Wanted,
    base_request,
    open_driver_index,
    own_kernel,
    resolve_packaged,
)
from provision.pipeline.settings import Settings
from provision.pipeline.tree_choice import TreeChoice, choose_tree, fetch_tree
from provision.pipeline.tree_files import fetch_sources
from provision.pipeline.trees import Tree
from provision.progress import Progress, silent
from provision.render import Templates, load_family, required_packages
from provision.resolve import KernelTree, Request, decide, decide_in_image


def resolve_pin(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: Wanted,
    *,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build.

    Args:
        settings: The host.
        engine: Connects to the engine; called last, and not at all where the base image is named
            by its digest.
        wanted: What is asked for.
        progress: Told what goes on.

    Raises:
        NotFoundError: Driver, version, flavour, kernel, distro, headers, kernel tree, base image
            or the certificate for signatures are unknown.
        ProvisionError: The archive, a download or the engine failed.
    """
    kernel = wanted.kernel or own_kernel(settings, read_facts(settings.root))
    choice = choose_tree(settings, kernel, wanted.distro)
    if choice is None:
        packaged = replace(wanted, kernel=kernel, distro=_distro_of(settings, wanted, kernel))
        return resolve_packaged(settings, engine, packaged, progress=progress)
    return _resolve_in_tree(settings, engine, replace(wanted, kernel=kernel), choice, progress)


def _resolve_in_tree(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: Wanted,
    choice: TreeChoice,
    progress: Progress,
) -> Resolved:
    """Decide every input of a build in a kernel tree; errors as ``resolve_pin``."""
    entry = settings.catalogue.entry(wanted.driver)
    kernel = str(wanted.kernel)
    tree = fetch_tree(settings, choice, kernel, progress=progress)
    templates = load_family(templates_dir(), "tree")
    request = Request(
        kernel=kernel,
        architecture=read_facts(settings.root).arch,
        version=wanted.version,
        flavour=wanted.flavour,
        prefer=wanted.prefer,
        force=wanted.force,
    )
    index = None
    if choice.toolchain is not None:
        index = open_driver_index(settings, entry, choice.toolchain, progress=progress)
    try:
        pin_on = _decided(request, entry, templates, choice, tree, index)
    finally:
        if index is not None:
            index.close()
    asked = _base_request(settings, choice, wanted.base)
    pin = pin_on(named_base(asked) or find_base(engine(), asked, progress=progress))
    sources = fetch_sources(settings, pin.sources, progress=progress)
    return Resolved(
        pin,
        entry,
        templates,
        mirror=index.mirror if index else None,
        security_mirror=index.security_mirror if index else None,
        keyring=index.keyring if index else None,
        is_snapshot=bool(index and index.is_snapshot),
        attached={**{f"kernel/{name}": path for name, path in tree.files.items()}, **sources},
    )


def _distro_of(settings: Settings, wanted: Wanted, kernel: str) -> str | None:
    """Return the distro that a kernel's headers come from; None: the host's own release.

    On Fedora, CoreOS included, that is the release that the kernel's name says.
    """
    named = wanted.distro or settings.config.kernel_distro
    if named is None and read_facts(settings.root).distro.id == "fedora":
        return fedora_of_kernel(kernel)
    return named


def _decided(
    request: Request,
    entry: Entry,
    templates: Templates,
    choice: TreeChoice,
    tree: Tree,
    index: ArchiveIndex | None,
) -> Callable[[BasePin], Pin]:
    """Decide everything but the base image; arguments and errors as ``provision.resolve``."""
    config = tree.config or {}
    # A compiler that comes as a file is no package.
    if index is None or tree.pin.compiler is not None:
        toolchain = compiler_beside(tree.config)
    else:
        toolchain = compiler_package(config, request.kernel, index)
    pin = tree.pin.model_copy(update={"toolchain": choice.toolchain, "llvm": toolchain.llvm})
    known = KernelTree(pin, choice.distro, toolchain)
    if index is None:
        return decide_in_image(request, entry=entry, template=templates.digest, tree=known)
    flavour = request.flavour or entry.recipe.default_flavour
    packages = required_packages(entry.recipe, flavour)
    return decide(
        request,
        entry=entry,
        index=index,
        template=templates.digest,
        packages=[*packages, *build_packages(pin.kind, config)],
        tree=known,
    )


def _base_request(settings: Settings, choice: TreeChoice, reference: str | None) -> BaseRequest:
    """Return which base image compiles: the toolchain's, or one that has everything."""
    if choice.toolchain is not None:
        return base_request(settings, choice.toolchain, reference=reference)
    request = base_request(settings, choice.distro, reference=reference)
    return replace(request, reference=request.reference or choice.image)
