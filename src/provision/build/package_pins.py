"""Decides a Pin whose packages a solver finds, and renders the build context of a Pin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from provision.build.archive import open_archive
from provision.build.decision import Decision, SolvedPackages, decide
from provision.build.distro_base import ensure_distro_base
from provision.build.dockerfile import RenderedContext, render
from provision.build.driver_request import DriverRequest, choose_distro, own_kernel
from provision.build.package_store import Closure, PackageStore
from provision.build.solve import solve
from provision.build.solve_request import SolveRequest
from provision.build.solving import (
    PackageNeeds,
    base_request,
    configured_repositories,
    is_entitled,
    solve_request,
)
from provision.build.templates import Templates, load_templates
from provision.build.vendor_versions import follow, vendor_sums
from provision.build.version_choice import BuildTarget, KernelRequest
from provision.build.workspace import Settings
from provision.catalogue import Entry
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.apt_messages import superseded
from provision.distros.debian.distro_archive import require_headers, uses_archive
from provision.distros.debian.kernels import HEADERS
from provision.engine.docker_api import Engine, names_registry
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.host.facts import read_facts
from provision.pin import PIN_LABEL, BasePin, DistroPin, Pin
from provision.progress import Progress, silent
from provision.shipped import templates_dir


@dataclass(frozen=True, slots=True)
class Resolved:
    """A Pin with everything that its build needs.

    Attributes:
        attached: Further large files of the build context (the kernel tree): the file by its path
            in the context.
        urls: Addresses of the packages of the Pin, by sha256.
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
    request: DriverRequest,
    *,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build whose headers are packages.

    Args:
        engine: Connects to the engine; called last, and not at all if the base image is named by
            its digest and the store has the closure.
    """
    entry = settings.catalogue.entry(request.driver)
    distro = choose_distro(settings, request.distro)
    target = BuildTarget(entry, distro, load_templates(templates_dir(), distro.id))
    return resolve_solved(settings, engine, request, target, progress=progress)


def resolve_solved(
    settings: Settings,
    engine: Callable[[], Engine],
    request: DriverRequest,
    target: BuildTarget,
    *,
    progress: Progress = silent,
) -> Resolved:
    """Decide every input of a build whose packages a distro's solver finds.

    ``target`` has the driver, and the distro whose packages compile. Other arguments and errors as
    ``resolve_packaged``.
    """
    kernel_request = request_of(settings, request, target.distro, progress=progress)
    sums = vendor_sums(settings, again=request.refresh, progress=progress)
    network = request.network or settings.config.engine.network
    toolchain = target.tree.toolchain if target.tree else None
    distro, refresh = target.distro, request.refresh
    with ExitStack() as opened:
        archive = None
        if uses_archive(distro):
            archive = opened.enter_context(
                open_archive(
                    settings,
                    engine,
                    distro,
                    (target.entry.recipe,),
                    reference=request.base,
                    network=network,
                    update=refresh,
                    progress=progress,
                )
            )
        index = archive.index if archive else None
        # A tree's kernel is not packaged, and only the solver reads what the host is entitled to.
        lists_kernels = target.tree is None and not is_entitled(settings, distro)
        decision = decide(
            kernel_request, target, index=index, is_complete=lists_kernels, published_sum=sums
        )
        if index and lists_kernels:
            opened.enter_context(_refusing(index, kernel_request.kernel))
        if archive:
            base, repositories = archive.base(), archive.repositories
        else:
            asked = base_request(settings, distro, reference=request.base)
            base = ensure_distro_base(settings, engine, asked, progress=progress)
            repositories = configured_repositories(settings, distro)
        needs = PackageNeeds(
            kernel_request.kernel, decision.tools, repositories, network, toolchain
        )
        asked_for = solve_request(settings, distro, base, needs)
        find = partial(
            solve,
            engine,
            asked_for,
            PackageStore(settings.state),
            update=refresh,
            container=archive.container() if archive else None,
            progress=progress,
        )
        pin, urls = _solved(find, engine, decision, base, may_reuse=not refresh)
        if archive:
            _require_own(asked_for, pin)
    return Resolved(
        pin,
        target.entry,
        target.templates,
        urls={**urls, **decision.urls},
        network=network,
    )


def _solved(
    find: Callable[[], Closure],
    engine: Callable[[], Engine],
    decision: Decision,
    base: BasePin,
    *,
    may_reuse: bool,
) -> tuple[Pin, Mapping[str, tuple[str, ...]]]:
    """Return the Pin of a decision with what a solver finds, and the addresses of the packages."""
    try:
        closure = find()
        return decision.pin(base, closure), closure.urls
    except NotFoundError:
        # A host that loaded only the artifact image has no base image to solve in, and needs none.
        made = _made_before(engine(), decision, base) if may_reuse else None
        if made is None:
            raise
        return made, {}


def _made_before(engine: Engine, decision: Decision, base: BasePin) -> Pin | None:
    """Return the Pin of an artifact image here that fits a decision, with any packages.

    An image that has only a registry's name does not count, because its packages may be anything.
    """
    for image in engine.images_with_label(PIN_LABEL):
        if all(map(names_registry, image.tags)):
            continue
        try:
            pin = Pin.model_validate_json(image.labels[PIN_LABEL])
        except ValidationError:
            continue
        solved = SolvedPackages(pin.compiler, pin.headers, pin.packages, pin.closure)
        if pin.closure and decision.pin(base, solved).digest == pin.digest:
            return pin
    return None


def request_of(
    settings: Settings, request: DriverRequest, distro: DistroPin, *, progress: Progress = silent
) -> KernelRequest:
    """Return the kernel request of a driver request, with the host's kernel if it names none.

    A kind of branch (``lts``) becomes its branches. For a source that takes any version, the vendor
    is asked for its versions.
    """
    facts = read_facts(settings.root)
    followed = follow(settings, request, distro, progress=progress)
    return KernelRequest(
        kernel=request.kernel or own_kernel(settings, facts),
        architecture=settings.architecture,
        version=request.version_request(followed.branches),
        published=followed.published,
        flavour=request.flavour,
        force=request.force,
    )


def _require_own(request: SolveRequest, pin: Pin) -> None:
    """Refuse headers that apt found by a pattern: it takes an unknown name as a pattern."""
    found = {package.name for package in pin.headers}
    if not found.issuperset(spec.text for spec in request.query.specs):
        raise NotFoundError(
            f"No headers are packaged for the kernel {request.kernel} on {request.distro.id}"
            f" {request.release.version}.",
            resolution=superseded(request.distro),
            details=f"apt found {', '.join(sorted(found)) or 'no headers'}",
        )


@contextmanager
def _refusing(index: ArchiveIndex, kernel: str) -> Iterator[None]:
    """Refuse an unpackaged kernel by name, if the solver finds no solution or no engine.

    The solver only says that it has no such package; the index knows which kernels exist.
    """
    try:
        yield
    except UnreachableError:
        raise
    except ProvisionError:
        # What can't be asked either explains nothing.
        with suppress(ProvisionError):
            index.ask(f"{HEADERS}*")
        if index.is_read:
            require_headers(index, kernel)
        raise


def render_context(resolved: Resolved) -> RenderedContext:
    """Render the build context of a Pin; the same Pin gives the same bytes."""
    entry = resolved.entry
    return render(
        resolved.pin,
        entry.recipe,
        templates=resolved.templates,
        patches=entry.patches,
    )
