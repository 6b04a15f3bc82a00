"""Decides every input of a build: Request → Pin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, get_args

from pydantic import ValidationError

from provision.build.archive import open_archive
from provision.build.distro_settings import (
    PackageNeeds,
    base_request,
    configured_repositories,
    ensure_distro_base,
    is_entitled,
    solve_request,
)
from provision.build.dockerfile import RenderedContext, render
from provision.build.package_store import Closure, PackageStore
from provision.build.request import (
    DriverRequest,
    TreeChoice,
    choose_distro,
    choose_tree,
    own_kernel,
    packaged_distro,
)
from provision.build.solve import SolveRequest, solve
from provision.build.templates import Templates, load_templates, load_tree_templates
from provision.build.trees import Tree, have_cos_tree, have_tree
from provision.build.versions import (
    BuildTarget,
    KernelRequest,
    KernelTree,
    check_kernel,
    choose_offer,
    chosen_flavour,
    follow,
    vendor_sums,
)
from provision.build.workspace import Settings
from provision.catalogue import Entry, Recipe, RecipeSource, Variant
from provision.distros import source_names, uses_archive
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.archive import HEADERS, require_headers, superseded
from provision.distros.kernel_tree import (
    Toolchain,
    build_packages,
    compiler_beside,
    compiler_package,
)
from provision.documents import refusing
from provision.engine.docker_api import Engine, names_registry
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.fetch import UnreachableError
from provision.host.facts import read_facts
from provision.manifest import HostNeeds
from provision.mistakes import mistakes_of
from provision.pin import (
    PIN_LABEL,
    Architecture,
    BasePin,
    ClosurePackage,
    DistroPin,
    DriverPin,
    FilePin,
    KernelPin,
    PackagePin,
    Pin,
    Source,
    TreePin,
)
from provision.progress import Progress, silent
from provision.shipped import templates_dir
from provision.sources.candidates import (
    Candidate,
    PublishedSum,
    SourceContext,
    no_published_sum,
    pin_sources,
    tools_of,
)


class Solved(Protocol):
    """What a distro's solver decided: packages at their exact versions, and everything else."""

    @property
    def compiler(self) -> PackagePin | None:
        """The compiler that built the kernel; None: it is no package."""

    @property
    def headers(self) -> tuple[PackagePin, ...]:
        """The packages that hold the kernel's headers."""

    @property
    def tools(self) -> tuple[PackagePin, ...]:
        """Further build tools."""

    @property
    def packages(self) -> tuple[ClosurePackage, ...]:
        """Everything that is installed."""


@dataclass(frozen=True, slots=True)
class SolvedPackages:
    """The packages that a Pin names; empty where its base image has everything."""

    compiler: PackagePin | None = None
    headers: tuple[PackagePin, ...] = ()
    tools: tuple[PackagePin, ...] = ()
    packages: tuple[ClosurePackage, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """All inputs of a build except the base image and the packages, which need an engine.

    Attributes:
        tools: Packages that the build needs besides those of every build, by Debian's names.
    """

    pin: Callable[[BasePin, Solved], Pin]
    tools: tuple[str, ...] = ()
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def decide(
    request: KernelRequest,
    target: BuildTarget,
    *,
    index: ArchiveIndex | None,
    is_complete: bool = True,
    published_sum: PublishedSum = no_published_sum,
) -> Decision:
    """Decide all inputs except the base image and the packages, which a distro's solver decides.

    What does not exist is refused with that reason, with or without an engine.

    Args:
        index: The archive of the distro, with the components that the recipe names; None: it has no
            archive of Debian's kind.
        is_complete: Whether the index has every kernel that the solver may find.
    """
    recipe = target.entry.recipe
    flavour = chosen_flavour(recipe, request.flavour)
    kernel = _kernel(request)
    context = SourceContext(
        f"{target.distro.id} {target.distro.version}",
        source_names(target.distro),
        index,
        request.architecture,
        published_sum,
        request.published,
    )
    offer = choose_offer(recipe, flavour, request, context)
    # Else the solver finds out as soon as apt would.
    if index is not None and index.is_read and is_complete:
        require_headers(index, request.kernel)
    check_kernel(recipe, offer.version, request, index)
    pinned = pin_sources(recipe.name, offer, context)
    pin = _pin_maker(target, kernel, offer, pinned.sources)
    return Decision(pin, tools_of(offer.variant), pinned.urls)


def _pin_maker(
    target: BuildTarget, kernel: KernelPin, offer: Candidate, sources: tuple[Source, ...]
) -> Callable[[BasePin, Solved], Pin]:
    recipe, tree = target.entry.recipe, target.tree
    with refusing(f"The version {offer.version} of '{recipe.name}' can't be pinned."):
        driver = DriverPin(name=recipe.name, version=offer.version, flavour=offer.variant.flavour)

    def pin(base: BasePin, solved: Solved) -> Pin:
        return Pin(
            driver=driver,
            kernel=kernel,
            distro=tree.distro if tree else target.distro,
            base=base,
            compiler=solved.compiler,
            headers=solved.headers,
            packages=solved.tools,
            closure=solved.packages,
            sources=sources,
            patches=_patches(target.entry, offer),
            recipe=recipe_digest(recipe, offer.variant),
            template=target.templates.digest,
            tree=tree.pin if tree else None,
        )

    return pin


def decide_in_image(
    request: KernelRequest, target: BuildTarget, *, published_sum: PublishedSum = no_published_sum
) -> Callable[[BasePin], Pin]:
    """Decide all inputs except a base image that has the compiler and all tools.

    Args:
        target: The driver, with the kernel's tree and distro. Its source is not a package, because
            the image has no archive.
    """
    recipe, distro = target.entry.recipe, target.distro
    serving = [source for source in recipe.sources if source.fits(source_names(distro))]
    if serving and all(source.is_packaged for source in serving):
        raise NotFoundError(
            f"The source of '{recipe.name}' is packages of Debian, and the base image that builds"
            f" for {distro.id}:{distro.version} has no archive of Debian.",
            resolution="Have Debian's packages compile, with the kernel's tree: under [[trees]] in"
            ' /etc/provision/provision.toml, set kernels, path and toolchain = "debian:12".',
        )
    decision = decide(request, target, index=None, published_sum=published_sum)
    return lambda base: decision.pin(base, SolvedPackages())


def _patches(entry: Entry, offer: Candidate) -> tuple[FilePin, ...]:
    variant = offer.variant
    return tuple(
        FilePin(name=patch.file, sha256=entry.patch_sha256(patch.file))
        for patch in entry.recipe.patches
        if patch.applies_to(version=offer.version, flavour=variant.flavour, source=variant.label)
    )


def _kernel(request: KernelRequest) -> KernelPin:
    try:
        return KernelPin.model_validate(
            {"release": request.kernel, "architecture": request.architecture}
        )
    except ValidationError as error:
        known: tuple[str, ...] = get_args(Architecture)
        if request.architecture not in known:
            raise NotFoundError(
                f"The architecture '{request.architecture}' is not supported.",
                resolution=f"There are {', '.join(known)}.",
            ) from error
        raise UsageError(
            f"'{request.kernel}' is no kernel release.",
            resolution="Give it as 'uname -r' prints it, such as 6.1.0-47-amd64.",
            details="\n".join(str(mistake) for mistake in mistakes_of(error)),
        ) from error


def recipe_digest(recipe: Recipe, variant: Variant[RecipeSource]) -> str:
    """Return the sha256 of the parts of a recipe that reach the artifact of a variant.

    The other parts have a field of their own in the Pin (source, patches, packages), or no effect
    on the modules and files (the summary, the known kernels, other flavours and sources).
    """
    parts: dict[str, Any] = {
        "build": variant.build.model_dump(mode="json", exclude={"package"}),
        "licences": list(variant.licences),
        "package": variant.package,
        "files": [file.model_dump(mode="json", by_alias=True) for file in variant.files],
        "container": variant.container.model_dump(mode="json", exclude_none=True),
    }
    # Left out where it is empty, so that the Pins of other drivers stay as they were.
    if recipe.host != HostNeeds():
        parts["host"] = recipe.host.model_dump(mode="json")
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
