"""From what somebody wants to a Pin, and from a Pin to its build context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from provision import distros
from provision.archive import ArchiveIndex, open_index
from provision.catalogue import Entry, templates_dir
from provision.distros import source_names
from provision.distros.apt_archive import layout_of, uses_archive
from provision.distros.apt_headers import packaged_kernels
from provision.errors import NotFoundError
from provision.host import Facts, read_facts
from provision.image.base import BaseRequest, find_base, named_base
from provision.image.build import PIN_LABEL
from provision.image.engine import Engine
from provision.image.packages import PackageStore
from provision.image.references import names_registry
from provision.image.solve import list_kernels as solver_kernels
from provision.image.solve import solve
from provision.modules.signing import fingerprint
from provision.pin import BasePin, ClosurePackage, DistroPin, PackagePin, Pin
from provision.pipeline.runfiles import vendor_sums
from provision.pipeline.settings import Settings
from provision.pipeline.solving import (
    archive_repositories,
    configured_repositories,
    is_entitled,
    solve_request,
)
from provision.progress import Progress, silent
from provision.recipe import Recipe
from provision.render import (
    RenderedContext,
    Templates,
    load_templates,
    render,
)
from provision.resolve import Decision, KernelTree, Request, chosen_flavour, decide
from provision.rootfs import in_root
from provision.sources import Market, PublishedSum, components_of, offers


@dataclass(frozen=True, slots=True)
class Wanted:
    """A driver for a kernel, as somebody asks for it.

    Attributes:
        driver: Its name in the catalogue.
        kernel: The kernel's release; None: the one that runs.
        distro: ``debian:12``; None: the host's.
        version: The driver's version, or a branch of it; None: the newest that suits the kernel.
        flavour: One of the driver's flavours; None: its default.
        base: Base image; None: what provision.toml names, or the distro's own.
        prefer: A version to stay with as long as that is possible; None: the newest is wanted.
        force: Whether to try a kernel that the driver is not known to build on.
        network: Network of the containers that download; None: what provision.toml says.
        update: Whether packages are solved for again although there is a closure.
    """

    driver: str
    kernel: str | None = None
    distro: str | None = None
    version: str | None = None
    flavour: str | None = None
    base: str | None = None
    network: str | None = None
    prefer: str | None = None
    force: bool = False
    update: bool = False


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


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A packaged kernel: its release, and the newest driver version known to build on it."""

    release: str
    version: str | None

    @property
    def builds(self) -> bool:
        """Whether the driver is known to build on it."""
        return self.version is not None


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
        progress: Told what goes on.

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
        progress: Told what goes on.

    Raises:
        NotFoundError: As ``resolve_packaged``.
        ProvisionError: The archive or the engine failed.
    """
    request = request_of(settings, wanted)
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


def request_of(settings: Settings, wanted: Wanted) -> Request:
    """Return what is asked for, with the host's kernel where none is named.

    Raises:
        NotFoundError: None is named, and the host has none.
    """
    facts = read_facts(settings.root)
    return Request(
        kernel=wanted.kernel or own_kernel(settings, facts),
        architecture=facts.arch,
        version=wanted.version,
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


def signing_key(settings: Settings) -> str | None:
    """Return the fingerprint of the key that modules are signed with; None: they are not.

    Raises:
        NotFoundError: provision.toml names a certificate that is not there.
    """
    certificate = settings.config.signing.certificate
    if certificate is None:
        return None
    return fingerprint(in_root(settings.root, certificate))


def own_kernel(settings: Settings, facts: Facts) -> str:
    """Return the kernel of the host.

    Raises:
        NotFoundError: It has none.
    """
    if facts.kernel is None:
        raise NotFoundError(
            f"There is no kernel under '{settings.root}'.",
            resolution="Name the one to build for with --kernel.",
        )
    return facts.kernel


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


def list_kernels(
    settings: Settings,
    engine: Callable[[], Engine],
    driver: str,
    *,
    distro: str | None = None,
    flavour: str | None = None,
    progress: Progress = silent,
) -> tuple[DistroPin, list[KernelRow]]:
    """Return the kernels that a distro packages headers of, the newest first.

    Raises:
        NotFoundError: The driver, flavour or distro is unknown.
        ProvisionError: The archive failed.
    """
    entry = settings.catalogue.entry(driver)
    recipe = entry.recipe
    chosen = choose_distro(settings, distro)
    flavour = chosen_flavour(recipe, flavour)
    market = Market(f"{chosen.id} {chosen.version}", source_names(chosen))
    if not uses_archive(chosen):
        versions = [offer.version for offer in offers(recipe, flavour, market)]
        kernels = _listed_kernels(settings, engine, chosen, progress)
        return chosen, [_row(recipe, kernel, versions) for kernel in kernels]
    index = open_driver_index(settings, entry, chosen, progress=progress)
    try:
        market = replace(market, index=index)
        versions = [offer.version for offer in offers(recipe, flavour, market)]
        return chosen, [_row(recipe, kernel, versions) for kernel in packaged_kernels(index)]
    finally:
        index.close()


def _row(recipe: Recipe, kernel: str, versions: Iterable[str]) -> KernelRow:
    fitting = (v for v in versions if recipe.builds_on(version=v, kernel_release=kernel))
    return KernelRow(kernel, next(fitting, None))


def _listed_kernels(
    settings: Settings, engine: Callable[[], Engine], distro: DistroPin, progress: Progress
) -> tuple[str, ...]:
    """Ask the distro's own package manager for the kernels that it has headers of.

    Raises:
        NotFoundError: The distro has none.
    """
    data = distros.distro_named(distro.id)
    if data is not None and data.family == "tree":
        raise NotFoundError(
            f"{data.name} has no packages of kernels that could be listed.",
            resolution="Any kernel whose tree is there can be built for: --kernel names it"
            " (docs/how-to/kernel-trees.md).",
        )
    asked = base_request(settings, distro)
    base = named_base(asked) or find_base(engine(), asked, progress=progress)
    wish = solve_request(
        settings, distro, base, kernel="", repositories=configured_repositories(settings, distro)
    )
    return solver_kernels(engine, wish, PackageStore(settings.state), progress=progress)


def choose_distro(settings: Settings, name: str | None) -> DistroPin:
    """Return the distro that is named: here, or in provision.toml; or else the host's.

    Raises:
        NotFoundError: It is not supported.
    """
    named = name or settings.config.kernel_distro
    if named is None:
        distro = read_facts(settings.root).distro
        named = f"{distro.id}:{distro.version}"
    return distros.find_distro(named)


def base_request(
    settings: Settings, distro: DistroPin, *, reference: str | None = None
) -> BaseRequest:
    """Return which base image a distro is built on here."""
    configured = settings.config.distro(distro.id).base_images.get(distro.version)
    # Where a kernel tree is built in, the distro may be one that there are no data of.
    data = distros.distro_named(distro.id)
    release = data.release(distro.version) if data else None
    apt = data.apt if data else None
    return BaseRequest(
        distro=distro.id,
        version=distro.version,
        codename=distro.codename,
        architecture=read_facts(settings.root).arch,
        reference=reference or configured or (release.image if release else None),
        can_be_made=apt is not None,
        script=apt.debootstrap_script if apt else None,
    )


def open_driver_index(
    settings: Settings, entry: Entry | None, distro: DistroPin, *, progress: Progress = silent
) -> ArchiveIndex:
    """Open the distro's archive with the sections that a driver needs; the caller closes it.

    Raises:
        NotFoundError: No mirror or keyring is known, or the distro has no such components.
        ProvisionError: The archive can't be reached or is not what it should be.
    """
    layout = layout_of(distro)
    components = components_of(entry.recipe, source_names(distro)) if entry else ()
    foreign = [name for name in components if name not in layout.components]
    if entry and foreign:
        raise NotFoundError(
            f"'{entry.recipe.name}' is made from Debian's packages, in its components"
            f" {', '.join(foreign)}; {distro.id} {distro.version} has no such components.",
            resolution="Take a driver whose source is an archive or a git repository"
            " ('provision drivers' lists them).",
        )
    return open_index(
        distro,
        layout,
        architecture=read_facts(settings.root).arch,
        components=components,
        config=settings.config,
        root=settings.root,
        cache_dir=settings.state,
        progress=progress,
    )
