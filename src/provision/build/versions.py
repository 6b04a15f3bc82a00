"""Chooses the flavour and version of a driver, by what its sources and its vendor offer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest

from provision.build.context_files import commit_at
from provision.build.package_store import PackageStore
from provision.build.request import DriverRequest, VersionRequest, is_whole
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.catalogue.fields import CHANNELS, NEWEST_WITHOUT_KINDS
from provision.catalogue.recipe import Known
from provision.catalogue.suitability import (
    Card,
    cards_of,
    deciding,
    is_refused,
    no_common_driver,
    require_kernel,
)
from provision.config import Untried
from provision.distros import compare_versions
from provision.distros.archive import Archive
from provision.distros.distro import source_names
from provision.errors import NotFoundError, choices
from provision.files import in_root, is_writable
from provision.host import STORE
from provision.pin import DistroPin
from provision.progress import Note, report
from provision.sources.candidates import (
    PinnedVersion,
    PublishedSum,
    SourceContext,
    absence,
    candidates,
    newest_first,
    pin_sources,
    unlisted,
)
from provision.sources.upstream import MAX_AGE, Branches, UpstreamResult, ask, known_branches, today
from provision.sources.vendor_sums import SumRecord, UnpublishedError


def suitable_versions(
    recipe: Recipe,
    flavour: str,
    offered: Sequence[str],
    version: VersionRequest,
    kernel: str,
    untried: Untried = "build",
) -> tuple[list[str], list[str]]:
    """Return the offered versions that a request accepts, and those that may be built, best first.

    What is known to work on the kernel comes before what nobody has tried, even if that is newer.
    Where a kind of branch is asked for, that holds within each branch, and a branch that its vendor
    supports comes before one that has ended, whichever of them is known to work.
    """
    exact = version.exact
    if exact is not None and exact in offered:
        # A version that is named is taken; whether it fits is checked afterwards.
        return [exact], [exact]
    found = version.accepted(offered)
    known = {one: _known(recipe, flavour, one, kernel) for one in found}
    branches: dict[str | None, list[str]] = {}
    for one in found:
        branches.setdefault(version.branch_of(one), []).append(one)
    fitting: list[str] = []
    is_living = False
    for name, members in branches.items():
        if name in version.ended and is_living:
            break
        is_living = is_living or any(known[one] != "fails" for one in members)
        usable = [one for one in members if not is_refused(known[one], untried)]
        fitting += sorted(usable, key=lambda one: known[one] != "works")
    return found, fitting


def looked_in(recipe: Recipe, flavour: str, context: SourceContext) -> str | None:
    """Return the addresses of the archive, if a source of the flavour is packages."""
    variants = recipe.variants(context.names, flavour)
    if context.archive is None or not any(variant.source.is_packaged for variant in variants):
        return None
    return "\n".join(["looked in:", *(f"  {place}" for place in context.archive.addresses)])


def cards_for(settings: Settings, request: DriverRequest) -> tuple[Card, ...]:
    """Return the cards that decide about a request: those of the host that it is made for.

    A request that names a distro or a base image is for another host, of whose cards nothing is
    known. One that is forced may name what drives none.
    """
    if request.distro is not None or request.base is not None:
        return ()
    recipe = settings.catalogue.entry(request.driver).recipe
    named = request.flavour, request.version
    cards = deciding(cards_of(recipe, settings.pci), *named)
    return () if request.force and not all(card.takes(*named) for card in cards) else cards


def choose_version(
    recipe: Recipe,
    flavour: str,
    request: VersionRequest,
    kernel: str,
    context: SourceContext,
    *,
    untried: Untried = "build",
    force: bool = False,
) -> PinnedVersion:
    """Choose the requested version, or the best that fits the kernel; pin its sources.

    Sources come in the recipe's order, and versions of each source the newest first. A vendor may
    list a version that has no files yet, or no longer: the next one is taken then, unless that
    version was named.

    Args:
        force: Whether to take also what is known to fail on the kernel.
    """
    while True:
        offered = candidates(recipe, flavour, context)
        accepted, fitting = suitable_versions(
            recipe, flavour, list(offered), request, kernel, untried
        )
        name = request.name
        if not accepted and name is not None and is_whole(name):
            variant = unlisted(recipe, flavour, name, context)
            offered, accepted = ({**offered, name: variant}, [name]) if variant else (offered, [])
        if not accepted:
            raise _no_version(recipe, flavour, request, context, list(offered))
        version = request.prefer if request.prefer in fitting else (fitting or accepted)[0]
        if not force:
            known = {one: _known(recipe, flavour, one, kernel) for one in offered}
            working = [one for one, standing in known.items() if standing == "works"]
            nearest = _nearest(version, working)
            require_kernel(recipe, version, flavour, kernel, untried, nearest=nearest)
        try:
            pinned = pin_sources(recipe.name, version, offered[version], context)
        except UnpublishedError as error:
            context = context._replace(without=context.without | {version})
            others = list(candidates(recipe, flavour, context))
            if request.exact == version or not request.accepted(others):
                raise UnpublishedError(
                    error.message,
                    resolution=f"{_see(recipe)} {error.resolution}",
                    details=error.details,
                ) from error
            report(Note(f"{error.message} The next version is taken."))
            continue
        for reason in _reasons(recipe, flavour, request, kernel, version, offered, accepted):
            report(Note(f"{recipe.name} {version}: {reason}"))
        return pinned


def _reasons(
    recipe: Recipe,
    flavour: str,
    request: VersionRequest,
    kernel: str,
    version: str,
    offered: Iterable[str],
    accepted: Iterable[str],
) -> Iterator[str]:
    """Yield what a person should know of the version that was chosen, before anything is built."""
    of_any_card = request._replace(cards=()).accepted(offered)
    for card in request.cards:
        if card.unknown_to is not None:
            yield f"{card.wanted}: whether {version} drives it, its own list decides"
            continue
        ended_by = _ended_by(recipe, card, version, of_any_card)
        ended = f"; {ended_by}" if ended_by else ""
        yield f"{card.name}: {version}, {flavour}{ended}"
    standing = recipe.standing(version=version, flavour=flavour, kernel_release=kernel)
    branch = recipe.upstream.branch_of(version)
    newest = next((v for v in accepted if recipe.upstream.branch_of(v) == branch), version)
    if standing.known == "works" and _known(recipe, flavour, newest, kernel) == "untried":
        source = standing.row.source if standing.row else ""
        by = f" ({source})" if source else ""
        yield (
            f"{version} is known to build on {kernel}{by}, and {newest} is newer and untried with"
            " it"
        )
    if standing.known == "untried":
        yield f"untried with this kernel, so the build decides whether {version} fits"


def _known(recipe: Recipe, flavour: str, version: str, kernel: str) -> Known:
    return recipe.standing(version=version, flavour=flavour, kernel_release=kernel).known


def _no_version(
    recipe: Recipe,
    flavour: str,
    request: VersionRequest,
    context: SourceContext,
    offered: list[str],
) -> NotFoundError:
    name = request.name
    if request._replace(cards=()).accepted(offered):
        return no_common_driver(recipe, request.cards)
    if not offered and (name is None or context.archive is None):
        return _nothing_offered(recipe, flavour, context)
    if request.branches is None:
        # By letters, no version is near another; cards may take few of them.
        suited = [one for one in offered if all(c.takes_version(one) for c in request.cards)]
        word = "" if name is None or name[:1].isdigit() else name
        others = f"{choices(word, suited or offered, also=CHANNELS)} {_see(recipe)}"
    else:
        kinds = ", ".join(request.branches) or "none that are known"
        others = f"Branches of this kind: {kinds}. {choices('', offered)}"
    return NotFoundError(
        f"'{recipe.name}' ({flavour}) has no version {name} for {context.distro}.",
        resolution=others,
        details=looked_in(recipe, flavour, context),
    )


def _ended_by(recipe: Recipe, card: Card, chosen: str, offered: Iterable[str]) -> str | None:
    """Return which branch after a version's is the first that does not serve a card, if one is."""
    later = [one for one in offered if compare_versions(one, chosen) > 0]
    ended = newest_first(one for one in later if not card.takes_version(one))
    if not ended:
        return None
    return f"{recipe.upstream.branch_of(ended[-1])} ended its support ({recipe.hardware.source})"


def _nothing_offered(recipe: Recipe, flavour: str, context: SourceContext) -> NotFoundError:
    variants = list(recipe.variants(context.names, flavour))
    reasons = [absence(v, context.archive) for v in variants]
    if not variants:
        served = {
            pattern
            for variant in recipe.variants(None, flavour)
            for pattern in variant.source.distros
        }
        reasons = [f"its sources serve {', '.join(sorted(served))}"]
    others = [f for f in recipe.flavours if f != flavour and candidates(recipe, f, context)]
    resolution = f"Take another flavour (--flavour): {', '.join(others)}." if others else None
    if context.archive is None:
        resolution = (
            "Take a driver whose source is an archive ('provision drivers' says which"
            " kind each has), or add such a source to a driver.toml of your own (--catalogue)."
        )
    return NotFoundError(
        f"'{recipe.name}' ({flavour}) is not offered for {context.distro}: {'; '.join(reasons)}.",
        resolution=resolution,
        details=looked_in(recipe, flavour, context),
    )


def _see(recipe: Recipe) -> str:
    return f"Take one that is published: provision drivers versions {recipe.name}."


def _nearest(version: str, working: Sequence[str]) -> str | None:
    """Return the next newer of some versions, else the next older; None if there is none."""
    ordered = newest_first(working)
    newer = [one for one in ordered if compare_versions(one, version) > 0]
    return newer[-1] if newer else next(iter(ordered), None)


def read_upstream(
    settings: Settings, recipe: Recipe, *, max_age: float = 0.0
) -> tuple[UpstreamResult, ...]:
    """Ask the sources of a recipe.

    Args:
        max_age: Seconds for which a kept answer counts; 0: each source is asked; infinite: only
            those that never answered.
    """
    machine, folder = settings.architecture, settings.state
    return ask(recipe.upstream, machine=machine, folder=folder, max_age=max_age)


def follow(settings: Settings, request: DriverRequest, distro: DistroPin) -> VersionRequest:
    """Find out which versions a request stands for, as far as the vendor decides that.

    The vendor is asked only for a kind of branch, and for the newest version of a source that takes
    any version. If it does not answer, its earlier answer and the recipe count.

    Args:
        request: The driver and its version. If it prefers a version, no newer one is looked for.
    """
    version, chosen = request.version_name, request.prefer
    recipe = settings.catalogue.entry(request.driver).recipe
    if version in NEWEST_WITHOUT_KINDS and not recipe.upstream.has_kinds:
        version = None
    takes_any = _takes_any(recipe, version, distro)
    if version not in CHANNELS and not takes_any:
        return request.version_request(None)
    max_age = MAX_AGE if chosen is None else math.inf
    readings = read_upstream(settings, recipe, max_age=max_age)
    _say_troubles(readings)
    branches = known_branches(recipe.upstream, readings)
    # The preferred version had a file, even if no source names it now.
    published = (*files_of(readings), *([chosen] if chosen else ()))
    asked = of_branches(request, branches)
    return asked._replace(published=published) if takes_any else asked


def of_branches(request: DriverRequest, branches: Branches) -> VersionRequest:
    """Return the request for a version, where branches are known, of which some have ended."""
    name = request.version_name
    followed = branches.followed(name, today()) if name is not None else None
    ended = frozenset(branch.name for branch in branches.all if branch.has_ended(today()))
    return request.version_request(followed, ended)


def _say_troubles(readings: Iterable[UpstreamResult]) -> None:
    """Report the sources that do not answer, and once for all of them what is used instead."""
    troubles = []
    for reading in readings:
        if reading.trouble is not None:
            used = "the recipe"
            if reading.answer:
                day = datetime.fromtimestamp(reading.answer.read, tz=UTC)
                used = f"its answer of {day:%Y-%m-%d %H:%M} UTC"
            troubles.append((reading.trouble, used))
    following = [used for _, used in troubles[1:]]
    for (trouble, used), next_used in zip_longest(troubles, following):
        instead = "" if used == next_used else f" Using {used} instead."
        report(Note(f"{trouble.message}{instead}"))


def _takes_any(recipe: Recipe, version: str | None, distro: DistroPin) -> bool:
    """Return whether the source that decides takes versions that it doesn't list.

    The first source that serves the distro decides the newest version, and the first that serves a
    branch decides that branch. A whole version needs no answer of the vendor.
    """
    names = source_names(distro)
    if version in CHANNELS:
        return any(source.takes_any_version and source.fits(names) for source in recipe.sources)
    if version is not None and len(version.split(".")) > recipe.upstream.branch_parts:
        return False
    serving = (source for source in recipe.sources if source.fits(names, version))
    first = next(serving, None)
    return first is not None and first.takes_any_version


def files_of(readings: Iterable[UpstreamResult]) -> tuple[str, ...]:
    """Return the versions of those sources whose versions all have files."""
    named = (r.version for reading in readings if reading.source.files for r in reading.releases)
    return tuple(dict.fromkeys(named))


def vendor_sums(settings: Settings, *, again: bool = False) -> PublishedSum:
    """Return a function that returns a vendor's checksum, from the record or from the vendor.

    The record lies beside the store, because the state folder may be deleted at any time. Users who
    may not write there have a record in the state folder.
    """
    store = in_root(settings.root, STORE)
    state = store if is_writable(store) else settings.state
    return SumRecord(state, again=again).sum_of


def version_context(
    settings: Settings,
    request: DriverRequest,
    distro: DistroPin,
    archive: Archive | None = None,
) -> tuple[VersionRequest, SourceContext]:
    """Return the version that a request stands for, and the context in which it is looked for.

    A kind of branch (``lts``) becomes its branches. For a source that takes any version, the vendor
    is asked for its versions.
    """
    version = follow(settings, request, distro)
    context = SourceContext(
        f"{distro.id} {distro.version}",
        source_names(distro),
        archive,
        architecture=settings.architecture,
        published_sum=vendor_sums(settings, again=request.refresh),
        commit_at=partial(commit_at, PackageStore(settings.state)),
        published=version.published,
    )
    return version._replace(cards=cards_for(settings, request)), context
