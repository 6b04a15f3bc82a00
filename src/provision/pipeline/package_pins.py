"""From what someone wants to a Pin, and from a Pin to its build context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from provision import distros
from provision.build.base_image import find_base, named_base
from provision.build.compatibility import KernelTree, Request
from provision.build.decision import Decision, decide
from provision.build.dockerfile import RenderedContext, render
from provision.build.package_store import PackageStore
from provision.build.solve import solve
from provision.build.templates import Templates, load_templates
from provision.catalogue import Entry, templates_dir
from provision.distros.debian.distro_archive import uses_archive
from provision.engine.docker_api import Engine, names_registry
from provision.errors import NotFoundError
from provision.host import read_facts
from provision.pin import PIN_LABEL, BasePin, ClosurePackage, DistroPin, PackagePin, Pin
from provision.pipeline.following import follow
from provision.pipeline.runfiles import vendor_sums
from provision.pipeline.solving import (
    archive_repositories,
    base_request,
    configured_repositories,
    is_entitled,
    open_driver_index,
    solve_request,
)
from provision.pipeline.wanted import Wanted, choose_distro, own_kernel
from provision.pipeline.workspace import Settings
from provision.progress import Progress, silent
from provision.sources import PublishedSum


@dataclass(frozen=True, slots=True)
class Resolved:
    """A Pin with what it takes to build it.

    Attributes:
        pin: The Pin.
        entry: The driver's recipe and patches.
        templates: What its Dockerfile is rendered from.
        attached: Large files of the build context besides the packages and the driver's source:
            where they lie, by path there.
        urls: Addresses of the packages of the Pin, by sha256.
        network: Network of the containers that download; None: the engine's default.
    """

    pin: Pin
    entry: Entry
    templates: Templates
    attached: Mapping[str, Path] = field(default_factory=dict)
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    network: str | None = None


def resolve_packaged(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: Wanted,
    *,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build whose headers are packages.

    Args:
        settings: The host.
        engine: Connects to the engine; called last, and not at all where the base image is named
            by its digest and the packages are solved for.
        wanted: What is asked for.
        progress: Receives what goes on.

    Raises:
        NotFoundError: Driver, version, flavour, kernel, distro, headers, base image or the
            certificate for signatures are unknown.
        ProvisionError: The archive or the engine failed.
    """
    entry = settings.catalogue.entry(wanted.driver)
    distro = choose_distro(settings, wanted.distro)
    target = Target(entry, distro, load_templates(templates_dir(), distro.id))
    return resolve_solved(settings, engine, wanted, target, progress=progress)


@dataclass(frozen=True, slots=True)
class Target:
    """A driver for a distro, with the templates that serve it."""

    entry: Entry
    distro: DistroPin
    templates: Templates


def resolve_solved(
    settings: Settings,
    engine: Callable[[], Engine],
    wanted: Wanted,
    target: Target,
    *,
    tree: KernelTree | None = None,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build whose packages a distro's solver finds.

    Args:
        settings: The host.
        engine: As ``resolve_packaged``.
        wanted: What is asked for.
        target: The driver, and the distro whose packages compile.
        tree: The kernel's tree, where its headers are no packages.
        progress: Receives what goes on.

    Raises:
        NotFoundError: As ``resolve_packaged``.
        ProvisionError: The archive or the engine failed.
    """
    request = request_of(settings, wanted, target.distro, progress=progress)
    sums = vendor_sums(settings, again=wanted.update, progress=progress)
    decision, repositories = _decided(settings, request, target, tree, sums, progress)
    asked = base_request(settings, target.distro, reference=wanted.base)
    base = named_base(asked) or find_base(engine(), asked, progress=progress)
    network = wanted.network or settings.config.engine.network
    toolchain = tree.toolchain if tree else None
    wish = solve_request(
        settings,
        target.distro,
        base,
        kernel=request.kernel,
        network=network,
        packages=decision.tools,
        repositories=repositories,
        toolchain=toolchain,
    )
    try:
        closure = solve(
            engine, wish, PackageStore(settings.state), update=wanted.update, progress=progress
        )
        pin, urls = decision.pin(base, closure), closure.urls
    except NotFoundError:
        # A host that got the artifact image by itself has nothing to solve in, and needs nothing.
        made = None if wanted.update else _made_before(engine(), decision, base)
        if made is None:
            raise
        pin, urls = made, {}
    return Resolved(
        pin,
        target.entry,
        target.templates,
        urls={**urls, **decision.urls},
        network=network,
    )


def _made_before(engine: Engine, decision: Decision, base: BasePin) -> Pin | None:
    """Return the Pin of an artifact image here that fits a decision, whatever its packages are.

    What has only a registry's name does not count: nothing says that its packages can be trusted.
    """
    for image in engine.images_with_label(PIN_LABEL):
        if all(map(names_registry, image.tags)):
            continue
        try:
            pin = Pin.model_validate_json(image.labels[PIN_LABEL])
        except ValidationError:
            continue
        solved = _Solved(pin.compiler, pin.headers, pin.packages, pin.closure)
        if pin.closure and decision.pin(base, solved).digest == pin.digest:
            return pin
    return None


@dataclass(frozen=True, slots=True)
class _Solved:
    """What a Pin says of its packages."""

    compiler: PackagePin | None
    headers: tuple[PackagePin, ...]
    tools: tuple[PackagePin, ...]
    packages: tuple[ClosurePackage, ...]


def request_of(
    settings: Settings, wanted: Wanted, distro: DistroPin, *, progress: Progress = silent
) -> Request:
    """Return what is asked for, with the host's kernel where none is named.

    A kind of branch (``lts``) becomes the branches that are of it, and for a source that takes any
    version its vendor is asked which there are.

    Raises:
        NotFoundError: None is named, and the host has none; or the driver is unknown.
    """
    facts = read_facts(settings.root)
    version = None if wanted.version == "latest" else wanted.version
    followed = follow(
        settings, wanted.driver, version, distro, chosen=wanted.prefer, progress=progress
    )
    return Request(
        kernel=wanted.kernel or own_kernel(settings, facts),
        architecture=facts.arch,
        version=version,
        branches=followed.branches,
        published=followed.published,
        flavour=wanted.flavour,
        prefer=wanted.prefer,
        force=wanted.force,
    )


def _decided(
    settings: Settings,
    request: Request,
    target: Target,
    tree: KernelTree | None,
    vendor_sum: PublishedSum,
    progress: Progress,
) -> tuple[Decision, tuple[distros.Repository, ...]]:
    """Decide what takes no engine, and where the packages come from.

    Archives of Debian's kind are read here: they say which kernels there are, and which versions
    of a driver whose source is a package.
    """
    entry, distro, template = target.entry, target.distro, target.templates.digest
    if not uses_archive(distro):
        decision = decide(
            request,
            entry=entry,
            distro=distro,
            index=None,
            template=template,
            tree=tree,
            published_sum=vendor_sum,
        )
        return decision, configured_repositories(settings, distro)
    index = open_driver_index(settings, entry, distro, progress=progress)
    try:
        decision = decide(
            request,
            entry=entry,
            distro=distro,
            index=index,
            template=template,
            is_complete=not is_entitled(settings, distro),
            tree=tree,
            published_sum=vendor_sum,
        )
    finally:
        index.close()
    return decision, archive_repositories(index.suites)


def render_context(resolved: Resolved) -> RenderedContext:
    """Render the build context of a Pin; the same Pin gives the same bytes.

    Raises:
        UsageError: A value of the recipe can't go into a Dockerfile.
    """
    entry = resolved.entry
    return render(
        resolved.pin,
        entry.recipe,
        templates=resolved.templates,
        patches=entry.patches,
    )
